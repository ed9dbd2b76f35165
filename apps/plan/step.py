"""What a plan is made of. The stored plan is what runs; its digest is over the canonical JSON of all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from apps.shell import Secret


@dataclass(frozen=True)
class Step:
    """One leased piece of a run on one node.

    kind:
      note    nothing to do; `why` says so (a stated reason, decision 12). Succeeds at once.
      job     `script` runs as a detached job; exit code 0 is success.
      serve   `script` runs as a detached job that is expected to stay; the step succeeds once it is started. Its output
              is the log of `rank` and is followed until the run ends.
      wait    `script` (cheap, repeatable) is run every `every_s` until `gate` says done or failed, or `within_s`
              passed. `gate` = {"name": …, **parameters}; judged by plan.gates.judge(gate, stdout, exit_code).
      ready   HTTP GET `url` through SSH every `every_s` until it names `model` (with `gate` = {"name": "health"}: until it
              answers 200); meanwhile the readers of the followed logs may name a failure, and a dead `serve` job fails it.
              `within_s` counts from the last progress seen. `gate` = {"locked": "fine"}: an API that wants a key is there too.
      smoke   one real request at `url` for `model`. `gate` = {"kind": embeddings or rerank, "urls": […]}: what is asked for where
              it is no chat completion, and where else it may be answered; see plan.proofs. {"ask": models, streamed or tools}:
              another question than the plain one.
      probe   the executor takes a full fresh sheet of the node, stores it, and asks
              `plan.gates.judge_sheet(gate, sheet)`. `gate` = {"name": "sheet"} (always good) or
              {"name": "preflight", …} with what the plan took for true. Every key may be missing: boot_id, docker
              (true if it must answer), image, image_id, model_path, shards, weights_bytes, containers (names that no
              foreign one may have), deployment (whose labels are ours), cleared (containers that will be cleared),
              seen (containers that ran when the plan was made), ports (that must be free already), processes ([{pid,
              names}] that will be ended), disk_bytes (free on /). The failure names what changed since the plan.
      key     log in with a password that is given for this run only and run `script`, which puts our public key in; then
              log in with the key.
      end     cancel the detached job that the `serve` step with key `ends` started in an earlier run of this deployment
              (TERM to the tree, then KILL); succeeds when there is no such job.

    A `job` may take from earlier steps: `gate` = {"takes": {VARIABLE: key of a step}}. The variable then holds what that
    step printed after `sparkweb-value: `. A `probe` with {"fresh": true} in its gate goes over a new login.
    """

    key: str  # unique in the plan and stable, e.g. "cluster.ray-head.spark-1a32"
    node: str
    title: str
    kind: str
    script: str = ""
    commands: tuple[str, ...] = ()  # what the preview shows: the same commands, readable; for `note` empty
    why: str = ""
    rank: int | None = None
    gate: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    model: str = ""
    max_tokens: int = 50
    every_s: float = 1.0
    within_s: float = 120.0
    secrets: tuple[Secret, ...] = ()
    follows: str = ""  # reader for this step's output: vllm, ray, sglang, llamacpp, "" (none)
    # What is needed to put it back, for Restore: {"node": …, "units": [{"unit", "was_enabled", "was_active", "was" (systemd's
    # word for enabled), "state", "ports"}], "containers": [{"name", "id", "image", "restart_policy", "was_running", "removed",
    # "ports"}]}; restore takes a list.
    undo: dict[str, Any] = field(default_factory=dict)
    ends: str = ""  # kind end: the key of the serve step whose job is to be cancelled
    service: str = (
        ""  # whose step it is where the deployment has several; "" is the main one's, or nobody's in particular
    )
    container: str = (
        ""  # kind serve: the container whose log the job follows; the job's exit code is then the container's own
    )


@dataclass(frozen=True)
class Stage:
    """Steps of a stage run in parallel over nodes; steps of one node in order. All finish, every failure is
    reported."""

    name: str  # shown
    phase: str  # of states.md: preflight clearing cluster loading verifying stopping
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Problem:
    """A check of the preflight. severity: stop (refuses the launch), consent (needs a tick), warn, fine."""

    name: str  # a reason of diagnosis.reasons where it is one, else a finding's name
    severity: str
    title: str
    node: str = ""
    meaning: str = ""
    remedy: str = ""
    evidence: str = ""
    # For consent: the Clear items that would settle it, as dicts. A consent that was given comes back as fine with its
    # items still here, so that a page can show the box ticked.
    clear: tuple[dict[str, Any], ...] = ()
    change: dict[str, Any] = field(
        default_factory=dict
    )  # fields of the spec that would settle it, e.g. another backend
    deployment: int | None = None  # another deployment of ours that it is about, for a link


@dataclass(frozen=True)
class Bar:
    """The memory of one node after the launch, in bytes, in drawing order."""

    node: str
    total_bytes: int
    segments: tuple[tuple[str, int], ...]  # (os|weights|graphs|state|kv|deployments|others|free, bytes)
    deployments: tuple[tuple[str, int], ...] = ()  # whose the segment of that name is: other deployments of ours
    gpu: int | None = None  # which GPU this is, where each has memory of its own: the tightest one of the node
    gpus: int = 1  # that the deployment uses here

    @property
    def over_bytes(self) -> int:
        """What is wanted beyond the whole: by others until they are cleared, or because it does not fit."""
        return max(0, sum(size for _, size in self.segments) - self.total_bytes)

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """The segments as they are read: each other deployment of ours by its name."""
        made: list[tuple[str, int]] = []
        for name, size in self.segments:
            made += (
                [(f"deployment {one}", held) for one, held in self.deployments]
                if name == "deployments"
                else [(name, size)]
            )
        return tuple(made)


@dataclass(frozen=True)
class Fit:
    verdict: str  # fits, fits_after_clearing, does_not_fit, unknown
    sentence: str
    bars: tuple[Bar, ...] = ()
    kv_tokens: int | None = None
    largest: dict[str, Any] = field(default_factory=dict)  # the largest setting that fits
    remarks: tuple[str, ...] = ()  # what the figures rest on, and what a person should know beside them
    sequences: int | None = None  # of `length` tokens that run at a time; None: unknown or it does not fit
    length: int | None = None  # tokens of the longest sequence
    predicted: dict[str, Any] = field(default_factory=dict)  # uncorrected, of the tightest rank: see plan.measured


@dataclass(frozen=True)
class Setting:
    """One option or variable of the engine as it will be passed on. `source`: whose it is, yours or ours."""

    kind: str  # argument, variable
    name: str  # --max-model-len, VLLM_HOST_IP
    source: str
    effective: str  # what is passed; empty: dropped
    yours: str = ""  # what was asked for; empty: nothing
    reason: str = ""
    nodes: tuple[str, ...] = ()  # that it is about; empty: all of them

    def at(self, nodes: Iterable[str]) -> Setting:
        return replace(self, nodes=tuple(nodes))


@dataclass(frozen=True)
class Difference:
    """What is otherwise than at the last good launch, and why. Both values as text; empty: there was, or is, none."""

    name: str  # VLLM_HOST_IP, --master-addr, image, a field of the spec
    before: str
    after: str
    reason: str
    node: str = ""  # empty: on all of them
    # node: derived anew from what the node says; revision: somebody changed it; files: image or model; ours: passed otherwise
    kind: Literal["node", "revision", "files", "ours"] = "node"
    service: str = ""


@dataclass(frozen=True)
class Plan:
    story: str  # launch, relaunch, stop, clear, probe, provision, restore, unlock
    deployment: int
    revision: int
    nodes: tuple[str, ...]
    stages: tuple[Stage, ...]
    fit: Fit | None = None
    problems: tuple[Problem, ...] = ()
    spec: dict[str, Any] = field(default_factory=dict)
    # Services that this plan leaves alone because they stand; it is about the others. Empty: about all of them.
    kept: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()  # of the engine; they stand in the commands too, so the digest leaves them out
    differences: tuple[Difference, ...] = ()  # to the last good launch; likewise
    last_good: int | None = None  # the run of that launch

    @property
    def refused(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity in ("stop", "consent"))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what will run: story, nodes, stages, spec. Measured figures (fit, problems' evidence) and what is
        remembered for a way back are left out, so that two previews a second apart agree as long as the commands do."""
        stages = [asdict(stage) for stage in self.stages]
        for stage in stages:
            for step in stage["steps"]:
                del step["undo"]
        body = {
            "story": self.story,
            "deployment": self.deployment,
            "revision": self.revision,
            "nodes": self.nodes,
            "stages": stages,
            "spec": self.spec,
            "kept": self.kept,
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"digest": self.digest}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Plan:
        def step(s: dict[str, Any]) -> Step:
            return Step(**{**s, "commands": tuple(s["commands"]), "secrets": tuple(Secret(**x) for x in s["secrets"])})

        def bar(b: dict[str, Any]) -> Bar:
            segments, others = (tuple((n, v) for n, v in b.get(name, ())) for name in ("segments", "deployments"))
            return Bar(b["node"], b["total_bytes"], segments, others, b.get("gpu"), b.get("gpus", 1))

        fit = body.get("fit")
        return cls(
            story=body["story"],
            deployment=body["deployment"],
            revision=body["revision"],
            nodes=tuple(body["nodes"]),
            stages=tuple(Stage(s["name"], s["phase"], tuple(step(x) for x in s["steps"])) for s in body["stages"]),
            fit=None
            if fit is None
            else Fit(
                fit["verdict"],
                fit["sentence"],
                tuple(bar(x) for x in fit["bars"]),
                fit["kv_tokens"],
                fit["largest"],
                tuple(fit.get("remarks", ())),
                fit.get("sequences"),
                fit.get("length"),
                fit.get("predicted", {}),
            ),
            problems=tuple(Problem(**{**p, "clear": tuple(p["clear"])}) for p in body["problems"]),
            spec=body["spec"],
            kept=tuple(body.get("kept", ())),
            settings=tuple(Setting(**{**one, "nodes": tuple(one["nodes"])}) for one in body.get("settings", ())),
            differences=tuple(Difference(**one) for one in body.get("differences", ())),
            last_good=body.get("last_good"),
        )
