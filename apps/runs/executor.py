"""Carries a stored plan out: observe, decide, act, verify, step by step. No Django: it sees a Journal and the doors to nodes.

One Executor works on one run in slices. Everything it needs to go on stands in the journal, so another process may take over at any
instruction. SSH happens in one thread a node; the journal is only touched by the thread that called `work`.
"""

from __future__ import annotations

import random
import secrets as entropy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from apps.diagnosis import api
from apps.diagnosis.explaining import explain
from apps.diagnosis.findings.holders import survivors
from apps.diagnosis.readers import reader_of
from apps.diagnosis.reading import Reader, Reading
from apps.diagnosis.reasons import REASONS, TRANSIENT
from apps.facts import probe
from apps.facts.sheet import Sheet
from apps.plan import gates, proofs
from apps.plan.step import Plan, Step
from apps.remote.transport import (
    AccessDenied,
    CannotReach,
    ConnectionLost,
    HttpAnswer,
    HttpFailed,
    JobLook,
    Jobs,
    KeyProblem,
    RemoteError,
    Result,
    Transport,
)
from apps.runs import proving, sampling
from apps.shell import Command, pipe

ROUND_S = 0.4  # between two looks
GIVE_UP_S = 1800.0  # a node with a job of ours on it is looked for this long
AWAY_DELAYS_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # then every 15 s
PROBE_TIMEOUT_S = 60.0
PROBE_TRIES = 3  # of a node that was too busy to answer something that plans rest on
MEETING_SILENCE_S = 360.0  # NCCL needs seconds; SGLang's own watchdog ends a rank after 300 s, which says more
NEEDED = ("machine", "memory", "gpu-query", "docker", "containers", "images", "addresses", "fabric", "models")
LOOK_LIMIT = 1 << 20  # bytes of a job's log in one look
SMOKE_TRIES = 3
SMOKE_LARGEST = 4096  # tokens
DEAD_LOOKS = 3
SILENT_DEATHS = ("exited", "rank_lost", "ray_ended", "container_killed")
FROM_OUTSIDE = ("137", "143")  # exit codes of docker kill and docker stop
OUT_OF_SIGHT = (
    CannotReach,
    KeyProblem,
    AccessDenied,
    ConnectionLost,
)  # the others are answers of a node that was reached
CLEAN_WITHIN_S = 120.0  # after which a launch that has failed ends even so
LAST_LOOK_S = (
    300.0  # how long a launch that has failed waits for nodes out of sight: what ended it, and to clean up there
)
CHANGES_ENGINES = ("launch", "relaunch")
OF_A_SERVICE = ("cluster", "loading", "verifying")  # phases of one service; what comes before is done for all of them
FLOOR = "os_floor_reached"
LOCKED = (401, 403)
# these work beside whatever else is done on a node
BESIDE = ("probe", "scan", "unlock", "smoke", "benchmark", "fetch", "copy", "verify", "remove")
ASKS_ON = ("smoke",)  # a question that failed keeps no other from being asked
CHANGES_NOTHING = ("probe", "smoke", "benchmark")
HOLD_EVERY_S = 60.0
LET_GO_WITHIN_S = 20.0


class CancelAsked(Exception):
    """Somebody asked for the end just now, so no other end may be written: the nodes are to be cleaned first."""


class Journal(Protocol):
    """What the executor needs to remember; apps.runs.recorder.Recorder is the body. Any call may raise when the lease is lost."""

    def state(self, key: str) -> str: ...
    def started_at(self, key: str) -> float: ...
    def job_id(self, key: str) -> str: ...
    def begin(self, key: str, *, job_id: str = "") -> None: ...
    def finish(
        self, key: str, state: str, *, reason: str | None = None, evidence: str = "", note: str = ""
    ) -> None: ...
    def progress(self, key: str, progress: Mapping[str, Any], facts: Mapping[str, Any]) -> None: ...
    def phase(self, phase: str) -> None: ...
    def position(self, key: str) -> int: ...
    def drained(self, key: str) -> bool: ...
    def stored(self, key: str) -> Iterator[bytes]: ...
    def output(self, key: str, *, offset: int, data: bytes, ended: bool) -> list[bytes]: ...
    def befell(self, key: str, what: str) -> bool: ...
    def note(self, key: str, text: str) -> None: ...
    def tail(self, key: str, *, limit: int = 20) -> list[str]: ...
    def sheet(self, node: str, sheet: Sheet) -> None: ...
    def reached(self, node: str) -> None: ...
    def not_reached(self, node: str, *, reason: str, evidence: str, hop: str) -> None: ...
    def outcome(self, **values: Any) -> None: ...
    def sampled(self, points: sampling.Curves, kernel: Sequence[Mapping[str, Any]]) -> None: ...
    def cancel_asked(self) -> bool: ...
    def earlier_job(self, step: Step) -> str: ...
    def recall(self, key: str, name: str, default: int) -> int: ...
    def remember(self, key: str, name: str, value: int) -> None: ...
    def reason_of(self, key: str) -> tuple[str, str]: ...
    def end(self, state: str, *, reason: str | None = None, evidence: str = "") -> None:
        """Raises CancelAsked for any other end than cancelled, once somebody asked for that."""
        ...


class Doors(Protocol):
    """Transports and jobs by node name; warm between calls. Both may raise RemoteError."""

    def transport(self, node: str) -> Transport: ...
    def jobs(self, node: str) -> Jobs: ...
    def opened_with(self, node: str, password: str) -> Transport:
        """A connection of its own that was let in by a password; whoever asks for it closes it."""
        ...

    def renew(self, node: str) -> None:
        """The next transport of this node is a new login."""
        ...

    def hold(self, node: str) -> None:
        """Say on the node that this run works there, or go on saying so. Raises NodeHeld when another installation does."""
        ...

    def let_go(self, node: str) -> None: ...


VALUE = "sparkweb-value: "  # begins the line of a job's output that later steps may take


@dataclass
class Seen:
    """What one round on one node brought; made in the node's thread, applied in the executor's."""

    looks: dict[str, JobLook] = field(default_factory=dict)  # by step key
    offsets: dict[str, int] = field(default_factory=dict)  # from which each was asked
    started: JobLook | None = None
    answer: Any = None  # of the active step: Judged, Sheet, HttpAnswer, HttpFailed
    sample: sampling.Sample | None = None
    trouble: RemoteError | None = None


@dataclass
class Away:
    since: float
    tries: int
    next_at: float
    hidden: bool = True  # not reached; else it answered, and said no


class Executor:
    """`code` begins the ids of this run's job folders; `environment_of(step)` gives a job's variables, secrets among them;
    `model_paths` are folders by node that a probe looks into besides the usual ones; `peers` are, by node, the lines
    `INTERFACE ADDRESS` to which it sends a full frame."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        doors: Doors,
        *,
        run_id: int,
        code: str,
        environment_of: Callable[[Step], Mapping[str, str]],
        model_paths: Mapping[str, Sequence[str]] | None = None,
        peers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.plan, self.journal, self.doors = plan, journal, doors
        self.run_id, self.code, self.environment_of = run_id, code, environment_of
        self.model_paths, self.peers = model_paths or {}, peers or {}
        self.ordinals = {step.key: n for n, step in enumerate(s for stage in plan.stages for s in stage.steps)}
        self.readers: dict[str, Reader] = {}
        self.away: dict[str, Away] = {}
        self.last_try: dict[str, float] = {}
        self.launched: set[str] = set()
        self.said: dict[str, str] = {}
        self.made_at = time.monotonic()
        self.moved_at: dict[str, float] = {}  # by service: when its log or its steps moved last, by the same clock
        self.looking: dict[str, tuple[Step | None, Future[Seen]]] = {}  # by node: one look at a time
        self.held: dict[str, float] = {}  # node -> when we last said there that we work on it
        self.cleaning: dict[str, Future[None]] = {}
        self.clean: set[str] = set()
        self.failed_at: float | None = None
        self.why: tuple[str, str] | None = None  # reason and evidence of a run that has failed
        self.dead: dict[str, int] = {}
        self.killed_before: dict[
            str, set[tuple[str, int | None]]
        ] = {}  # node -> whom the kernel had ended before this run
        self.floors = sampling.floors(plan)
        self.sampled_at: dict[str, float] = {}
        self.curves: dict[str, list[sampling.Point]] = {}  # node -> memory that is available, for as long as we know it
        self.unsaid: dict[str, list[sampling.Point]] = {}  # of these what the journal does not have yet
        self.kernel: dict[str, set[str]] = {}  # node -> lines that were in its log already
        self.reported: list[dict[str, Any]] = []  # findings of the kernel's log that the journal does not have yet
        self.saved_at = time.monotonic()
        self._pool = ThreadPoolExecutor(
            max_workers=max(4, min(64, 2 * len(plan.nodes))), thread_name_prefix=f"run{run_id}"
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # The loop

    def work(self, until: float, *, leave: Callable[[], bool] = lambda: False) -> bool:
        """Go on until `until` (time.monotonic seconds), or until `leave` says so. True when the run has ended."""
        while True:
            try:
                if self._cancel() if self.journal.cancel_asked() else self._advance_stage():
                    return True
            except CancelAsked:
                continue
            if time.monotonic() >= until or leave():
                return False
            if self.journal.cancel_asked() or not self._round():
                time.sleep(ROUND_S)

    def _advance_stage(self) -> bool:
        """Enter the next stage when one is done; end the run after the last or after a failure. True when the run has ended."""
        for stage in self.plan.stages:
            states = [self.journal.state(step.key) for step in stage.steps]
            failed = [step for step, state in zip(stage.steps, states, strict=True) if state == "failed"]
            if all(state == "succeeded" for state in states):
                continue
            if failed and not self._unfinished(stage.steps):
                return self._fail(failed)
            self.journal.phase(stage.phase)
            return False
        self._drain()
        self._save_samples()
        self._end("succeeded")
        return True

    def _unfinished(self, steps: Sequence[Step]) -> list[Step]:
        """Steps that can still move: on each node, the first that is neither done nor behind a failed one."""
        active = []
        for node in dict.fromkeys(step.node for step in steps):
            for step in (s for s in steps if s.node == node):
                state = self.journal.state(step.key)
                if state == "succeeded" or (state == "failed" and self.plan.story in ASKS_ON):
                    continue
                if state in ("waiting", "running"):
                    active.append(step)
                break
        return active

    def _active(self) -> dict[str, Step]:
        for stage in self.plan.stages:
            if any(self.journal.state(step.key) != "succeeded" for step in stage.steps):
                return {step.node: step for step in self._unfinished(stage.steps)}
        return {}

    def _followed(self, node: str) -> list[Step]:
        """Steps on this node whose job may still print: long-lived ones, and a started ordinary job."""
        return [
            step
            for stage in self.plan.stages
            for step in stage.steps
            if step.node == node
            and step.kind in ("job", "serve")
            and self.journal.job_id(step.key)
            and not self.journal.drained(step.key)
        ]

    def _round(self) -> bool:
        """True when a node has more output than one look takes: the next round shall not wait."""
        active = self._active()
        now = time.time()
        for step in active.values():
            if self.journal.state(step.key) == "waiting":
                self._begin(step)
        for node in dict.fromkeys([*active, *self._nodes_followed()]):
            away = self.away.get(node)
            if node in self.looking or (away is not None and now < away.next_at):
                continue
            at_work = active.get(node)
            due = self._due(at_work)
            self.looking[node] = (
                at_work,
                self._pool.submit(self._look, node, due, self._asked(node), self._taken(due), self._sample_due(node)),
            )
        wait([future for _, future in self.looking.values()], timeout=ROUND_S)
        return self._apply_what_came()

    def _apply_what_came(self) -> bool:
        """A node that takes its time keeps nobody else waiting. True when one has more output than one look takes."""
        behind = False
        for node, (at_work, future) in list(self.looking.items()):
            if future.done():
                del self.looking[node]
                seen = future.result()
                self._apply(node, at_work, seen)
                behind = behind or any(len(look.data) == LOOK_LIMIT for look in seen.looks.values())
        if time.monotonic() - self.saved_at > sampling.EVERY_S:
            self._save_samples()
        return behind

    def _asked(self, node: str) -> list[tuple[str, str, int]]:
        return [(s.key, self.journal.job_id(s.key), self.journal.position(s.key)) for s in self._followed(node)]

    def _nodes_followed(self) -> list[str]:
        return [node for node in self.plan.nodes if self._followed(node)]

    def _begin(self, step: Step) -> None:
        if step.kind == "note":
            self.journal.begin(step.key)
            self.journal.finish(step.key, "succeeded", note=step.why)
            return
        job_id = f"{self.code}-{self.ordinals[step.key]}" if step.kind in ("job", "serve") else ""
        self.journal.begin(step.key, job_id=job_id)
        self.moved_at[step.service] = time.monotonic()

    def _due(self, step: Step | None) -> Step | None:
        """The step, if its next try is due."""
        if step is None or self.journal.state(step.key) != "running":
            return None
        if time.time() - self.last_try.get(step.key, 0.0) < step.every_s and (
            step.kind in ("wait", "ready", "smoke") or step.gate.get("waits")
        ):
            return None
        self.last_try[step.key] = time.time()
        return step

    def _taken(self, step: Step | None) -> dict[str, str]:
        """What a job takes from the output of earlier steps."""
        wanted = step.gate.get("takes", {}) if step is not None and step.kind == "job" else {}
        made = {}
        for variable, key in wanted.items():
            said = [line.removeprefix(VALUE) for line in self.journal.tail(key) if line.startswith(VALUE)]
            made[variable] = said[-1] if said else ""
        return made

    # In the node's thread: only SSH

    def _look(
        self,
        node: str,
        step: Step | None,
        asked: list[tuple[str, str, int]],
        taken: Mapping[str, str] | None = None,
        sample: bool = False,
    ) -> Seen:
        seen = Seen()
        try:
            if asked or (step is not None and step.kind != "key"):  # before that nobody comes in
                self._hold(node)
            if step is not None and step.kind in ("job", "serve") and step.key not in self.launched:
                seen.started = self.doors.jobs(node).start(
                    self.journal.job_id(step.key),
                    step.script,
                    environment={**self.environment_of(step), **(taken or {})},
                    max_seconds=None if step.kind == "serve" else int(max(step.within_s, 60)) * 2,
                )
            if asked:
                looks = self.doors.jobs(node).look([(job_id, offset) for _, job_id, offset in asked], limit=LOOK_LIMIT)
                seen.looks = {key: look for (key, _, _), look in zip(asked, looks, strict=True)}
                seen.offsets = {key: offset for key, _, offset in asked}
            if sample:
                asked_of = self.doors.transport(node)
                seen.sample = sampling.read(asked_of.run(sampling.QUESTION, timeout_s=sampling.WITHIN_S))
            if step is not None and step.kind not in ("job", "serve"):
                seen.answer = self._ask(node, step)
        except RemoteError as trouble:
            seen.trouble = trouble
        return seen

    def _hold(self, node: str) -> None:
        if self.plan.story not in BESIDE and time.time() - self.held.get(node, 0.0) > HOLD_EVERY_S:
            self.doors.hold(node)
            self.held[node] = time.time()

    def _let_in(self, node: str, step: Step) -> Result:
        """Open the door with the password of this run, put our key in, and see that the key opens it now."""
        first = self.doors.opened_with(node, self.environment_of(step).get("SPARKWEB_PASSWORD", ""))
        try:
            result = first.run(step.script, timeout_s=30.0)
        finally:
            first.close()
        if result.ok:
            self.doors.renew(node)
            self.doors.transport(node).run("true", timeout_s=30.0)
        return result

    def _ask(self, node: str, step: Step) -> Any:
        if step.kind == "key":
            return self._let_in(node, step)
        if step.kind == "probe":
            if step.gate.get("fresh"):
                self.doors.renew(node)
            return self._sheet(node, time.time())
        transport = self.doors.transport(node)
        if step.kind == "wait":
            return transport.run(step.script, timeout_s=30.0)
        if step.kind == "end":
            return self._end_job(node, step)
        try:
            shown = _key_shown(step, self.environment_of(step))
            if step.kind == "ready" or step.gate.get("ask") == proofs.MODELS:
                return transport.http("GET", step.url, timeout_s=10.0, headers=shown)
            url, body = self._proof_url(step), self._question(step)
            headers = {"Content-Type": "application/json", **shown}
            if step.gate.get("ask") == proofs.STREAMED:
                return proving.streamed(transport, url, body=body, headers=headers)
            return transport.http("POST", url, body=body, timeout_s=120.0, headers=headers)
        except HttpFailed as problem:
            return problem

    def _question(self, step: Step) -> bytes:
        """What is posted now; nothing where models are asked for."""
        ask = str(step.gate.get("ask", ""))
        if ask == proofs.MODELS:
            return b""
        budget = self.journal.recall(step.key, "budget", step.max_tokens)
        return proofs.body(_kind(step), step.model, url=self._proof_url(step), max_tokens=budget, ask=ask)

    def _proof_url(self, step: Step) -> str:
        """Where the proof is asked for now: the next one where the last did not know the path."""
        urls = [step.url, *step.gate.get("urls", ())]
        return str(urls[min(self.journal.recall(step.key, "path", 0), len(urls) - 1)])

    def _end_job(self, node: str, step: Step) -> JobLook | None:
        job_id = self.said.get(f"job {step.key}", "")
        return self.doors.jobs(node).cancel(job_id) if job_id else None

    # In the executor's thread

    def _apply(self, node: str, step: Step | None, seen: Seen) -> None:
        if seen.trouble is not None:
            self._lost_sight(node, step, seen.trouble)
            return
        if self.away.pop(node, None) is not None:
            self.journal.reached(node)
            self._say(step, f"{node} answers again")
        self._take_outputs(seen)
        if seen.sample is not None:
            self._take_sample(node, seen.sample)
        if step is None or self.journal.state(step.key) != "running":
            return
        if step.kind in ("job", "serve"):
            if seen.started is not None:
                self.launched.add(step.key)
            self._judge_job(step, seen.looks.get(step.key) or seen.started)
        elif step.kind == "ready":
            self._judge_ready(step, seen.answer)
        elif step.kind == "end":
            self._judge_end(step, seen.answer)
        elif seen.answer is not None and step.kind == "probe":
            self._judge_probe(step, seen.answer)
        elif seen.answer is not None and step.kind == "wait":
            self._judge_wait(step, seen.answer)
        elif seen.answer is not None and step.kind == "key":
            self._judge_key(step, seen.answer)
        elif seen.answer is not None and step.kind == "smoke":
            self._judge_smoke(step, seen.answer)

    def _lost_sight(self, node: str, step: Step | None, trouble: RemoteError) -> None:
        now = time.time()
        away = self.away.get(node) or Away(since=now, tries=0, next_at=now)
        reason = REASONS.get(trouble.reason)
        transient = reason is not None and reason.retry == TRANSIENT
        asks = step is not None and (step.kind in ("wait", "ready", "smoke", "end") or bool(step.gate.get("waits")))
        at_work = bool(self._followed(node)) or asks
        delays = AWAY_DELAYS_S if at_work else (reason.delays_s if reason else ())
        if self.plan.story == "probe":
            delays, at_work = (), False
        self._note_unreachable(node, trouble)
        patience = step.within_s if step is not None and step.gate.get("waits") else GIVE_UP_S
        gone = away.tries >= len(delays) if not at_work else now - away.since > patience
        if not transient or gone:
            self.away.pop(node, None)
            since = f"no sight of {node} for {_duration(now - away.since)}; " if away.tries else ""
            for lost in [step] if step is not None else [s for s in self._followed(node)]:
                if self.journal.state(lost.key) == "running":
                    self.journal.finish(
                        lost.key, "failed", reason=trouble.reason, evidence=f"{since}{trouble.hop}: {trouble.evidence}"
                    )
            if step is None:
                hidden = isinstance(trouble, OUT_OF_SIGHT)
                self.away[node] = Away(away.since, away.tries + 1, now + 15.0, hidden)
            return
        delay = delays[min(away.tries, len(delays) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self.away[node] = Away(away.since, away.tries + 1, now + delay)
        self._say(
            step,
            f"no sight of {trouble.hop or node} ({trouble.reason}: {trouble.evidence.strip()[:160]}); "
            f"nothing there was changed, trying again",
        )

    def _note_unreachable(self, node: str, trouble: RemoteError) -> None:
        if isinstance(trouble, OUT_OF_SIGHT):
            self.journal.not_reached(node, reason=trouble.reason, evidence=trouble.evidence, hop=trouble.hop)

    def _say(self, step: Step | None, text: str) -> None:
        if step is not None and self.said.get(step.key) != text:
            self.said[step.key] = text
            self.journal.note(step.key, text)

    # Memory and the kernel's log while an engine loads

    def _sample_due(self, node: str) -> bool:
        """Every few seconds; at every look once little is left."""
        if self.plan.story not in CHANGES_ENGINES or not any(step.node == node for step in self._served()):
            return False
        floor, last = self.floors.get(node, 0), self.curves.get(node)
        near = bool(floor and last and last[-1][1] < floor * sampling.NEAR)
        now = time.monotonic()
        if not near and now - self.sampled_at.get(node, -sampling.EVERY_S) < sampling.EVERY_S:
            return False
        self.sampled_at[node] = now
        return True

    def _sample_once_more(self) -> None:
        """What the kernel had to say about an end may be younger than the last sample."""
        nodes = {step.node for step in self._served()} - set(self.away) if self.plan.story in CHANGES_ENGINES else set()
        looks = {node: self._pool.submit(self._sample, node) for node in nodes if node in self.kernel}
        wait(looks.values(), timeout=sampling.WITHIN_S)
        for node, look in looks.items():
            sample = look.result() if look.done() else None
            if sample is not None:
                self._take_sample(node, sample)

    def _sample(self, node: str) -> sampling.Sample | None:
        """In the node's thread."""
        try:
            return sampling.read(self.doors.transport(node).run(sampling.QUESTION, timeout_s=sampling.WITHIN_S))
        except RemoteError:
            return None

    def _take_sample(self, node: str, sample: sampling.Sample) -> None:
        if sample.available is not None:
            self._remember_memory(node, sample.available)
        before = self.kernel.setdefault(node, set(sample.lines))
        serve = next((step for step in self._served() if step.node == node), None)
        for line in sample.lines:
            if line in before or serve is None:
                continue
            before.add(line)
            found = sampling.finding(line)
            self.reported.append(
                {"node": node, "name": found.name, "title": found.title, "line": line, "at": time.time()}
            )
            self.journal.note(serve.key, f"the kernel of {node}: {line}")
        floor = self.floors.get(node, 0)
        if sample.available is not None and sample.available < floor:
            self._stop_before_it_freezes(node, sample.available, floor)

    def _remember_memory(self, node: str, available: int) -> None:
        point = [round(time.time(), 1), available]
        curve = self.curves.setdefault(node, [])
        curve.append(point)
        del curve[: -sampling.MOST_POINTS]
        self.unsaid.setdefault(node, []).append(point)

    def _save_samples(self) -> None:
        self.saved_at = time.monotonic()
        if self.unsaid or self.reported:
            self.journal.sampled(self.unsaid, self.reported)
            self.unsaid, self.reported = {}, []

    def _stop_before_it_freezes(self, node: str, available: int, floor: int) -> None:
        """A machine whose memory is the GPU's too does not kill anybody in time: it hangs, and needs somebody at its power switch."""
        step = next(iter(step for step in self._active().values() if self.journal.state(step.key) == "running"), None)
        if step is None:
            return
        gib = sampling.GIB
        evidence = f"{node}: {available / gib:.1f} GiB left while the engine loads, below {floor / gib:.1f} GiB"
        before = sampling.in_words(self.curves.get(node, ()))
        self.journal.finish(
            step.key, "failed", reason=FLOOR, evidence=f"{evidence}; it was {before}" if before else evidence
        )

    # Output of jobs

    def _step(self, key: str) -> Step:
        return next(s for stage in self.plan.stages for s in stage.steps if s.key == key)

    def _reader(self, key: str) -> Reader | None:
        reader = reader_of(self._step(key).follows) if key not in self.readers else None
        if reader is not None:
            for data in self.journal.stored(key):
                reader.feed(data)
            self.readers[key] = reader
        return self.readers.get(key)

    def _take_outputs(self, seen: Seen) -> None:
        for key, look in seen.looks.items():
            if seen.offsets[key] == self.journal.position(key) and not self.journal.drained(key):
                self._take_output(key, look)

    def _take_output(self, key: str, look: JobLook) -> None:
        """A look from the position that is wanted now; what another look brought already is not taken twice."""
        shrunk = look.note == "log_shrunk" and look.state != "running"
        befell = "log_gone" if shrunk or look.state == "missing" else look.note
        if befell:
            self.journal.befell(key, befell)
        if befell == "log_shrunk":
            return  # the next look begins at the file's new beginning
        reader = self._reader(key)  # before new output is stored, so that it is not read twice
        position = self.journal.position(key)
        whole = position + len(look.data) >= look.size
        ended = look.state in ("exited", "lost", "missing") and whole
        stored = self.journal.output(key, offset=position, data=look.data, ended=ended)
        if look.data:
            self.moved_at[self._step(key).service] = time.monotonic()
        if reader is not None and stored:
            for data in stored:
                reader.feed(data)
            reading = reader.reading()
            self.journal.progress(key, _progress(reading), reading.facts)
        if ended:
            self.said[f"exit {key}"] = (
                str(look.exit_code) if look.exit_code is not None else (look.reason or look.state)
            )
            if look.reason == "rebooted":
                self.journal.remember(key, "rebooted", 1)

    def _judge_job(self, step: Step, look: JobLook | None) -> None:
        if look is None:
            return
        if step.kind == "serve":
            if look.state in ("running", "exited"):
                self.journal.finish(
                    step.key, "succeeded", note=f"detached on {step.node}, pid {look.pid}" if look.pid else "detached"
                )
            elif look.state in ("lost", "missing"):
                self.journal.finish(step.key, "failed", reason=_lost(look), evidence=_gone(step, look))
            return
        if look.state == "exited" and self.journal.drained(step.key):
            tail = self.journal.tail(step.key)
            if look.exit_code == 0 and look.note == "log_lost":
                evidence = f"exit code 0, but the disk of {step.node} is full and a part of the output was lost"
                self.journal.finish(step.key, "failed", reason="disk_full", evidence=evidence)
            elif look.exit_code == 0:
                self.journal.finish(step.key, "succeeded", note=tail[-1] if tail else "")
            else:
                reason, evidence = _why_failed(tail, look.exit_code)
                self.journal.finish(step.key, "failed", reason=reason, evidence=evidence)
        elif look.state in ("lost", "missing"):
            self.journal.finish(step.key, "failed", reason=_lost(look), evidence=_gone(step, look))
        elif look.state == "running" and time.time() - self.journal.started_at(step.key) > step.within_s:
            self._say(step, f"still running after {step.within_s:.0f} s")

    # Steps that ask

    def _judge_probe(self, step: Step, sheet: Sheet) -> None:
        self.journal.sheet(step.node, sheet)
        if sheet.killed is not None:
            self.killed_before[step.node] = {(victim.process or "", victim.pid) for victim in sheet.killed}
        late = [name for name in NEEDED if name in sheet.evidence and sheet.evidence[name].timed_out]
        tries = self.journal.recall(step.key, "tries", 0) + 1
        self.journal.remember(step.key, "tries", tries)
        if late and tries < PROBE_TRIES:
            self._say(step, f"{step.node} gave no answer in time about {', '.join(late)}; asking again")
            return
        if not step.gate:
            self.journal.finish(step.key, "succeeded", note="sheet stored")
            return
        judged = gates.judge_sheet(step.gate, sheet)
        self._say(step, judged.message)
        if judged.failed:
            self.journal.finish(step.key, "failed", reason=judged.failed, evidence=judged.message)
        elif judged.done:
            self.journal.finish(step.key, "succeeded", note=judged.message)
        elif time.time() - self.journal.started_at(step.key) > step.within_s:
            said = f"{judged.message}, for {_duration(step.within_s)}"
            self.journal.finish(step.key, "failed", reason=judged.values["reason"], evidence=said)

    def _judge_key(self, step: Step, result: Result) -> None:
        said = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        if result.ok:
            self.journal.finish(step.key, "succeeded", note=said.splitlines()[-1] if said else "the key opens it")
        else:
            self.journal.finish(step.key, "failed", reason="permission_denied", evidence=said[-2000:] or "no answer")

    def _judge_wait(self, step: Step, result: Any) -> None:
        printed, complained = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
        judged = gates.judge(step.gate, printed, result.exit_code, complained)
        if judged.message:
            self._say(step, judged.message)
        if "available_bytes" in judged.values:
            self._remember_memory(step.node, judged.values["available_bytes"])
        if judged.failed:
            named = self._why_ended(step) if judged.failed == "exited" else None
            reason, evidence = named or (judged.failed, judged.message)
            self.journal.finish(step.key, "failed", reason=reason, evidence=evidence)
        elif judged.done:
            self.journal.finish(step.key, "succeeded", note=judged.message)
        elif self._dead_rank(step):
            return
        elif time.time() - self.journal.started_at(step.key) > step.within_s:
            self.journal.finish(step.key, "failed", reason=gates.timeout_reason(step.gate), evidence=judged.message)

    def _why_ended(self, waiting: Step) -> tuple[str, str] | None:
        """What the followed logs of its node and service say about an end."""
        for step in (s for s in self._served(waiting.service) if s.node == waiting.node):
            failure = explain("\n".join(self.journal.tail(step.key, limit=60)).encode()).failure
            if failure is not None:
                return failure.reason, failure.evidence
        return None

    def _judge_ready(self, step: Step, answer: HttpAnswer | HttpFailed | None) -> None:
        if self._named_failure(step):
            return
        if answer is None:
            return
        tries = self.journal.recall(step.key, "tries", 0) + 1
        self.journal.remember(step.key, "tries", tries)
        stamp, path = f"try {tries}", urlsplit(step.url).path
        if isinstance(answer, HttpAnswer):
            if _is_ready(step, answer):
                said = "answers 200" if step.gate.get("name") == "health" else f"names {step.model}"
                self.journal.note(step.key, f"{stamp}: {path} {said}")
                self.journal.finish(
                    step.key, "succeeded", note=f"{said} after {tries} {'try' if tries == 1 else 'tries'}"
                )
                return
            if answer.status in LOCKED and step.gate.get("locked") == "fine":
                self.journal.finish(step.key, "succeeded", note="an API answers there and wants a key")
                return
            words = f"{path} answers {answer.status}: {_not_yet(answer, step)}"
        else:
            words = (
                f"{path} refused, the engine is loading"
                if answer.reason == "refused"
                else f"{path}: {answer.evidence or answer.reason}"
            )
        key = f"words {step.key}"
        if self.said.get(key) != words or tries % 15 == 0:
            self.said[key] = words
            self.journal.note(step.key, f"{stamp}: {words}")
        self._judge_silence(step, words)

    def _judge_silence(self, step: Step, words: str) -> None:
        """Too long without anything new. While the ranks look for each other it is known sooner that they don't find one another."""
        silent = time.monotonic() - self.moved_at.get(step.service, self.made_at)
        mine = [one for key, one in self.readers.items() if self._step(key).service == step.service]
        readings = [reader.reading() for reader in mine]
        meeting = any(reading.facts.get("meeting") for reading in readings)
        if silent <= (min(step.within_s, MEETING_SILENCE_S) if meeting else step.within_s):
            return
        loading = any(not reading.ready for reading in readings)
        reason = "nccl_init_hang" if meeting else "load_stalled" if loading else "http_never_ready"
        what = "the ranks look for each other and nothing is new" if meeting else "nothing new"
        self.journal.finish(step.key, "failed", reason=reason, evidence=f"{what} for {silent:.0f} s; last: {words}")

    def _dead_rank(self, step: Step) -> bool:
        """A wait for what a dead rank will never bring ends after three looks, with the reason that the logs name."""
        if self.plan.story not in CHANGES_ENGINES or not any(self.journal.drained(s.key) for s in self._served()):
            return False
        self.dead[step.key] = self.dead.get(step.key, 0) + 1
        return self.dead[step.key] >= DEAD_LOOKS and self._named_failure(step)

    def _named_failure(self, step: Step) -> bool:
        """A dead engine or a failure that its log names ends the wait. True when it did."""
        served = self._served()
        failures = []
        for serve in served:
            reader = self._reader(serve.key)
            failure = reader.reading().failure if reader is not None else None
            if failure is not None:
                failures.append((failure.line_number or 0, serve.key, failure))
        ended = [s for s in served if self.journal.drained(s.key)]
        if not ended and not failures:
            return False
        if failures and not ended:
            # The log names a failure and the process still stands: give it a few looks to end by itself, then believe the log.
            self.dead[step.key] = self.dead.get(step.key, 0) + 1
            if self.dead[step.key] < DEAD_LOOKS * 5:
                return False
        if failures:
            _, key, failure = min(failures, key=lambda item: (self._step(item[1]).rank or 0, item[0]))
            evidence = f"{self._whose(self._step(key))}{failure.evidence}"
            self.journal.finish(step.key, "failed", reason=failure.reason, evidence=evidence)
            return True
        if self._container_may_have_ended(step, served, ended):
            return False
        first = ended[0]
        reason, how = _how_ended(first, self.said.get(f"exit {first.key}", ""))
        tail = self.journal.tail(first.key)
        evidence = f"{self._whose(first)}{how}; last line: {tail[-1] if tail else '(none)'}"
        self.journal.finish(step.key, "failed", reason=reason, evidence=evidence)
        return True

    def _container_may_have_ended(self, step: Step, served: list[Step], ended: list[Step]) -> bool:
        """A program in a container ends with the container, and the looks may show that first: the container is given a few
        more, so that its end is not called the program's."""
        around = [one for one in served if one.container and one.node in {each.node for each in ended}]
        if any(one.container for one in ended) or not around:
            return False
        self.dead[step.key] = self.dead.get(step.key, 0) + 1
        return self.dead[step.key] < DEAD_LOOKS

    def _judge_smoke(self, step: Step, answer: HttpAnswer | HttpFailed | proving.Streamed) -> None:
        budget = self.journal.recall(step.key, "budget", step.max_tokens)
        tries = self.journal.recall(step.key, "tries", 0) + 1
        self.journal.remember(step.key, "tries", tries)
        proof = _shown_by(step, answer, budget)
        words = str(proofs.kept(" ".join(filter(None, (proof.sentence, proof.warning)))))
        self.journal.note(step.key, f"{_asked_for(step)} {tries} {self._asked_how(step, budget)}: {words}")
        path = self.journal.recall(step.key, "path", 0)
        if proof.ok:
            self._outcome_of(step, proof, answer, verdict="passed", budget=budget, said=words)
            self.journal.finish(step.key, "succeeded", note=words)
        elif proof.larger and budget < SMOKE_LARGEST:
            self.journal.remember(step.key, "budget", min(budget * 8, SMOKE_LARGEST))
        elif proof.elsewhere and path < len(step.gate.get("urls", ())):
            self.journal.remember(step.key, "path", path + 1)
            self.journal.remember(step.key, "tries", 0)
        elif self._named_failure(step):  # it did not answer wrongly, it is not there any more
            self._outcome_of(step, proof, answer, verdict="failed", budget=budget, detail=words)
        elif tries >= self._most_tries(answer):
            self._outcome_of(step, proof, answer, verdict="failed", budget=budget, detail=words)
            reason = (proof.reason if self.plan.story in ASKS_ON else None) or "smoke_failed"
            self.journal.finish(step.key, "failed", reason=reason, evidence=words)

    def _asked_how(self, step: Step, budget: int) -> str:
        if step.gate.get("ask") == proofs.MODELS or _kind(step) != "chat":
            return f"at {self._proof_url(step)}"
        return f"with {budget} tokens"

    def _most_tries(self, answer: object) -> int:
        """A person who asks now wants to know how it is now; a launch is given the time that an engine may still need."""
        if self.plan.story in ASKS_ON:
            return 1
        return SMOKE_TRIES + (DEAD_LOOKS if isinstance(answer, HttpFailed) else 0)

    def _outcome_of(
        self, step: Step, proof: proofs.Proof, answer: HttpAnswer | HttpFailed | proving.Streamed, **values: Any
    ) -> None:
        """The main service's proof is `smoke`, another's `smoke:NAME`; of each question `asked:KEY OF THE STEP` keeps what was asked
        and what came."""
        kept = {"kind": _kind(step), **values}
        came: dict[str, Any] = {}
        if not isinstance(answer, HttpFailed):
            came = {
                "answer": answer.body.decode("utf-8", "replace"),
                "seconds": round(answer.seconds, 3),
            }
        asked = {
            "ask": step.gate.get("ask", ""),
            "service": step.service,
            "title": step.title,
            "request": self._question(step).decode(),
            "url": self._proof_url(step),
            "reason": proof.reason,
            "warning": proof.warning,
            "values": dict(proof.values),
        }
        told = {f"asked:{step.key}": {**kept, **came, **asked}}
        if not step.gate.get("ask"):
            name = f"smoke:{step.service}" if step.service else "smoke"
            told[name] = {**kept, **(came if proof.ok else {}), **({"warning": proof.warning} if proof.ok else {})}
        known = self.environment_of(step)
        secrets = [known[one.variable] for one in step.secrets if one.variable in known]
        self.journal.outcome(**{name: proofs.kept(one, secrets) for name, one in told.items()})

    def _whose(self, step: Step) -> str:
        """Begins evidence where a deployment has several services: `reranker: `."""
        services = self.plan.spec.get("services") or ()
        main = str(self.plan.spec.get("kind") or "chat")
        return f"{step.service or main}: " if services else ""

    def _served(self, service: str | None = None) -> list[Step]:
        """Started steps that stay, of one service or of all."""
        return [
            s
            for stage in self.plan.stages
            for s in stage.steps
            if s.kind == "serve" and self.journal.job_id(s.key) and service in (None, s.service)
        ]

    def _judge_end(self, step: Step, look: JobLook | None) -> None:
        if f"job {step.key}" not in self.said:
            self.said[f"job {step.key}"] = self.journal.earlier_job(step)
            if not self.said[f"job {step.key}"]:
                self.journal.finish(step.key, "succeeded", note="no job of this deployment was started here")
            return
        if look is not None and look.state != "running":
            self.journal.finish(step.key, "succeeded", note=f"job {look.state}")
        elif time.time() - self.journal.started_at(step.key) > step.within_s:
            self.journal.finish(
                step.key, "failed", reason="cleanup_incomplete", evidence="the job's processes do not end"
            )

    # Ends

    def _drain(self) -> None:
        """Last looks at every followed job, until all that it had printed by now is stored."""
        wanted: dict[str, int] = {}
        nodes = [node for node in self._nodes_followed() if node not in self.away]
        while nodes:
            looks = {node: self._pool.submit(self._look, node, None, self._asked(node)) for node in nodes}
            nodes = []
            for node, future in looks.items():
                seen = future.result()
                self._take_outputs(seen)
                for key, look in seen.looks.items():
                    wanted.setdefault(key, look.size)
                    if look.data and self.journal.position(key) < wanted[key] and node not in nodes:
                        nodes.append(node)

    def _fail(self, failed: list[Step]) -> bool:
        """The run has failed: see what ended it, clean up what it started, end it. True when it has ended.

        A node with something of ours that is out of sight may have been rebooted, which explains the rest: it is waited for.
        """
        now = time.time()
        self.failed_at = self.failed_at or now
        self._apply_what_came()
        first = min(failed, key=lambda step: self.ordinals[step.key])
        hidden = [node for node in self._nodes_followed() if node in self.away and self.away[node].hidden]
        stopped = self.journal.reason_of(first.key)[0] == FLOOR  # what takes the memory must go now
        if hidden and not stopped and now - self.failed_at < LAST_LOOK_S:
            self._say(
                first,
                f"{' and '.join(hidden)} can't be asked what happened there; waiting up to {LAST_LOOK_S / 60:.0f} min for it",
            )
            return False
        if self.why is None:
            self._drain()
            self._sample_once_more()
            self.why = self._rebooted() or self._reason_of(first)
            if self.why[0] in SILENT_DEATHS:
                self.why = self._killed_for_memory() or self.why
            elif self.why[0] == "memory_not_released":
                self.why = (self.why[0], f"{self.why[1]}{self._still_held(failed)}")
        if self._stops_what_is_left() and not self._cleaned(self._begun_on()):
            if now - self.failed_at < LAST_LOOK_S + CLEAN_WITHIN_S:
                return False
            left = [node for node in self._begun_on() if node not in self.clean]
            self._say(first, f"what this run started may still be on {', '.join(left)}; the next launch clears it")
        self._drain()
        self._save_samples()
        self._end("failed", reason=self.why[0], evidence=f"{self.why[1]}{self._of_those_that_came_up()}")
        return True

    def _parts(self) -> dict[str, list[Step]]:
        """By service the steps that start it, where there are several; those of a service that is left alone are none."""
        made: dict[str, list[Step]] = {}
        for stage in self.plan.stages if self.plan.spec.get("services") else ():
            for step in stage.steps if stage.phase in OF_A_SERVICE else ():
                made.setdefault(step.service, []).append(step)
        return made

    def _reason_of(self, step: Step) -> tuple[str, str]:
        """Of a failed step; among several services the evidence begins with whose it is."""
        reason, evidence = self.journal.reason_of(step.key)
        labels = [self._whose(steps[0]) for steps in self._parts().values()]
        said = not any(step in steps for steps in self._parts().values()) or evidence.startswith(tuple(labels))
        return reason, evidence if said else f"{self._whose(step)}{evidence}"

    def _of_those_that_came_up(self) -> str:
        """What became of the services that this run had started before it failed; those that stay are remembered."""
        if self.plan.story not in CHANGES_ENGINES:
            return ""
        up = {
            service: self._whose(steps[0]).removesuffix(": ")
            for service, steps in self._parts().items()
            if all(self.journal.state(one.key) == "succeeded" for one in steps)
            and not any(self.journal.drained(one.key) for one in steps if one.kind == "serve")
        }
        if not up:
            return ""
        names, one = " and ".join(up.values()), len(up) == 1
        if not self._stops_what_is_left():
            self.journal.outcome(left=list(up))
            return f" {names} had come up and {'is' if one else 'are'} left alone."
        away = [node for node in self._begun_on() if node not in self.clean]
        if away:
            return f" {names} had come up; what {'it' if one else 'they'} left on {' and '.join(away)} could not be stopped."
        return f" {names} had come up and {'was' if one else 'were'} stopped with it."

    def _end(self, state: str, *, reason: str | None = None, evidence: str = "") -> None:
        """Raises CancelAsked, see Journal.end; the nodes are held again then."""
        self._look_at_all()
        if self.plan.story not in BESIDE:
            wait([self._pool.submit(self._let_go, node) for node in self._touched()], timeout=LET_GO_WITHIN_S)
        self.held.clear()
        self.journal.end(state, reason=reason, evidence=evidence)

    def _touched(self) -> list[str]:
        """Nodes that this run has begun a step on, also in another worker: those it may hold."""
        steps = [s for stage in self.plan.stages for s in stage.steps]
        begun = {s.node for s in steps if self.journal.state(s.key) not in ("waiting", "skipped")}
        return [node for node in self.plan.nodes if node in begun]

    def _let_go(self, node: str) -> None:
        """In the node's thread, patiently: others are kept out by what is left. For good it is left only by a node that does not
        come back in time; there it is ours for the next run, and soon nobody's."""
        end = time.monotonic() + LET_GO_WITHIN_S
        while time.monotonic() < end:
            try:
                self.doors.let_go(node)
                return
            except RemoteError:
                time.sleep(1.0)

    def _stops_what_is_left(self) -> bool:
        """One dead rank is a dead service: the others only hold memory, unless the deployment wants them to be left alone."""
        if self.plan.story == "adopt":
            return True  # that is the following of logs: nothing else was started
        if self.why is not None and self.why[0] == FLOOR and self.plan.story in CHANGES_ENGINES:
            return True  # it was stopped for the sake of the node, whatever is wished for a lost rank
        return self.plan.story in CHANGES_ENGINES and self.plan.spec.get("on_rank_lost", "stop") != "report"

    def _rebooted(self) -> tuple[str, str] | None:
        """Whether a node was rebooted under a job of this run; then that is why, whatever else was seen of it."""
        for stage in self.plan.stages:
            for step in stage.steps:
                if self.journal.recall(step.key, "rebooted", 0):
                    return "rebooted", f"{step.node} was rebooted while the job of “{step.title}” ran there"
        return None

    def _look_at_all(self) -> None:
        """Fresh sheets of all nodes, as the last act of a run that changed them: pages and the next plan start from what is."""
        if self.plan.story in CHANGES_NOTHING:
            return
        taken_at = time.time()
        looks = {
            node: self._pool.submit(self._sheet, node, taken_at) for node in self.plan.nodes if node not in self.away
        }
        for node, look in looks.items():
            try:
                self.journal.sheet(node, look.result())
            except RemoteError as trouble:
                self.journal.not_reached(node, reason=trouble.reason, evidence=trouble.evidence, hop=trouble.hop)

    def _sheet(self, node: str, taken_at: float) -> Sheet:
        """In the node's thread. Raises RemoteError."""
        nonce = entropy.token_hex(12)
        extra = {
            "models": "\n".join(self.model_paths.get(node, ())),
            "peers": "\n".join(self.peers.get(node, ())),
        }
        script = probe.script(probe.PROBE, nonce=nonce, extra=extra)
        result = self.doors.transport(node).run(script, timeout_s=PROBE_TIMEOUT_S)
        return probe.sheet_from(node, taken_at, probe.read(nonce, result.stdout))

    def _killed_for_memory(self) -> tuple[str, str] | None:
        """A process that just vanished may have been ended by the kernel for memory: only its log says so, on any of the nodes."""
        for node, before in self.killed_before.items():
            nonce = entropy.token_hex(12)
            try:
                result = self.doors.transport(node).run(
                    probe.script(["killed"], nonce=nonce), timeout_s=PROBE_TIMEOUT_S
                )
            except RemoteError:
                continue
            sheet = probe.sheet_from(node, time.time(), probe.read(nonce, result.stdout))
            for victim in sheet.killed or ():
                if (victim.process or "", victim.pid) not in before:
                    return "oom_host", f"{node}: {victim.line or victim.process}"
        return None

    def _still_held(self, failed: Sequence[Step]) -> str:
        """Who holds the memory that did not come back, on each node where it was waited for."""
        said = []
        for node in dict.fromkeys(step.node for step in failed):
            try:
                sheet = self._pool.submit(self._sheet, node, time.time()).result()
            except RemoteError:
                continue
            said.append(f"; {node} has {', '.join(survivors(sheet)) or 'nobody who holds a notable part'}")
        return "".join(said)

    def _cancel(self) -> bool:
        """End this run's process trees and containers on every node, all at a time; True when all are clean, or when those that
        are not could not be cleaned for GIVE_UP_S: a node that never comes back must not hold the others for ever."""
        self._apply_what_came()
        left = [] if self._cleaned(self._begun_on()) else self._given_up()
        if left is None:
            return False
        self._drain()
        for stage in self.plan.stages:
            for step in stage.steps:
                if self.journal.state(step.key) == "running":
                    self.journal.finish(step.key, "cancelled", reason="cancelled")
        if left:
            words = f"{' and '.join(left)} could not be cleaned for {_duration(GIVE_UP_S)}; what this run started may still be there"
            self._end("cancelled", reason="cleanup_incomplete", evidence=words)
        else:
            self._end("cancelled", reason="cancelled")
        return True

    def _given_up(self) -> list[str] | None:
        """The nodes that are not clean, when none of them could be for so long; None before."""
        left = [node for node in self._begun_on() if node not in self.clean]
        now = time.time()
        waited = all(node in self.away and now - self.away[node].since > GIVE_UP_S for node in left)
        return left if waited else None

    def _begun_on(self) -> list[str]:
        """Nodes on which this run has started a job; elsewhere there is nothing to clean."""
        begun = {s.node for stage in self.plan.stages for s in stage.steps if self.journal.job_id(s.key)}
        return [node for node in self.plan.nodes if node in begun]

    def _cleaned(self, nodes: Sequence[str]) -> bool:
        """Clean these nodes at the same time and without waiting for each other; True once all are."""
        now = time.time()
        for node in nodes:
            away = self.away.get(node)
            if node in self.clean or node in self.cleaning or (away is not None and now < away.next_at):
                continue
            self.cleaning[node] = self._pool.submit(self._clean, node)
        wait(list(self.cleaning.values()), timeout=ROUND_S)
        for node, future in list(self.cleaning.items()):
            if future.done():
                del self.cleaning[node]
                self._judge_clean(node, future)
        return self.clean.issuperset(nodes)

    def _judge_clean(self, node: str, future: Future[None]) -> None:
        try:
            future.result()
        except RemoteError as trouble:
            away = self.away.get(node)
            tries, now = (away.tries + 1 if away else 1), time.time()
            delay = AWAY_DELAYS_S[min(tries, len(AWAY_DELAYS_S)) - 1] * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
            self.away[node] = Away(away.since if away else now, tries, now + delay)
            self._note_unreachable(node, trouble)
            begun = [
                s for stage in self.plan.stages for s in stage.steps if s.node == node and self.journal.job_id(s.key)
            ]
            self._say(
                begun[-1], f"{node} is not clean yet ({trouble.reason}: {trouble.evidence.strip()[:160]}); trying again"
            )
            return
        self.clean.add(node)
        if self.away.pop(node, None) is not None:
            self.journal.reached(node)

    def _uses_docker(self) -> bool:
        spec = self.plan.spec
        return any(one.get("runtime") == "docker" for one in (spec, *(spec.get("services") or ())))

    def _clean(self, node: str) -> None:
        """In the node's thread. Raises RemoteError while something of this run is left there."""
        jobs = self.doors.jobs(node)
        for stage in self.plan.stages:
            for step in stage.steps:
                job_id = self.journal.job_id(step.key)
                if step.node == node and job_id:
                    jobs.cancel(job_id)
        if self._uses_docker() and self.plan.story in CHANGES_ENGINES:
            listed = Command.of("docker", "ps", "-aq", "--filter", f"label=sparkweb.run={self.run_id}")
            remove = pipe(listed, Command.of("xargs", "-r", "docker", "rm", "-f"))
            # Docker may still be at work on what a client that is gone by now had asked for: look until there is nothing.
            script = f'{remove.text} >/dev/null && sleep 1 && left=$({listed.text}) && test -z "$left"'
            done = self.doors.transport(node).run(script, timeout_s=60.0)
            if not done.ok:
                said = (done.stderr or done.stdout).decode(
                    "utf-8", "replace"
                ).strip() or "its containers are still there"
                raise RemoteError("cleanup_incomplete", hop=node, evidence=said[-500:])


def _asked_for(step: Step) -> str:
    return str(step.gate.get("ask") or proofs.NOUNS[_kind(step)])


def _shown_by(step: Step, answer: HttpAnswer | HttpFailed | proving.Streamed, budget: int) -> proofs.Proof:
    if isinstance(answer, HttpFailed):
        found = api.endpoint(None, failure=answer.reason, evidence=answer.evidence)
        return proofs.Proof(False, answer.reason, f"no answer: {answer.reason} {answer.evidence}", reason=found.reason)
    if isinstance(answer, proving.Streamed):
        return proofs.judge_streamed(
            answer.status,
            answer.body,
            max_tokens=budget,
            first_token_s=answer.first_token_s,
            seconds=answer.seconds,
            broken=answer.broken,
        )
    ask = step.gate.get("ask")
    if ask == proofs.MODELS:
        return proofs.judge_models(answer.status, answer.body, model=step.model)
    if ask == proofs.TOOLS:
        return proofs.judge_tools(
            answer.status, answer.body, max_tokens=budget, parser=str(step.gate.get("parser", ""))
        )
    return proofs.judge(_kind(step), answer.status, answer.body, max_tokens=budget)


def _kind(step: Step) -> str:
    return str(step.gate.get("kind", "chat"))


def _key_shown(step: Step, variables: Mapping[str, str]) -> dict[str, str]:
    """The header with the API's own key, where the deployment gives the engine one. It goes through SSH, never into a command."""
    keys = [variables[secret.variable] for secret in step.secrets if secret.variable in variables]
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}


def _is_ready(step: Step, answer: HttpAnswer) -> bool:
    if step.gate.get("name") == "health":
        return answer.status == 200
    return answer.status == 200 and bool(api.models(answer.status, answer.body, wanted=step.model).served)


def _not_yet(answer: HttpAnswer, step: Step) -> str:
    """Why an answer is not the one that is waited for."""
    wanted = step.model
    found = api.models(answer.status, answer.body, wanted=wanted)
    if found.ok and step.gate.get("name") != "health":
        return f"it names {', '.join(found.names) or 'nothing'}, not {wanted}: another process listens there"
    return api.endpoint(answer.status, answer.body).sentence


def _how_ended(step: Step, code: str) -> tuple[str, str]:
    """The reason and the words for a followed process that ended without its log saying why: Ray, its container, or the engine
    alone."""
    ended = f"ended with {code}" if code.isdigit() else f"is gone without an exit code ({code or 'killed'})"
    if step.container and code in FROM_OUTSIDE:
        return (
            "container_killed",
            f"{step.container} on {step.node} was stopped or killed from outside, exit code {code}",
        )
    if step.container and step.key.startswith("cluster.ray-"):
        return "ray_ended", f"Ray in {step.container} on {step.node} {ended}"
    return "exited" if step.rank in (0, None) else "rank_lost", f"{step.title} {ended}"


def _lost(look: JobLook) -> str:
    return "rebooted" if look.reason == "rebooted" else "exited"


def _gone(step: Step, look: JobLook) -> str:
    """In words, how a job is gone that left no exit code."""
    if look.reason == "rebooted":
        return f"{step.node} was rebooted while the job ran there"
    if look.state == "missing":
        return f"the job's folder on {step.node} was deleted and none of its processes is left, so how it ended is not known"
    return (
        f"the job's processes on {step.node} (keeper {look.pid or '?'}) are gone without an exit code: they were killed"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _why_failed(tail: list[str], exit_code: int | None) -> tuple[str, str]:
    """A job's script may say `sparkweb: REASON: words` as a last line; else the exit code and the last line speak."""
    for line in reversed(tail):
        if line.startswith("sparkweb: "):
            name, _, words = line.removeprefix("sparkweb: ").partition(": ")
            if name in REASONS:
                return name, words or line
    failure = explain("\n".join(tail).encode()).failure
    if failure is not None:
        return failure.reason, failure.evidence
    return "exited", f"exit code {exit_code}: {tail[-1] if tail else '(no output)'}"


def _progress(reading: Reading) -> dict[str, Any]:
    """A Reading as the plain values that a step keeps."""
    return {
        "phase": reading.progress.phase if reading.progress else None,
        "progress": asdict(reading.progress) if reading.progress else None,
        "ranks": {str(rank): asdict(progress) for rank, progress in reading.ranks.items()},
        "ready": reading.ready,
        "failure": asdict(reading.failure) if reading.failure else None,
    }
