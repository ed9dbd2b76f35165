"""The product as `make up` starts it (web, worker, beat, Redis), beside two real nodes, told what to do over its API."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scripts import real_nodes
from tests.stack.conftest import Started, free_port

HEAD, SECOND = real_nodes.HEAD, real_nodes.SECOND
PORT = 30000
NAME = "tiny-qwen3"
# The lightest start of vLLM on a CPU; the platform plugin and the environment are in the image.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CGRAPH_get_timeout": "300",
}
ARGUMENTS = ["--enforce-eager", "--kv-cache-memory-bytes", "33554432", "--max-num-seqs", "4"]
SPEC = {
    "model": f"lab/{NAME}",
    "model_path": real_nodes.MODEL_INSIDE,
    "image": real_nodes.ENGINE_IMAGE,
    "served_model_name": NAME,
    "port": PORT,
    "cluster": "ray",
    "tensor_parallel": 2,
    "max_model_len": 512,
    "arguments": ARGUMENTS,
    "environment": ENVIRONMENT,
    "os_floor_gib": 0.5,
}
# Two busy cores carry nodes, engine and product together: what takes seconds alone may take a minute here.
READY_S, PROBED_S, NOTICED_S, STOPPED_S, LAUNCHED_S = 180.0, 120.0, 180.0, 240.0, 420.0
SAID = TypeVar("SAID")
Json = dict[str, Any]


class Declined(Exception):
    """The API's no: its problem, as JSON."""

    def __init__(self, problem: Json) -> None:
        super().__init__(str(problem))
        self.problem = problem

    @property
    def reason(self) -> str:
        return str(self.problem["reason"])


def waited(said: Callable[[], SAID], seconds: float, what: object = "") -> SAID:
    """The first true answer of `said`, else a failure with what it said last."""
    until = time.monotonic() + seconds
    while True:
        answer = said()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {seconds:.0f} s: {what() if callable(what) else what or answer!r}"
        time.sleep(0.5)


class Product:
    """One stack on state of its own. Deployments, runs and nodes are what the API says of them."""

    def __init__(self, folder: Path, nodes: real_nodes.Nodes) -> None:
        self.nodes = nodes
        self.stack = Started(folder / "var", "up", port=free_port(), WATCH_PERIOD_S="4", LEASE_S="30")
        self.tokens: dict[str, str] = {}
        self.ids: dict[str, int] = {}
        self.numbers = itertools.count(1)

    def start(self) -> None:
        """Until it serves, with a token for each role that the tests play."""
        self.stack.waits_for("sparkweb serves at", READY_S)
        for role in ("admin", "operator"):
            self.tokens[role] = self.stack.manage("token", f"a test's {role}", "--role", role).strip()

    def end(self) -> None:
        """Ends every process of it. Raises AssertionError when one of them logged a traceback."""
        self.stack.end()
        logs = {path.name: path.read_text(errors="replace") for path in (self.stack.var / "log").glob("*.log")}
        found = [f"{name}: {text[max(0, text.index('Traceback') - 500) :][:4000]}" for name, text in logs.items()
                 if "Traceback" in text]  # fmt: skip
        assert not found, found

    def ask(self, path: str, body: Json | None = None, *, role: str = "admin") -> Any:
        """What /api/v1/`path` answers: a POST when there is a body. Raises Declined."""
        status, answer, _ = self.stack.ask(f"/api/v1/{path}", body, token=self.tokens[role], timeout=90)
        if status >= 400:
            raise Declined(answer)
        return answer

    # Nodes

    def enrol(self) -> None:
        """Both nodes with a key of the product's own; each offered host key is compared with the node's, then pinned."""
        self.nodes.authorize(self.ask("credentials", {"name": "real"})["public_key"])
        for node, jump in ((self.nodes.head, None), (self.nodes.second, HEAD)):
            body = {"name": node.name, "address": node.address, "port": node.port, "user": node.user}
            row = self.ask("nodes", {**body, "credential": "real", "jump": jump})
            assert row["state"] == "unconfirmed"
            self.ids[node.name] = row["id"]
            sha256 = self.offered(node)
            assert self.ask(f"nodes/{row['id']}/confirm", {"sha256": sha256})["state"] == "ready"

    def offered(self, node: real_nodes.Node) -> str:
        """One of the host keys that its door offered; all of them are the node's own."""
        keys = [key for key in self.node(node.name)["host_keys"] if key["hop"] == node.name]
        offered = {key["sha256"] for key in keys if key["state"] == "offered"}
        assert offered and offered <= {key.sha256 for key in node.host_keys}, (keys, node.host_keys)
        return min(offered)

    def node(self, name: str, *, evidence: bool = False) -> Json:
        return dict(self.ask(f"nodes/{self.ids[name]}{'?evidence=true' if evidence else ''}"))

    def probe(self, name: str, role: str = "operator") -> Json:
        """The ended run."""
        return self.ended(self.ask(f"nodes/{self.ids[name]}/probe", {}, role=role)["run"], PROBED_S)

    def know(self) -> None:
        """Probes until both answered every question: a machine that all share may be too busy for one of them."""

        def known() -> bool:
            runs = [self.ask(f"nodes/{self.ids[name]}/probe", {})["run"] for name in (HEAD, SECOND)]
            for run in runs:
                self.succeeded(run, PROBED_S)
            sheets = [self.node(name, evidence=True)["sheet"] for name in (HEAD, SECOND)]
            return not any(part["timed_out"] for sheet in sheets for part in sheet["evidence"].values())

        waited(known, PROBED_S)

    # Deployments

    def deployment(self, name: str, **spec: object) -> int:
        """A new one; its name gets a number, because a test may be tried again."""
        body = {"name": f"{name}-{next(self.numbers)}", "nodes": [HEAD, SECOND], "spec": {**SPEC, **spec}}
        body["on_rank_lost"] = "report"  # a test of a lost rank looks at what is left
        return int(self.ask("deployments", body)["id"])

    def container(self, deployment: int, rank: int) -> str:
        """The name under which that rank was launched."""
        [name] = [row["container"] for row in self.state(deployment)["ranks"] if row["number"] == rank]
        return str(name)

    def plan(self, deployment: int, story: str = "launch", clear: Sequence[Json] = ()) -> Json:
        return dict(self.ask(f"deployments/{deployment}/plan", {"story": story, "clear": list(clear)}))

    def stops(self, deployment: int) -> list[tuple[str, str]]:
        """(finding, node) of what refuses a launch."""
        problems = self.plan(deployment)["problems"]
        return [(problem["name"], problem["node"]) for problem in problems if problem["severity"] == "stop"]

    def clearing(self, deployment: int, story: str = "launch") -> list[Json]:
        """Consent to everything that the plan asks for."""
        problems = self.plan(deployment, story)["problems"]
        return [item for problem in problems if problem["severity"] == "consent" for item in problem["clear"]]

    def begin(self, deployment: int, story: str = "launch", clear: Sequence[Json] = (), role: str = "admin") -> int:
        """Starts the plan as it is now; the run's id. Facts may change between a look at it and the start."""
        for _ in range(3):
            body = {"digest": self.plan(deployment, story, clear)["digest"], "reason": "a test", "clear": list(clear)}
            try:
                return int(self.ask(f"deployments/{deployment}/{story}", body, role=role)["run"])
            except Declined as no:
                if no.reason != "plan_changed":
                    raise
        raise AssertionError("the plan changed three times")

    def launch(self, deployment: int, story: str = "launch", clear: Sequence[Json] = (), role: str = "admin") -> Json:
        return self.succeeded(self.begin(deployment, story, clear, role), LAUNCHED_S)

    def stop(self, deployment: int) -> None:
        """By its own story; nothing of it is left on a node."""
        self.succeeded(self.begin(deployment, "stop", role="operator"), STOPPED_S)
        assert self.state(deployment)["state"] == "stopped"
        for name in (HEAD, SECOND):
            assert self.nodes.inside(name, "docker", "ps", "-aq", "--filter", "label=sparkweb.deployment") == "", name

    def state(self, deployment: int) -> Json:
        return dict(self.ask(f"deployments/{deployment}"))

    def becomes(self, deployment: int, state: str, *reasons: str | None, seconds: float = NOTICED_S) -> str:
        """Waits until the watch, which beat drives, says so; its evidence."""
        seen: dict[tuple[str, str | None, str | None], None] = {}

        def so() -> Json | None:
            now = self.state(deployment)
            seen[now["state"], now["reason"], now["evidence"]] = None
            return now if now["state"] == state and now["reason"] in (reasons or (None,)) else None

        return str(waited(so, seconds, lambda: f"{state} {reasons}; but {list(seen)}")["evidence"] or "")

    # Runs

    def ended(self, run: int, seconds: float) -> Json:
        """The run when it is over; where the product tries it again by itself, that second try when it is over."""

        def over() -> Json | None:
            now = dict(self.ask(f"runs/{run}"))
            return now if now["ended_at"] else None

        made = waited(over, seconds, lambda: f"{self.ask(f'runs/{run}')}\n{self.text(run)[-6000:]}")
        return self.ended(made["second_try"], seconds) if made["second_try"] else made

    def succeeded(self, run: int, seconds: float) -> Json:
        made = self.ended(run, seconds)
        assert (made["state"], made["reason"]) == ("succeeded", None), (
            f"run {made['id']}, a {made['story']}: {made['state']}, {made['reason']}: {made['evidence']}\n"
            f"{self.text(made['id'])[-6000:]}"
        )
        return made

    def failed(self, run: int, seconds: float) -> Json:
        """An ended run that failed for a reason of the table, and not for a mistake of ours."""
        made = self.ended(run, seconds)
        told = (made["state"], made["reason"], made["evidence"], self.text(made["id"])[-4000:])
        assert made["state"] == "failed" and made["reason"] not in (None, "internal") and made["remedy"], told
        return made

    def text(self, run: int) -> str:
        """All stored lines."""
        made, after = [], 0
        while rows := (answer := self.ask(f"runs/{run}/lines?after={after}&limit=1000"))["lines"]:
            made += [f"{row['node']} {row['step']} {row['text']}" for row in rows]
            after = answer["next"]
        return "\n".join(made)
