"""The main job, played through the product's own services: two pretend Sparks, or one real OpenSSH server with a real engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.audit.actor import Actor
from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Credential, Node
from apps.people import services as people
from apps.people.models import User
from apps.plan.spec import Clear
from apps.plan.step import Plan
from apps.recipes.models import Recipe
from apps.recipes.services import current_version
from apps.runs import lines, queries, services
from apps.runs.models import Run

PEOPLE = (("vera", "viewer"), ("otto", "operator"), ("ada", "admin"))
RUN_WITHIN_S = 600.0
OLD_STACK = 3  # containers that the head's units bring back
NOTICED_WITHIN_S = 120.0
EVERY_SHARDS = 5  # of a load that are told


class DemoFailed(Exception):
    """Something of the story did not happen."""

    def __init__(self, state: str, reason: str | None, evidence: str) -> None:
        super().__init__(f"{state}: {reason}: {evidence}")
        self.told = {"state": state, "reason": reason, "evidence": evidence}


@dataclass
class Teller:
    """Says what happens, with the seconds since the start."""

    write: Callable[[str], object]
    started: float

    def __call__(self, text: str) -> None:
        self.write(f"{time.monotonic() - self.started:6.1f} s  {text}")


def actor(name: str, role: str) -> Actor:
    """The person of this name, made on the first demo."""
    person = User.objects.filter(name=name).first()
    if person is None:
        person, _ = people.add_person(Actor("system", None, "demo", "admin"), name, role)
    return Actor("person", person.pk, person.name, person.role)


def sign_in_links() -> dict[str, str]:
    """role -> address of a fresh one-time link."""
    found = {}
    for name, role in PEOPLE:
        link = people.new_sign_in_link(Actor("system", None, "demo", "admin"), User.objects.get(name=name).pk)
        found[role] = settings.ORIGINS[0] + link.path
    return found


def wait_for_run(run: Run, say: Teller, *, within_s: float = RUN_WITHIN_S) -> Run:
    """Follow a run to its end, saying each phase and every few shards."""
    until, said = time.monotonic() + within_s, ("", 0)
    while time.monotonic() < until:
        run = Run.objects.select_related("deployment").get(pk=run.pk)
        ranks = [row for row in queries.rank_progress(run) if row.get("total")]
        loading = run.phase == "loading" and bool(ranks) and not run.ended
        shown = (run.phase or run.state, min(row["done"] or 0 for row in ranks) // EVERY_SHARDS + 1 if loading else 0)
        if shown != said:
            said = shown
            shards = " and ".join(f"{row['done']}/{row['total']}" for row in ranks)
            more = f", shards {shards}; {queries.eta(run).sentence}" if loading else ""
            say(f"{run.story}: {shown[0]}{more}")
        if run.ended:
            second = Run.objects.filter(second_try_of=run).first()
            if second is None:
                return run
            say(f"{run.story}: {run.reason}: {run.evidence[:160]}; tried once more as run {second.pk}")
            run, until = second, time.monotonic() + within_s
        time.sleep(0.5)
    raise DemoFailed(
        run.state,
        run.reason or "internal",
        f"run {run.pk} did not end within {within_s:.0f} s; it is in phase {run.phase}",
    )


def need(run: Run) -> Run:
    if run.state != Run.State.SUCCEEDED:
        raise DemoFailed("failed", run.reason, run.evidence or f"run {run.pk} ended {run.state}")
    return run


def credential(who: Actor) -> Credential:
    return Credential.objects.filter(name="demo").first() or inventory.make_credential(who, name="demo")


def enrol(
    who: Actor,
    say: Teller,
    *,
    name: str,
    address: str,
    port: int,
    user: str,
    key: Credential,
    jump: Node | None,
    fingerprints: set[str],
) -> Node:
    """Register a node (or find it again at its new port) and confirm the key that the machine's owner read out."""
    node = Node.objects.filter(name=name).first()
    if node is None:
        node = services.enrol(who, name=name, address=address, port=port, user=user, credential=key, jump=jump)
    else:
        node = inventory.change_node(
            who, node, address=address, port=port, user=user, reason="the demo was started again"
        )
    offered = [found for found in node.host_keys.order_by("type") if found.sha256 in fingerprints]
    if not offered:
        raise DemoFailed("failed", "host_key_changed", f"{name} shows none of the keys {sorted(fingerprints)}")
    for found in offered:
        node = inventory.confirm_host_key(who, node, sha256=found.sha256)
    say(
        f"{name} is registered{f' behind {jump.name}' if jump else ''}; host key {offered[0].type} {offered[0].sha256} confirmed"
    )
    return node


def show_problems(plan: Plan, say: Teller) -> None:
    if plan.fit is not None:
        say(f"fit: {plan.fit.sentence}")
    for problem in plan.problems:
        if problem.severity != "fine":
            say(f"{problem.severity}: {problem.title}{f' ({problem.node})' if problem.node else ''}")


def clears_of(plan: Plan) -> tuple[Clear, ...]:
    """All that stands in the way and can be cleared with consent; units are stopped, not disabled."""
    return services.clear_from(
        [
            {**item, "disable": False}
            for problem in plan.problems
            if problem.severity == "consent"
            for item in problem.clear
        ]
    )


def launch(who: Actor, deployment: Deployment, say: Teller, *, story: str, reason: str) -> Run:
    """Preview, agree to clear what is in the way, preview again, start exactly that."""
    first = services.preview(who, deployment, story=story)
    show_problems(first, say)
    clear = clears_of(first)
    plan = services.preview(who, deployment, story=story, clear=clear)
    say(
        f"{story}: {sum(len(stage.steps) for stage in plan.stages)} steps, plan {plan.digest[:7]}, clears {len(clear)} things with consent"
    )
    return services.start(who, deployment, story=story, digest=plan.digest, reason=reason, clear=clear)


def deployment_for(
    who: Actor, *, name: str, recipe: str, nodes: list[str], changes: dict[str, Any] | None = None
) -> Deployment:
    version = current_version(Recipe.objects.get(slug=recipe))
    body = {**version.body, **(changes or {})}
    known = Deployment.objects.filter(name=name).first()
    if known is None:
        return deployments.create(who, name=name, body=body, nodes=nodes, recipe_version=version, reason="the demo")
    deployments.revise(who, known, body=body, nodes=nodes, reason="the demo was started again")
    return known


def result(deployment: Deployment, run: Run, seconds: float) -> dict[str, Any]:
    deployment.refresh_from_db()
    run.refresh_from_db()
    return {
        "deployment": deployment.pk,
        "state": deployment.state,
        "reason": deployment.reason,
        "run": run.pk,
        "seconds": round(seconds, 1),
        "lines": lines.stored_lines(run),
        "smoke": run.outcome.get("smoke", {}).get("verdict", "missing"),
    }


def page_of(deployment: Deployment) -> str:
    return settings.ORIGINS[0] + deployment.get_absolute_url()


# Two pretend Sparks


class LabProcess:
    """The pretend Sparks in a process of their own, reached only by its command, its file and SSH."""

    def __init__(self, folder: Path, *, options: list[str]) -> None:
        self.folder, self.options = folder, options
        self.process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}

    def command(self, *words: str) -> str:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "manage.py", "lab", "--folder", str(self.folder), *words],
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise DemoFailed("failed", "internal", f"lab {words[0]}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        ready = (
            self.folder / "lab.json"
        )  # an older one is kept until then: the pretend Sparks take their old ports from it
        before = ready.stat().st_mtime_ns if ready.exists() else 0
        with (settings.VAR / "log" / "lab.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "manage.py", "lab", "--folder", str(self.folder), "serve", *self.options],
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if ready.exists() and ready.stat().st_mtime_ns != before:
                try:
                    self.facts = json.loads(ready.read_text())
                    return
                except ValueError:
                    pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise DemoFailed(
            "failed", "internal", f"the pretend Sparks did not start; see {settings.VAR / 'log' / 'lab.log'}"
        )

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def _fingerprints(facts: dict[str, Any]) -> set[str]:
    """What the owner of the machine would read out to compare."""
    return {key["sha256"] for key in facts["host_keys"]}


def play(lab: LabProcess, say: Teller, told: dict[str, Any]) -> None:
    """Steps 1 to 10 of the story; `told` holds what has happened so far. Raises DemoFailed or Refused."""
    started = time.monotonic()
    editor, operator = actor("ada", "admin"), actor("otto", "operator")
    actor("vera", "viewer")
    key = credential(editor)
    public = settings.VAR / "run" / "demo.pub"
    public.write_text(key.public_key + "\n")
    lab.command("authorize", str(public))
    head_facts, second_facts = lab.facts["nodes"]["spark-1a32"], lab.facts["nodes"]["spark-5be3"]
    head = enrol(
        editor,
        say,
        name="spark-1a32",
        address="127.0.0.1",
        port=head_facts["port"],
        user="aurora",
        key=key,
        jump=None,
        fingerprints=_fingerprints(head_facts),
    )
    second = enrol(
        editor,
        say,
        name="spark-5be3",
        address="192.168.200.13",
        port=22,
        user="aurora",
        key=key,
        jump=head,
        fingerprints=_fingerprints(second_facts),
    )
    try:
        services.enrol(
            editor, name="pro6000", address="10.1.230.190", port=22, user="aurora", credential=key, jump=head
        )
    except Refused as no:
        say(f"pro6000 can't be registered: {no.reason} ({no.evidence.strip()}); that blocks nobody")
    deployment = deployment_for(
        editor, name="qwen3.5-122b", recipe="qwen3.5-122b-a10b-fp8", nodes=["spark-1a32", "spark-5be3"]
    )
    told.update(deployment=deployment.pk, url=page_of(deployment))
    _probe_whole(operator, head, second, say)
    for node in (head, second):
        sheet = inventory.latest_sheet(node)
        if (
            sheet is not None
            and sheet.memory is not None
            and sheet.memory.total_bytes
            and sheet.memory.available_bytes is not None
        ):
            used = (sheet.memory.total_bytes - sheet.memory.available_bytes) / 2**30
            say(
                f"{node.name}: {used:.0f} of {sheet.memory.total_bytes / 2**30:.0f} GiB in use, "
                f"{len([c for c in sheet.containers or () if c.state == 'running'])} containers run"
            )
    run = launch(editor, deployment, say, story="launch", reason="first launch of the demo, the GLM stack may go")
    told["run"] = run.pk
    need(wait_for_run(run, say))
    told.update(result(deployment, run, time.monotonic() - started))
    say(f"serving; smoke test {told['smoke']}, {told['lines']} lines stored")
    say("both Sparks reboot")
    lab.command("reboot", "all")
    was = _wait_until_lost(deployment, say)
    _probe_whole(operator, head, second, say)
    _play_relaunch(operator, deployment, say, told, was=was)


def _probe_whole(who: Actor, head: Node, second: Node, say: Teller) -> None:
    """Probe until all that the plan rests on was answered and the old stack is up as a whole: a busy machine answers late."""
    for _ in range(6):
        need(wait_for_run(services.probe(who, [head, second]), say))
        sheets = [inventory.latest_sheet(node) for node in (head, second)]
        stack = [one for one in (sheets[0].containers if sheets[0] else None) or () if one.state == "running"]
        if len(stack) >= OLD_STACK and all(sheet and sheet.interfaces and sheet.models for sheet in sheets):
            return
        time.sleep(2)


def _play_relaunch(who: Actor, deployment: Deployment, say: Teller, told: dict[str, Any], *, was: str) -> None:
    began = time.monotonic()
    run = launch(who, deployment, say, story="relaunch", reason="both Sparks were rebooted, the model is needed back")
    entry = Entry.objects.filter(run_id=run.pk, outcome="requested").order_by("id").first()
    again = {"run": run.pk, "state": run.state, "was": was, "seconds": None, "audit_entry": entry.pk if entry else None}
    told["relaunch"] = again
    done = wait_for_run(run, say)
    deployment.refresh_from_db()
    again.update(state=deployment.state, seconds=round(time.monotonic() - began, 1))
    need(done)
    told.update(state=deployment.state, reason=deployment.reason)
    say(f"serving again after {again['seconds']} s")


def _wait_until_lost(deployment: Deployment, say: Teller) -> str:
    until = time.monotonic() + NOTICED_WITHIN_S
    said = ""
    while time.monotonic() < until:
        deployment.refresh_from_db()
        news = f"{deployment.state}{f': {deployment.reason}' if deployment.reason else ''}"
        if news != said:
            said = news
            say(f"the dashboard says {news}.{f' {deployment.evidence}' if deployment.evidence else ''}")
        if deployment.state == "lost" and deployment.reason == "replaced":
            return "replaced"
        time.sleep(0.5)
    raise DemoFailed(deployment.state, deployment.reason, "the dashboard did not notice that the old stack came back")


# One real OpenSSH server and a real engine


def play_real(
    engine: dict[str, Any],
    *,
    address: str,
    port: int,
    user: str,
    fingerprints: set[str],
    authorize: Callable[[str], object],
    say: Teller,
    told: dict[str, Any],
) -> None:
    """Deploy the tiny model with real vLLM on CPU as a plain process over real SSH, prove it, stop it."""
    started = time.monotonic()
    del told["relaunch"]  # nothing reboots here; the story ends with a stop
    told["stopped"] = None
    editor = actor("ada", "admin")
    actor("vera", "viewer")
    actor("otto", "operator")
    key = credential(editor)
    authorize(key.public_key)
    node = enrol(
        editor,
        say,
        name="this-machine",
        address=address,
        port=port,
        user=user,
        key=key,
        jump=None,
        fingerprints=fingerprints,
    )
    deployment = deployment_for(
        editor,
        name="tiny-qwen3",
        recipe="vllm-process",
        nodes=["this-machine"],
        changes={
            "model": f"local/{engine['served_model_name']}",
            "model_path": engine["model_path"],
            "executable": engine["executable"],
            "served_model_name": engine["served_model_name"],
            "port": engine["port"],
            "arguments": list(engine["arguments"]),
            "environment": sorted(engine["environment"].items()),
            "smoke_max_tokens": 24,
        },
    )
    need(wait_for_run(services.probe(editor, [node]), say))
    told.update(deployment=deployment.pk, url=page_of(deployment))
    run = launch(editor, deployment, say, story="launch", reason="the demo with a real engine")
    told["run"] = run.pk
    need(wait_for_run(run, say))
    told.update(result(deployment, run, time.monotonic() - started))
    say(f"serving; smoke test {told['smoke']}, {told['lines']} lines stored")
    told["probe"] = need(wait_for_run(services.probe(editor, [node]), say)).pk
    plan = services.preview(editor, deployment, story="stop")
    stop = services.start(editor, deployment, story="stop", digest=plan.digest, reason="the demo is over")
    need(wait_for_run(stop, say))
    deployment.refresh_from_db()
    say(f"stopped; the deployment is {deployment.state}")
    told.update(seconds=round(time.monotonic() - started, 1), stopped={"run": stop.pk, "state": deployment.state})
