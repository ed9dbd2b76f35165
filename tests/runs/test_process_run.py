"""Whole runs over a real sshd: a program that behaves like vLLM, as a plain process."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import stat
import time
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan import steps
from apps.plan.step import Plan, Stage
from apps.remote.jobs import NodeJobs
from apps.runs import foreign, lines, queries, services, serving, working
from apps.runs.models import Reservation, Run, Step
from apps.shell import Shell
from tests.runs.conftest import ADMIN, OPERATOR, add_node, ended, free_port
from tests.runs.engine import FAKE_VLLM

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def served(worker, openssh, tmp_path):
    node = add_node(openssh.start("spark-1"))
    program = tmp_path / "vllm"
    program.write_text(FAKE_VLLM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}')
    (model / "model.safetensors").write_bytes(b"\0" * 1000)

    def make(**environment: str):
        made = deployments.create(
            ADMIN,
            name="tiny",
            nodes=["spark-1"],
            body={
                "model": "local/tiny",
                "model_path": str(model),
                "runtime": "process",
                "cluster": "single",
                "executable": str(program),
                "served_model_name": "tiny",
                "port": free_port(),
                "api_host": "127.0.0.1",
                "tensor_parallel": 1,
                "environment": sorted(environment.items()),
            },
        )
        ended(services.probe(ADMIN, [node]))
        return made

    yield make
    for step in Step.objects.filter(job_id__gt="").select_related("node"):
        NodeJobs(working.pool().get(inventory.endpoint(step.node))).cancel(step.job_id, grace_s=1.0)


def launch(deployment, story="launch", actor=ADMIN, reason="a test"):
    plan = services.preview(actor, deployment, story=story)
    return services.start(actor, deployment, story=story, digest=plan.digest, reason=reason)


def text_of(run: Run) -> str:
    return "\n".join(line["text"] for line in lines.lines(run, limit=5000)["lines"])


def test_launch_serve_prove_and_stop(served):
    deployment = served()
    run = ended(launch(deployment))
    assert (run.state, run.reason) == ("succeeded", None), (run.evidence, text_of(run))
    deployment.refresh_from_db()
    assert deployment.state == "serving"
    assert run.outcome["smoke"]["verdict"] == "passed" and run.outcome["smoke"]["budget"] > 50
    text = text_of(run)
    assert "8/8" in text and "Application startup complete" in text and "names tiny" in text
    assert queries.rank_progress(run)[0]["done"] == 8
    assert not Reservation.objects.exists()
    numbers = [line["n"] for line in lines.lines(run, limit=5000)["lines"]]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) == lines.stored_lines(run)
    assert [(e.action, e.outcome) for e in Entry.objects.filter(run_id=run.pk).order_by("id")] == [
        ("deployment:launch", "requested"),
        ("deployment:launched", "done"),
    ]
    stop = ended(launch(deployment, story="stop", actor=OPERATOR))
    assert stop.state == "succeeded", (stop.evidence, text_of(stop))
    deployment.refresh_from_db()
    assert deployment.state == "stopped"


def test_the_engine_is_followed_while_it_serves(served):
    deployment = served()
    run = ended(launch(deployment))
    assert run.state == "succeeded", (run.evidence, text_of(run))
    serving.follow()
    before = lines.stored_lines(Run.objects.get(pk=run.pk))
    body = json.dumps({"max_tokens": 60, "messages": []}).encode()
    port = run.plan["spec"]["port"]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/chat/completions", data=body, timeout=10).read()
    for _ in range(50):
        serving.follow()
        found = lines.lines(run, after=before)
        if found["lines"]:
            break
        time.sleep(0.1)
    assert [line["text"][-6:] for line in found["lines"]] == ["200 OK"] and found["serving"]
    assert ended(launch(deployment, story="stop", actor=OPERATOR)).state == "succeeded"
    serving.follow()
    assert not lines.lines(run)["serving"]
    numbers = [line["n"] for line in lines.lines(run, limit=5000)["lines"]]
    assert numbers == list(range(1, len(numbers) + 1))


def job_run(node: str, script: str) -> Run:
    """A run of one job, without a deployment."""
    job = steps.job("work", node, "Work", Shell(script))
    plan = Plan("clear", 0, 0, (node,), (Stage("Work", "preparing", (job,)),))
    run = Run.objects.create(
        code=secrets.token_hex(5),
        story="clear",
        plan=plan.to_json(),
        digest=plan.digest,
        actor_kind="person",
        actor_name="ada",
        actor_role="admin",
    )
    row = Node.objects.get(name=node)
    Step.objects.create(run=run, stage=0, ordinal=0, key="work", node=row, title="Work", kind="job")
    return run


OWN_LOG = "log=$HOME/.local/state/sparkweb/jobs/$SPARKWEB_JOB/log"


def test_a_log_that_is_emptied_by_hand_is_marked_and_the_run_goes_on(worker, openssh):
    add_node(openssh.start("spark-1"))
    script = f"{OWN_LOG}; echo before 1; echo before 2; sleep 2; : > $log; sleep 2; echo after; sleep 1"
    run = ended(job_run("spark-1", script))
    assert run.state == "succeeded", text_of(run)
    found = [line["text"] for line in lines.lines(run)["lines"] if line["step"] == "work"]
    assert [text for text in found if not text.startswith("Work")] == ["before 1", "before 2", "after"]
    assert sum("emptied or replaced" in text for text in found) == 1


def test_a_job_whose_output_was_lost_to_a_full_disk_has_not_succeeded(worker, openssh):
    add_node(openssh.start("spark-1"))
    run = ended(
        job_run("spark-1", f"{OWN_LOG}; echo something; : > ${{log%log}}log.lost")
    )  # what the keeper leaves then
    assert (run.state, run.reason) == ("failed", "disk_full"), text_of(run)
    assert "a part of the output was lost" in run.evidence and "the disk there is full" in text_of(run)


def test_a_dying_engine_is_named_by_its_first_cause(served):
    run = ended(launch(served(FAKE_DIES="1")))
    assert (run.state, run.reason) == ("failed", "oom_gpu"), (run.evidence, text_of(run))
    assert "CUDA out of memory" in run.evidence
    run.deployment.refresh_from_db()
    assert (run.deployment.state, run.deployment.reason) == ("failed", "oom_gpu")
    assert not Reservation.objects.exists()


def test_what_one_more_try_can_help_is_tried_once_more_and_not_twice(served):
    """The table says of `exited`: once, then stop."""
    deployment = served(FAKE_DIES="silently")
    first = ended(launch(deployment, actor=OPERATOR, reason="for the demo"))
    assert (first.state, first.reason) == ("failed", "exited"), (first.evidence, text_of(first))
    second = Run.objects.get(second_try_of=first)
    assert (second.story, second.revision_id, second.actor_name) == ("relaunch", first.revision_id, "otto")
    assert second.why == f"Second try of run {first.pk}, which ended with: Engine ended. for the demo"
    again = ended(second)
    assert (again.state, again.reason) == ("failed", "exited"), (again.evidence, text_of(again))
    assert not Run.objects.filter(pk__gt=second.pk).exists() and not Reservation.objects.exists()
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason) == ("failed", "exited")
    entry = Entry.objects.get(run_id=second.pk, outcome="requested")
    assert entry.actor_name == "otto" and entry.after["second_try_of"] == first.pk


def test_a_second_try_can_end_well(served):
    deployment = served(FAKE_DIES="silently once")
    first = ended(launch(deployment))
    assert (first.state, first.reason) == ("failed", "exited"), (first.evidence, text_of(first))
    second = ended(Run.objects.get(second_try_of=first))
    assert (second.state, second.reason) == ("succeeded", None), (second.evidence, text_of(second))
    deployment.refresh_from_db()
    assert deployment.state == "serving"


def test_no_second_try_over_what_was_changed_since(served):
    """Why there is none is said; the end of the first holds."""
    deployment = served(FAKE_DIES="silently")
    run = launch(deployment)
    body = {key: value for key, value in deployment.revision.spec.to_json().items() if key not in ("name", "nodes")}
    deployments.revise(
        ADMIN, deployment, body={**body, "port": body["port"] + 1}, nodes=["spark-1"], reason="other port"
    )
    run = ended(run)
    assert (run.state, run.reason) == ("failed", "exited"), (run.evidence, text_of(run))
    assert not Run.objects.filter(second_try_of=run).exists()
    assert run.outcome["second_try"].endswith("has a newer revision. Relaunch it to use that one.")


def test_cancel_ends_the_process_tree(served):
    run = launch(served(FAKE_PACE="30"))
    until = time.monotonic() + 30
    while "0/8" not in text_of(run) and time.monotonic() < until:
        time.sleep(0.2)
    services.cancel(OPERATOR, run, reason="wrong model")
    run = ended(run)
    assert run.state == "cancelled"
    job = run.steps.get(kind="serve").job_id
    found = [pid for pid in os.listdir("/proc") if pid.isdigit() and job.encode() in _environ(pid)]
    assert found == []
    run.deployment.refresh_from_db()
    assert (run.deployment.state, run.deployment.reason) == ("stopped", "cancelled")


def test_an_engine_that_is_killed_with_its_keeper_is_said_to_be_killed(served):
    """No exit code is left, and the kernel says nothing of memory: what is known is told, and one more try begins."""
    run = launch(served(FAKE_PACE="30"))
    until = time.monotonic() + 30
    while "0/8" not in text_of(run) and time.monotonic() < until:
        time.sleep(0.2)
    job = run.steps.get(kind="serve").job_id
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and job.encode() in _environ(pid) + _words(pid)]
    assert len(pids) >= 2
    for pid in sorted(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run = ended(run)
    assert (run.state, run.reason) == ("failed", "exited"), (run.evidence, text_of(run))
    assert "is gone without an exit code (killed)" in run.evidence and "0/8" in run.evidence
    second = Run.objects.get(second_try_of=run)
    services.cancel(ADMIN, second)
    assert ended(second).state == "cancelled"


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _environ(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_a_second_launch_names_the_holder(served):
    deployment = served(FAKE_PACE="20")
    first = launch(deployment)
    with pytest.raises(Refused) as no:
        launch(deployment, actor=OPERATOR)
    assert no.value.reason == "node_reserved" and f"run {first.pk}" in no.value.detail and "ada" in no.value.detail
    services.cancel(ADMIN, first)
    ended(first)


def test_plan_changed_and_missing_reason(served):
    deployment = served()
    with pytest.raises(Refused) as no:
        services.start(ADMIN, deployment, story="launch", digest="0" * 64, reason="x")
    assert no.value.reason == "plan_changed" and no.value.status == 409
    assert no.value.extra["digest"] == services.preview(ADMIN, deployment).digest
    with pytest.raises(Refused) as no:
        services.start(ADMIN, deployment, story="relaunch", digest="0" * 64, reason="  ")
    assert no.value.field == "reason"
    assert not Run.objects.filter(story__in=("launch", "relaunch")).exists()


def test_the_same_idempotency_key_is_the_same_run(served):
    deployment = served()
    plan = services.preview(ADMIN, deployment)
    runs = [
        services.start(ADMIN, deployment, story="launch", digest=plan.digest, reason="x", idempotency_key="abc")
        for _ in range(2)
    ]
    assert runs[0].pk == runs[1].pk
    ended(runs[0])


def test_a_starting_worker_takes_over_from_a_dead_one_of_its_machine_at_once(transactional_db):
    run = Run.objects.create(
        code="abc", story="probe", actor_kind="person", actor_name="ada", actor_role="admin", state="failed"
    )
    later = timezone.now() + timedelta(seconds=600)
    host = socket.gethostname()
    for owner, released in ((f"{host}:999999999", 1), (f"{host}:{os.getpid()}", 0), ("elsewhere:999999999", 0)):
        Run.objects.filter(pk=run.pk).update(state="running", lease_owner=owner, lease_until=later, lease_token="x")
        assert working.release_dead() == released
        run.refresh_from_db()
        assert (run.lease_until < timezone.now()) == bool(released)
        Run.objects.filter(pk=run.pk).update(state="failed", lease_until=None)


def test_what_a_run_leaves_is_known_at_its_end(served):
    """A launch after a stop is planned from what is there, not from what the last probe saw."""
    deployment = served()
    before = inventory.latest_sheet(Node.objects.get())
    assert ended(launch(deployment)).state == "succeeded"
    serving = inventory.latest_sheet(Node.objects.get())
    assert serving.taken_at > before.taken_at
    port = deployment.revision.spec.port
    assert port in {one.port for one in serving.listeners} and port not in {one.port for one in before.listeners}
    assert ended(launch(deployment, story="stop")).state == "succeeded"
    assert port not in {one.port for one in inventory.latest_sheet(Node.objects.get()).listeners}


def test_another_installation_on_the_node_is_named_and_nothing_is_changed(served, openssh):
    """Its file is found before anything is done; a probe works beside it; ours is gone after every run."""
    deployment = served()
    locks = openssh.folder / "spark-1" / "home"
    theirs = locks / "sparkweb-bbbb2222.lock"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    theirs.write_text(f"sparkweb 1 bbbb2222 run9 {boot} 1700000000 launch of glm, run 3 of bea, http://10.0.0.9\n")
    run = ended(launch(deployment))
    assert (run.state, run.reason) == ("failed", "foreign_installation"), (run.evidence, text_of(run))
    assert "launch of glm, run 3 of bea, http://10.0.0.9" in run.evidence and "2023-11-14" in run.evidence
    assert not run.steps.filter(job_id__gt="").exists() and Node.objects.get().unreachable_since is None
    assert not Run.objects.filter(second_try_of=run).exists()
    assert ended(services.probe(ADMIN, [Node.objects.get()])).state == "succeeded"
    assert str(theirs) in run.evidence
    lives = ended(foreign.unlock(ADMIN, Node.objects.get(), reason="is it gone?"))
    assert (lives.state, lives.reason) == ("failed", "foreign_installation"), (lives.evidence, text_of(lives))
    assert theirs.exists() and str(theirs) in lives.evidence
    os.utime(theirs, (time.time() - 200,) * 2)
    unlocked = ended(foreign.unlock(ADMIN, Node.objects.get(), reason="it is gone"))
    assert unlocked.state == "succeeded" and f"removed {theirs}: launch of glm, run 3 of bea" in text_of(unlocked)
    trail = Entry.objects.filter(run_id=unlocked.pk).order_by("id").values_list("action", "outcome", "reason")
    assert list(trail) == [("node:unlock", "requested", "it is gone"), ("node:unlocked", "done", "it is gone")]
    assert ended(launch(deployment)).state == "succeeded"
    assert list(locks.glob("sparkweb-*.lock")) == []
