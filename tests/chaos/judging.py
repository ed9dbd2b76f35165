"""What must be true after a schedule, counted: bytes lost or doubled, what is left behind, states that are not the right ones."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.diagnosis.masking import mask
from tests.chaos.playing import Played
from tests.chaos.schedule import NODES
from tests.chaos.site import Site

SETTLED_S = 60.0  # within which the watch has said what it sees, and pretend containers have gone
PAST = {"launch": "launched", "relaunch": "relaunched", "stop": "stopped"}


@dataclass
class Verdict:
    lost_bytes: int = 0
    duplicated_bytes: int = 0
    orphans: int = 0
    wrong_states: int = 0
    words: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost_bytes or self.duplicated_bytes or self.orphans or self.wrong_states)

    def wrong(self, words: str) -> None:
        self.wrong_states += 1
        self.words.append(words)

    def left(self, words: str) -> None:
        self.orphans += 1
        self.words.append(words)


def must_come(played: Played) -> tuple[tuple[str, str | None], ...]:
    """The ends (state, reason) that this schedule may have; more than one only where two things happened at once.

    A cancel that was accepted comes true. A reboot while the engine loads fails the launch by that name; one that came when the
    run had just ended well changes nothing. Everything else changes nothing at all.
    """
    if played.cancel_accepted_at is not None:
        first = played.rebooted_at is not None and played.rebooted_at < played.cancel_accepted_at
        return (("cancelled", "cancelled"), *((("failed", "rebooted"),) if first else ()))
    if played.rebooted_at is not None:
        return (("failed", "rebooted"),)
    return (("succeeded", None),)


def judge(site: Site, played: Played) -> Verdict:
    verdict = Verdict()
    (played.code,) = site.stack.rows("select code from runs_run where id = ?", played.run)[0]
    _states(site, played, verdict)
    _starts(site, played, verdict)
    for step, job, node, ended in _streams(site, played.run):
        _bytes(site, played, verdict, step, job, node, bool(ended))
    _numbers(site, played.run, verdict)
    _left(site, played, verdict)
    _audit(site, played, verdict)
    return verdict


# States


def _states(site: Site, played: Played, verdict: Verdict) -> None:
    row, wanted = site.row(played.run), must_come(played)
    found = (row["state"], row["reason"])
    if found not in wanted:
        verdict.wrong(f"run {played.run} is {found}, not {' or '.join(map(str, wanted))}: {row['evidence'][:300]}")
        return
    steps = site.stack.rows(
        "select key, state from runs_step where run_id = ? and state in ('waiting', 'running')", played.run
    )
    if steps:
        verdict.wrong(f"run {played.run} ended with open steps: {steps}")
    if row["state"] == "succeeded":
        _settled(site, {"launch": "serving", "relaunch": "serving", "stop": "stopped"}[played.schedule.story], verdict)
    elif row["state"] == "failed":
        again = site.stack.rows("select id from runs_run where second_try_of_id = ?", played.run)
        if again:
            verdict.wrong(f"run {played.run} ended with {row['reason']} and was tried again as {again}")


def _settled(site: Site, state: str, verdict: Verdict) -> None:
    end = time.monotonic() + SETTLED_S
    while (found := site.need(f"deployments/{site.deployment}"))["state"] != state:
        if time.monotonic() > end:
            return verdict.wrong(f"the deployment is {found['state']} ({found['reason']}), not {state}")
        time.sleep(0.5)


def _starts(site: Site, played: Played, verdict: Verdict) -> None:
    """One run for all that was asked at once; who was refused is told by whom."""
    if len(set(played.started)) != 1:
        verdict.wrong(f"one start became the runs {sorted(set(played.started))}")
    for status, answer in played.refused:
        if status != 409 or answer.get("reason") not in ("node_reserved", "plan_changed"):
            verdict.wrong(f"the rival was answered {status} {answer}")


# Bytes


def _streams(site: Site, run: int) -> list[tuple[Any, ...]]:
    return site.stack.rows(
        "select s.id, s.job_id, n.name, coalesce(t.ended, false) from runs_step s "
        "join inventory_node n on n.id = s.node_id "
        "left join runs_stream t on t.step_id = s.id and t.name = 'output' where s.run_id = ? and s.job_id > ''",
        run,
    )


def _bytes(site: Site, played: Played, verdict: Verdict, step: int, job: str, node: str, ended: bool) -> None:
    """What is stored of a job is what it wrote on its node, masked as a whole: no gap, no overlap, the same SHA-256."""
    chunks = site.stack.rows(
        "select c.offset, c.length, c.data from runs_chunk c join runs_stream t on t.id = c.stream_id "
        "where t.step_id = ? and t.name = 'output' order by c.offset",
        step,
    )
    logs = list(site.nodes.root(node).glob(f"home/*/.local/state/sparkweb/jobs/{job}/log"))
    raw = logs[0].read_bytes() if logs else b""  # after the rows: a serving engine goes on to print
    at, stored = 0, []
    for offset, length, data in chunks:
        verdict.lost_bytes += max(0, offset - at)
        verdict.duplicated_bytes += max(0, at - offset)
        if offset != at:
            verdict.words.append(f"{job}: a chunk begins at {offset}, the one before ended at {at}")
        if offset >= at:
            stored.append(bytes(data))
        at = max(at, offset + length)
    # What a serving engine prints after its launch has ended belongs to nobody's run; of all other jobs the whole is stored.
    serves = site.row(played.run)["state"] == "succeeded" and not ended
    if not serves and at != len(raw):
        verdict.lost_bytes += abs(len(raw) - at)
        verdict.words.append(f"{job} on {node}: {len(raw)} bytes were written, {at} are stored")
    whole = mask(raw if not serves else raw[:at])
    if hashlib.sha256(b"".join(stored)).digest() != hashlib.sha256(whole).digest() and at == len(raw[:at]):
        verdict.lost_bytes += sum(a != b for a, b in zip(b"".join(stored), whole, strict=False)) or 1
        verdict.words.append(f"{job} on {node}: the stored bytes are not those of the node's file")


def _numbers(site: Site, run: int, verdict: Verdict) -> None:
    """Chunks and lines of a run are numbered without gap or repetition."""
    rows = site.stack.rows("select seq, first_line, line_count from runs_chunk where run_id = ? order by seq", run)
    seqs, line = [row[0] for row in rows], 1
    if seqs != list(range(1, len(seqs) + 1)):
        verdict.wrong(f"run {run}: chunks are numbered {seqs[:20]} …")
    for seq, first, count in rows:
        if first != line:
            return verdict.wrong(f"run {run}: chunk {seq} begins with line {first}, not {line}")
        line = first + count


# What is left


def _left(site: Site, played: Played, verdict: Verdict) -> None:
    for table in ("runs_reservation", "runs_passing"):
        for row in site.stack.rows(f"select * from {table}"):
            verdict.left(f"{table} holds {row}")
    row = site.row(played.run)
    serves = row["state"] == "succeeded" and played.schedule.story != "stop"
    end = time.monotonic() + SETTLED_S
    while True:
        found = [*_processes(played, serves, site), *_containers(site, played, serves, row["state"])]
        if not found or time.monotonic() > end:
            break
        time.sleep(1)
    for words in found:
        verdict.left(words)
    for node in NODES:
        root = site.nodes.root(node)
        for path in (*root.glob("home/*/.local/state/sparkweb/jobs/*/env.*"), *_locks(root)):
            verdict.left(f"{path.relative_to(root)} is still on {node}")


def _locks(root: Path) -> list[Path]:
    """What says on a node that an installation works there."""
    return [*root.glob("run/lock/sparkweb-*"), *root.glob("tmp/sparkweb-*")]


def _processes(played: Played, serves: bool, site: Site) -> list[str]:
    """Processes of this run's jobs on the nodes that should have ended."""
    stays = set()
    if serves:
        stays = {job for (job,) in site.stack.rows(
            "select job_id from runs_step where run_id = ? and kind = 'serve'", played.run
        )}  # fmt: skip
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        job = next((word.partition(b"=")[2].decode() for word in words if word.startswith(b"SPARKWEB_JOB=")), "")
        if job.startswith(f"{played.code}-") and job not in stays:
            found.append(f"process {name} of job {job} lives")
    return found


def _containers(site: Site, played: Played, serves: bool, state: str) -> list[str]:
    """Containers of this deployment that run: those of this run where it serves, none where it does not."""
    if played.schedule.story == "stop" and state != "succeeded":
        return []  # a stop that was cancelled half way leaves what it had not stopped yet
    found = []
    for node in NODES:
        names = []
        for name, container in site.nodes.state()["nodes"][node]["containers"].items():
            labels = container["labels"]
            if "sparkweb.deployment" not in labels or container["state"] != "running":
                continue
            names.append(name)
            if not serves or labels.get("sparkweb.run") != str(played.run):
                found.append(f"container {name} of run {labels.get('sparkweb.run')} runs on {node}")
        if serves and len(names) != 1:
            found.append(f"{node} runs {names or 'nothing'} of ours")
    return found


# The trail


def _audit(site: Site, played: Played, verdict: Verdict) -> None:
    """What was asked and what came of it, once each; the chain holds."""
    story, state = played.schedule.story, site.row(played.run)["state"]
    rows = site.stack.rows("select action, outcome from audit_entry where run_id = ?", played.run)
    wanted = {
        (f"deployment:{story}", "requested"): 1,
        (f"deployment:{PAST[story]}", "done" if state == "succeeded" else "failed"): 1,
        ("run:cancel", "requested"): 1 if played.cancel_accepted_at is not None else 0,
    }
    for (action, outcome), times in wanted.items():
        found = sum(row == (action, outcome) for row in map(tuple, rows))
        if found != times:
            verdict.wrong(f"the trail has {found} entries {action} {outcome} of run {played.run}, not {times}: {rows}")
    said = json.loads(site.stack.manage("verify_audit"))
    if said.get("ok") is not True:
        verdict.wrong(f"verify_audit: {said}")
