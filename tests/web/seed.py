"""The story as rows, made through the product's own services: two Sparks and one that is away, a deployment that is loading
(shard 17 of 39), one that was replaced after a reboot, one that serves, one that failed, and what people did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor, robot
from apps.deployments import services as deployments
from apps.deployments import state as deployment_state
from apps.deployments.models import Deployment, Rank
from apps.diagnosis.vllm import Reader as VllmReader
from apps.facts.sheet import Sheet
from apps.facts.values import Container, Memory
from apps.inventory import services as inventory
from apps.inventory.models import Node, SheetRow
from apps.people.models import User
from apps.recipes import services as recipes
from apps.recipes.models import Recipe
from apps.recipes.services import current_version, load_shipped
from apps.runs import heartbeat, settling
from apps.runs import services as runs
from apps.runs.executor import _progress
from apps.runs.models import Run, Step
from apps.runs.recorder import Recorder
from apps.watch.models import Mark, Point, Sighting
from tests.plan import sheets

EDITOR = Actor("person", 1, "ed1", "editor")
OPERATOR = Actor("person", 2, "op1", "operator")
SECOND_EDITOR = Actor("person", 3, "grace", "editor")
GIB = 1 << 30
TOKEN = "the seed's lease"
SHARDS = 39
KEYS = {
    "spark-1a32": "SHA256:0mYQvJrF3zYbJrXgkq1u3Kp8vQ2nT4oWc9sL7dEaHfI",
    "spark-5be3": "SHA256:Xr8pW1nC5bTzLq0aUeVg7JmKs2DyHfRoI4vNtG6cBxQ",
    "pro6000": "SHA256:Gk3sTzVqYb9eNwPj5LxRcMu1HaFoDi7yKt2ZvBn8QwE",
}


@dataclass
class Seeded:
    """What was made, for tests."""

    head: Node
    second: Node
    away: Node
    serving: Deployment
    lost: Deployment
    failed: Deployment
    draft: Deployment
    loading: Run
    failed_run: Run
    people: dict[str, User]


def people() -> dict[str, User]:
    made = {}
    for name, role in (
        ("vi1", "viewer"),
        ("op1", "operator"),
        ("ed1", "editor"),
        ("root1", "admin"),
        ("au1", "auditor"),
    ):
        made[role] = User(name=name, role=role)
        made[role].set_password("a long enough one")
        made[role].save()
    return made


def with_evidence(sheet: Sheet) -> Sheet:
    """The sheet of a probe a moment ago, with raw output."""
    from apps.facts.sheet import Evidence

    now = timezone.now().timestamp()
    return replace(
        sheet,
        machine=replace(sheet.machine, clock_unix_s=now - 12) if sheet.machine else None,
        taken_at=timezone.now().timestamp() - 12,
        evidence={
            "machine": Evidence(stdout=f"{sheet.node}\nLinux 6.14.0-1015-nvidia aarch64\n", exit_code=0, seconds=0.02),
            "memory": Evidence(
                stdout="MemTotal:       125512704 kB\nMemAvailable:    16463872 kB\n", exit_code=0, seconds=0.01
            ),
            "docker": Evidence(stdout="28.3.3\n", stderr="", exit_code=0, seconds=0.2),
            "container-memory": Evidence(
                stdout="vllm_node 82000 MiB\nvllm_embeddings 9830 MiB\nreranker 8700 MiB\n", exit_code=0, seconds=0.3
            ),
        },
    )


def node(name: str, address: str, *, jump: Node | None = None, sheet: Sheet | None = None) -> Node:
    credential = inventory.Credential.objects.first() or inventory.make_credential(EDITOR, name="sparks")
    made = inventory.add_node(
        EDITOR,
        name=name,
        address=address,
        port=22,
        user="aurora",
        credential=credential,
        jump=jump,
        found=[{"type": "ssh-ed25519", "base64": f"AAAA{name}", "sha256": KEYS.get(name, f"SHA256:{name}")}],
    )
    inventory.confirm_host_key(EDITOR, made, sha256=KEYS.get(name, f"SHA256:{name}"))
    if sheet is not None:
        inventory.store_sheet(made, with_evidence(sheet))
    made.refresh_from_db()
    return made


def earlier(node: Node) -> None:
    """What the head was like before its reboot."""
    sheet = sheets.head(busy=False)
    before = replace(
        sheet,
        taken_at=timezone.now().timestamp() - 1700,
        machine=replace(sheet.machine, boot_id="the boot before") if sheet.machine else None,
    )
    SheetRow.objects.create(node=node, taken_at=datetime.fromtimestamp(before.taken_at, UTC), body=before.to_json())


def look(
    node: Node,
    memory: Memory,
    containers: tuple[Container, ...] = (),
    *,
    busy: int = 0,
    power: float = 11,
    temp: int = 44,
) -> None:
    """What the watch saw 6 s ago."""
    gpu = {"index": 0, "name": "NVIDIA GB10", "unified": True, "util_pct": busy, "power_w": power, "temp_c": temp}
    Sighting.objects.update_or_create(
        node=node,
        defaults={
            "at": timezone.now() - timedelta(seconds=6),
            "boot_id": node.boot_id,
            "body": {
                "memory": asdict(memory),
                "gpus": [gpu],
                "containers": [asdict(one) for one in containers],
                "units": [],
            },
        },
    )


def memory(used_gib: float) -> Memory:
    available = sheets.TOTAL - int(used_gib * GIB)
    return Memory(sheets.TOTAL, max(0, available - 2 * GIB), available, 2 * GIB)


def past(made: Seeded) -> None:
    """What the watch kept of the head's last hour, with a reboot in it, and flags of what serves."""
    now = timezone.now()
    points = []
    for number in range(180):
        ago = number * 20 + 4
        if 1440 <= ago <= 1740:
            continue  # it was not there
        used = (104 - min(8, ago / 60) if ago < 1440 else 99.5) + (number % 7) / 10
        temp = 58 + number % 5 if ago < 900 else 71 - number % 4
        points.append(
            Point(
                node=made.head,
                step=0,
                at=now - timedelta(seconds=ago),
                used_bytes=int(used * GIB),
                total_bytes=sheets.TOTAL,
                temp_c=temp,
                power_w=40.0,
                busy_pct=80.0,
            )
        )
    Point.objects.bulk_create(points)
    for minutes, kind, text in (
        (29, "unreachable", "ssh_timeout"),
        (28, "rebooted", ""),
        (24, "reachable", ""),
        (23.6, "lost", f"{made.lost.name}: replaced"),
    ):
        Mark.objects.create(node=made.head, at=now - timedelta(minutes=minutes), kind=kind, text=text)
    port = made.serving.revision.spec.port
    exposed = f"The API at port {port} of spark-1a32 wants no key and listens on 10.1.230.180."
    other = "vllm-b-r1 on spark-5be3 runs other arguments than recorded: without 16 and with 64."
    deployment_state.flag(made.serving, {"exposed": exposed, "drift": other})


CASES = Path(__file__).parents[1] / "recipes" / "cases"


def imported_recipes() -> None:
    """One that waits for many decisions, and one in two versions with a further service."""
    recipes.import_text(EDITOR, text=(CASES / "sparkrun" / "05-hooks-and-mods.yaml").read_text())
    text = (CASES / "sparkweb" / "01-own.yaml").read_text()
    made = recipes.import_text(EDITOR, text=text)
    version = current_version(made)
    recipes.mark_used(version)
    body = {**version.body, "port": 30010, "arguments": ["--max-num-seqs", "32", "--enable-prefix-caching"]}
    recipes.edit(
        SECOND_EDITOR,
        made,
        name=made.name,
        description=made.description,
        world_size=1,
        body=body,
        note="more sequences at once",
    )


def create(name: str, *, nodes: list[str], container: str, port: int = 30000) -> Deployment:
    recipe = Recipe.objects.get(slug="qwen3.5-122b-a10b-fp8")
    version = current_version(recipe)
    return deployments.create(
        EDITOR,
        name=name,
        body={**version.body, "container": container, "port": port},
        nodes=nodes,
        recipe_version=version,
    )


def started(actor: Actor, deployment: Deployment, story: str, reason: str, *, minutes_ago: float) -> Run:
    """A run whose plan is the real one, held by the seed's lease."""
    clear = sheets.CONSENT if story != "stop" else ()
    deployments.remember_consents(EDITOR, deployment, clear, reason="agreed")
    plan = runs.preview(actor, deployment, story=story, clear=clear)
    run = runs.start(actor, deployment, story=story, digest=plan.digest, reason=reason, clear=clear)
    began = timezone.now() - timedelta(minutes=minutes_ago)
    Run.objects.filter(pk=run.pk).update(
        created_at=began,
        started_at=began,
        state="running",
        lease_token=TOKEN,
        lease_until=timezone.now() + timedelta(days=1),
    )
    run.refresh_from_db()
    return run


def bar(done: int, total: int, seconds: float) -> str:
    share = done / total
    return (
        f"Loading safetensors checkpoint shards: {share * 100:3.0f}% Completed | {done}/{total} "
        f"[{int(done * seconds) // 60:02d}:{int(done * seconds) % 60:02d}<{int((total - done) * seconds) // 60:02d}:"
        f"{int((total - done) * seconds) % 60:02d}, {seconds:5.2f}s/it]"
    )


def engine_log(done: tuple[int, int], total: int = SHARDS) -> str:
    """What rank 0 prints for both ranks up to shard `done`, as vLLM does."""
    head, worker = (
        "(EngineCore_DP0 pid=812) (RayWorkerWrapper pid=1020)",
        "(EngineCore_DP0 pid=812) (RayWorkerWrapper pid=377, ip=192.168.200.13)",
    )
    lines = [
        "INFO 11-30 15:04:40 [__init__.py:241] Automatically detected platform cuda.",
        "(APIServer pid=650) INFO 11-30 15:04:46 [api_server.py:1012] vLLM API server version 0.17.1rc1",
        "(APIServer pid=650) INFO 11-30 15:04:52 [model.py:547] Using max model len 131072",
        f"{head} spark-1a32:1020:1020 [0] NCCL INFO NET/IBext_v11 : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE",
        f"{worker} spark-5be3:377:377 [0] NCCL INFO NET/IBext_v11 : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE",
        f"{head} spark-1a32:1020:1020 [0] NCCL INFO Using network IBext_v11",
        f"{head} \x1b[33mWARNING\x1b[0m 11-30 15:05:02 [gpu_model_runner.py:2602] hybrid GDN layers detected, attention backend TRITON_ATTN",
        f"{head} INFO 11-30 15:05:03 [gpu_model_runner.py:2602] Starting to load model /models/Qwen3.5-122B-A10B-FP8...",
    ]
    text = "\n".join(lines) + "\n"
    for shard in range(max(done) + 1):
        for origin, mine, pace in ((head, done[0], 18.0), (worker, done[1], 18.3)):
            if shard <= mine:
                text += f"{origin} {bar(shard, total, pace)}\n"
    return text


def play(run: Run, *, until: str, done: tuple[int, int] = (17, 16)) -> None:
    """Steps and lines of `run` up to (not including) the first step of kind `until`."""
    recorder = Recorder(run, TOKEN)
    phases: dict[str, Any] = {}
    at = run.created_at.timestamp()
    lengths = {"preflight": 4, "clearing": 21, "cluster": 38, "loading": 306, "verifying": 20}
    for stage in run.plan["stages"]:
        for step in stage["steps"]:
            if step["kind"] == until:
                _open(run, recorder, step, stage["phase"], phases, at)
                return
            recorder.begin(step["key"], job_id=f"{run.code}-1" if step["kind"] in ("job", "serve") else "")
            if step["key"].startswith("serve.engine"):
                _engine(recorder, step, done)
            else:
                recorder.note(step["key"], f"{step['title']}: done")
            recorder.finish(step["key"], "succeeded", note=_note(step))
            took = lengths.get(stage["phase"], 5) / max(1, len(stage["steps"]))
            Step.objects.filter(run=run, key=step["key"]).update(started_at=_at(at), ended_at=_at(at + took))
            phases.setdefault(stage["phase"], {"started": at})
            at += took
        if stage["phase"] in phases:
            phases[stage["phase"]]["ended"] = at
    Run.objects.filter(pk=run.pk).update(phase=stage["phase"], phases=phases)


def _open(run: Run, recorder: Recorder, step: dict[str, Any], phase: str, phases: dict[str, Any], at: float) -> None:
    """The step in which the run is now."""
    recorder.begin(step["key"])
    recorder.note(step["key"], "try 6: /v1/models refused, the engine is loading")
    Step.objects.filter(run=run, key=step["key"]).update(started_at=_at(at))
    phases.setdefault(phase, {"started": at})
    phases[phase].pop("ended", None)
    Run.objects.filter(pk=run.pk).update(phase=phase, phases=phases)
    run.refresh_from_db()
    settling.settle(run)


def _note(step: dict[str, Any]) -> str:
    if "ray" in step["key"] and step["kind"] == "wait":
        return "2 nodes, 2.0 GPU"
    return {
        "serve": "detached on spark-1a32, pid 81422",
        "note": step["why"],
        "wait": "as wanted",
        "probe": "as planned",
    }.get(step["kind"], "")


def _engine(recorder: Recorder, step: dict[str, Any], done: tuple[int, int]) -> None:
    reader = VllmReader()
    text = engine_log(done)
    data = text.encode()
    recorder.output(step["key"], offset=0, data=data, ended=False)
    reader.feed(data)
    reading = reader.reading()
    recorder.progress(step["key"], _progress(reading), reading.facts)
    _history(recorder, step, reading, done)


def _history(recorder: Recorder, step: dict[str, Any], reading: Any, done: tuple[int, int]) -> None:
    """The pace of the last five minutes, as if it had been followed all the time."""
    row = recorder.rows[step["key"]]
    now = timezone.now().timestamp()
    history = {}
    for rank, pace in ((0, 18.0), (1, 18.3)):
        last = done[rank]
        history[str(rank)] = [[now - (last - shard) * pace, shard, SHARDS] for shard in range(last + 1)]
    ranks = {
        str(rank): {
            "phase": "loading",
            "overall": 0.8 * last / SHARDS,
            "done": last,
            "total": SHARDS,
            "unit": "shards",
            "seconds_per_item": pace,
            "detail": {},
        }
        for rank, pace, last in ((0, 18.0, done[0]), (1, 18.3, done[1]))
    }
    row.progress = {**row.progress, "ranks": ranks, "history": history}
    row.save(update_fields=["progress"])


def _at(seconds: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)


def finish(run: Run, state: str, *, reason: str | None = None, evidence: str = "") -> None:
    run.refresh_from_db()
    settling.finish(run, state, reason=reason, evidence=evidence)


def ranks_of(deployment: Deployment, run: Run) -> None:
    spec = deployment.revision.spec
    for number, name in enumerate(spec.nodes):
        Rank.objects.update_or_create(
            deployment=deployment,
            number=number,
            defaults={
                "node": Node.objects.get(name=name),
                "revision": deployment.revision,
                "run_id": run.pk,
                "container": f"{spec.container}-r{number}",
                "boot_id": "boot",
                "state": "serving",
                "seen_at": timezone.now(),
            },
        )


def seed() -> Seeded:
    """All of it. Takes about a second."""
    users = people()
    load_shipped()
    inventory.make_credential(EDITOR, name="sparks")
    head = node("spark-1a32", "10.1.230.180")
    earlier(head)
    inventory.store_sheet(head, with_evidence(sheets.head()))
    head.refresh_from_db()
    second = node("spark-5be3", "192.168.200.13", jump=head, sheet=sheets.second())
    away = node("pro6000", "10.1.230.77")
    inventory.not_reached(away, reason="no_route", evidence="No route to host", hop="pro6000")
    Node.objects.filter(pk=away.pk).update(unreachable_since=timezone.now() - timedelta(hours=2, minutes=40))
    look(head, memory(104), sheets.OLD_STACK)
    look(second, memory(17.6), power=9, temp=41)

    lost = create("qwen3.5-122b", nodes=["spark-1a32", "spark-5be3"], container="vllm-qwen35", port=30001)
    good = started(EDITOR, lost, "launch", "util 0.85, OOM killer of Ray off", minutes_ago=170)
    play(good, until="", done=(39, 39))
    Run.objects.filter(pk=good.pk).update(outcome={"smoke": {"verdict": "passed", "budget": 400, "seconds": 6.2}})
    finish(good, "succeeded")
    Run.objects.filter(pk=good.pk).update(ended_at=good.created_at + timedelta(minutes=12, seconds=3))
    ranks_of(lost, good)
    deployment_state.observe(
        lost,
        {
            "state": "lost",
            "reason": "replaced",
            "evidence": "Both nodes rebooted 24 min ago. vllm-cluster.service started vllm_node, vllm_embeddings and reranker, which hold "
            "98 GiB on spark-1a32.",
        },
        settling.newest_attempt(lost),
    )
    Deployment.objects.filter(pk=lost.pk).update(served_at=timezone.now() - timedelta(hours=2, minutes=11))
    record(
        robot("watch"),
        "deployment:lost",
        object_type="deployment",
        object_id=str(lost.pk),
        object_name=lost.name,
        after={"state": "lost", "reason": "replaced"},
    )

    serving = create("qwen3.5-122b-b", nodes=["spark-1a32", "spark-5be3"], container="vllm-b")
    served = started(EDITOR, serving, "launch", "the first good one", minutes_ago=300)
    play(served, until="", done=(39, 39))
    Run.objects.filter(pk=served.pk).update(outcome={"smoke": {"verdict": "passed", "budget": 400, "seconds": 6.2}})
    finish(served, "succeeded")
    ranks_of(serving, served)

    failed = create("qwen3.5-122b-big", nodes=["spark-1a32", "spark-5be3"], container="vllm-big", port=30002)
    failed_run = started(OPERATOR, failed, "launch", "longer contexts", minutes_ago=42)
    play(failed_run, until="ready", done=(39, 39))
    failed_run.refresh_from_db()
    evidence = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB"
    recorder = Recorder(failed_run, TOKEN)
    serve = failed_run.steps.filter(kind="serve").order_by("-ordinal").first()
    if serve is not None:
        recorder.output(
            serve.key,
            offset=recorder.position(serve.key),
            data=f"(EngineCore_DP0 pid=812) {evidence}\n".encode(),
            ended=True,
        )
    ready = failed_run.steps.get(kind="ready")
    recorder.finish(ready.key, "failed", reason="oom_gpu", evidence=evidence)
    finish(failed_run, "failed", reason="oom_gpu", evidence=evidence)

    draft = create("qwen3.5-122b-trial", nodes=["spark-1a32", "spark-5be3"], container="vllm-trial", port=30003)
    relaunch = create("qwen3.5-122b-now", nodes=["spark-1a32", "spark-5be3"], container="vllm-now", port=30004)
    loading = started(OPERATOR, relaunch, "launch", "Sparks were rebooted for the firmware update", minutes_ago=6.35)
    play(loading, until="ready")
    loading.refresh_from_db()
    heartbeat.beat("worker 1", timezone.now())
    for one in (lost, serving, failed, draft, head, second, away, failed_run):
        one.refresh_from_db()
    return Seeded(head, second, away, serving, lost, failed, draft, loading, failed_run, users)
