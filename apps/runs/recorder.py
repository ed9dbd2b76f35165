"""The single writer of a run: numbers, masks and stores output in chunks, moves steps on, rings. Every write names its lease."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.deployments.models import Deployment, Rank
from apps.deployments.services import forget_found
from apps.doorbell.ring import ring
from apps.facts.sheet import Sheet, plain, storable
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan.engines.site import container_name
from apps.plan.spec import Spec
from apps.plan.step import Step as PlannedStep
from apps.plan.together import bases, services_of
from apps.runs import again, limits, sampling, settling
from apps.runs import phases as times
from apps.runs.chunking import Chunker, Piece, lines_of
from apps.runs.executor import CancelAsked
from apps.runs.limits import MARKS
from apps.runs.models import Chunk, Run, Step, Stream

MOST_MARKS = 20
IDLE_S = 1.0  # an unfinished line is flushed when nothing came for this long
RING_EVERY_S = 0.1


class LeaseLost(Exception):
    """Another worker has the run: throw away what was seen and stop."""


class Recorder:
    """One run under one lease. Not shared between threads: the executor calls it from its own thread only."""

    def __init__(self, run: Run, token: str, *, secrets: tuple[bytes, ...] = ()) -> None:
        self.run_id, self.token, self.secrets = run.pk, token, secrets
        self.rows: dict[str, Step] = {step.key: step for step in run.steps.select_related("node")}
        self.nodes: dict[str, Node] = {
            node.name: node for node in Node.objects.filter(name__in=run.plan.get("nodes", []))
        }
        self.services: dict[str, str] = services_of(run.plan)
        self._chunkers: dict[str, Chunker] = {}
        self._streams: dict[tuple[str, str], Stream] = {}
        self._fed_at: dict[str, float] = {}
        self._rang_at: dict[str, float] = {}
        self._owed: set[str] = set()  # rings that came too soon after another

    # Fence

    def _fenced(self, **fields: Any) -> None:
        """Inside a transaction, first: our lease still holds, or LeaseLost."""
        changed = Run.objects.filter(pk=self.run_id, lease_token=self.token).update(version=F("version") + 1, **fields)
        if not changed:
            raise LeaseLost(f"run {self.run_id}")

    def _ring(self, kind: str = "run", *, now: bool = False) -> None:
        """`run`: something about it has changed; `log`: lines came. At most ten a second each, and never without a last one."""
        moment = time.monotonic()
        if now or moment - self._rang_at.get(kind, 0.0) >= RING_EVERY_S:
            self._rang_at[kind] = moment
            self._owed.discard(kind)
            ring(kind, self.run_id)
        else:
            self._owed.add(kind)

    def ring_owed(self) -> None:
        """What was not rung because it came too soon after another."""
        for kind in tuple(self._owed):
            self._ring(kind, now=True)

    # Steps

    def state(self, key: str) -> str:
        return self.rows[key].state

    def started_at(self, key: str) -> float:
        """Unix seconds; now for a step that has not begun."""
        started = self.rows[key].started_at
        return time.time() if started is None else started.timestamp()

    def job_id(self, key: str) -> str:
        return self.rows[key].job_id

    def begin(self, key: str, *, job_id: str = "") -> None:
        row = self.rows[key]
        with transaction.atomic():
            self._fenced()
            row.state, row.started_at, row.job_id = (
                Step.State.RUNNING,
                row.started_at or timezone.now(),
                job_id or row.job_id,
            )
            row.save(update_fields=["state", "started_at", "job_id"])
        self._ring(now=True)

    def finish(self, key: str, state: str, *, reason: str | None = None, evidence: str = "", note: str = "") -> None:
        row = self.rows[key]
        with transaction.atomic():
            self._fenced()
            row.state, row.reason, row.evidence, row.note = (
                state,
                reason,
                storable(evidence[:4000]),
                storable(note[:1000]),
            )
            row.ended_at = timezone.now()
            row.started_at = row.started_at or row.ended_at
            row.save(update_fields=["state", "reason", "evidence", "note", "started_at", "ended_at"])
        self._ring(now=True)

    def progress(self, key: str, progress: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """What the reader of a step's output makes of it so far."""
        row = self.rows[key]
        progress, facts = plain(dict(progress)), plain(dict(facts))
        with transaction.atomic():
            fresh = Run.objects.values_list("facts", flat=True).get(pk=self.run_id)
            merged = _merged(fresh, facts, self.services.get(key, ""))
            self._fenced(**({"facts": merged} if merged != fresh else {}))
            history = _history(row.progress.get("history") or {}, progress, time.time())
            grown = {**progress, "history": history}
            if row.progress != grown:
                row.progress = grown
                row.save(update_fields=["progress"])
        self._ring()

    def phase(self, phase: str) -> None:
        """The run enters a phase; the one before ends."""
        now = time.time()
        with transaction.atomic():
            run = Run.objects.select_related("deployment").get(pk=self.run_id)
            if run.phase == phase and run.state == Run.State.RUNNING:
                return
            phases = times.entered(run.phases, phase, was=run.phase, now=now)
            self._fenced(
                phase=phase, phases=phases, state=Run.State.RUNNING, started_at=run.started_at or timezone.now()
            )
            settling.settle(run)
        self._ring(now=True)

    # Output

    def _stream(self, key: str, name: str) -> Stream:
        found = self._streams.get((key, name))
        if found is None:
            row = self.rows[key]
            found, _ = Stream.objects.get_or_create(
                step=row,
                name=name,
                defaults={"run_id": self.run_id, "node": row.node.name if row.node else "", "rank": row.rank},
            )
            self._streams[(key, name)] = found
        return found

    def _chunker(self, key: str) -> Chunker:
        made = self._chunkers.get(key)
        if made is None:
            stream = self._stream(key, "output")
            made = Chunker(secrets=self.secrets, offset=stream.offset, open_line=stream.open_line)
            self._chunkers[key] = made
        return made

    def position(self, key: str) -> int:
        """Offset in the node's file of the next byte wanted of the step's output."""
        return self._chunker(key).position - self._stream(key, "output").base

    def drained(self, key: str) -> bool:
        return self._stream(key, "output").ended

    def stored(self, key: str) -> Iterator[bytes]:
        """The masked bytes stored so far, in order, for a reader that starts again."""
        stream = self._stream(key, "output")
        for data in stream.chunks.order_by("offset").values_list("data", flat=True).iterator(chunk_size=16):
            yield bytes(data)

    def output(self, key: str, *, offset: int, data: bytes, ended: bool) -> list[bytes]:
        """Take raw bytes that begin at `offset` of the node's file; store what can be stored. Returns the masked bytes stored now."""
        chunker = self._chunker(key)
        if data and offset == self.position(key):
            chunker.feed(data)
            self._fed_at[key] = time.monotonic()
        idle = time.monotonic() - self._fed_at.get(key, 0.0) >= IDLE_S
        pieces = chunker.cut(idle=idle, ended=ended)
        stream = self._stream(key, "output")
        if pieces or (ended and not stream.ended):
            self._store(stream, pieces, ended=ended, open_line=chunker.open_line)
        return [piece.data for piece in pieces]

    def befell(self, key: str, what: str) -> bool:
        """Something happened to the node's file (a name of limits.MARKS): remembered with the stream, once where it can only
        happen once. True when it is news. After `log_shrunk` what the file holds now counts as new."""
        stream, chunker = self._stream(key, "output"), self._chunker(key)
        if what not in MARKS or (what != "log_shrunk" and any(mark["what"] == what for mark in stream.marks)):
            return False
        pieces = chunker.cut(ended=True) if what == "log_shrunk" else []
        self._store(stream, pieces, ended=stream.ended, open_line=chunker.open_line)
        stream.marks = [*stream.marks[-MOST_MARKS:], {"what": what, "at": chunker.offset}]
        if what == "log_shrunk":
            stream.base = chunker.offset
        with transaction.atomic():
            self._fenced()
            stream.save(update_fields=["marks", "base"])
        row = self.rows[key]
        self.note(key, f"{row.title}, its output on {row.node_name}: {MARKS[what]}; the job itself is not affected")
        return True

    def note(self, key: str, text: str) -> None:
        """One line of our own about a step."""
        stream = self._stream(key, "note")
        data = storable(" ".join(text[:4000].splitlines())).encode() + b"\n"
        chunker = Chunker(secrets=self.secrets, offset=stream.offset)
        chunker.feed(data)
        self._store(stream, chunker.cut(ended=True), ended=False, open_line=False)
        self._ring()

    def _store(self, stream: Stream, pieces: list[Piece], *, ended: bool, open_line: bool) -> None:
        now = timezone.now()
        lines = sum(piece.line_count for piece in pieces)
        with transaction.atomic():
            self._fenced(next_line=F("next_line") + lines, next_seq=F("next_seq") + len(pieces))
            next_line, next_seq = Run.objects.values_list("next_line", "next_seq").get(pk=self.run_id)
            first, seq = next_line - lines, next_seq - len(pieces)
            rows = []
            for piece in pieces:
                rows.append(
                    Chunk(
                        stream=stream,
                        run_id=self.run_id,
                        seq=seq,
                        offset=piece.offset,
                        length=piece.length,
                        continues=piece.continues,
                        first_line=first,
                        line_count=piece.line_count,
                        time=now,
                        data=piece.data,
                    )
                )
                first, seq = first + piece.line_count, seq + 1
            Chunk.objects.bulk_create(rows)
            if pieces:
                stream.offset, stream.open_line = pieces[-1].offset + pieces[-1].length, open_line
            stream.ended = stream.ended or ended
            limits.trim(stream)
            stream.save(update_fields=["offset", "open_line", "ended", "gap_start", "gap_end", "gap_lines"])
        self._ring("log")

    def tail(self, key: str, *, limit: int = 20) -> list[str]:
        """The last lines of a step's output, for evidence."""
        stream = self._stream(key, "output")
        found: list[str] = []
        for chunk in stream.chunks.order_by("-offset")[:8]:
            found = [line.text for line in lines_of(bytes(chunk.data), chunk.continues)] + found
            if len(found) >= limit:
                break
        return [text for text in found if text.strip()][-limit:]

    # What the run learns

    def sheet(self, node: str, sheet: Sheet) -> None:
        with transaction.atomic():
            self._fenced()
            inventory.store_sheet(self.nodes[node], sheet)

    def reached(self, node: str) -> None:
        row = self.nodes[node]
        row.refresh_from_db()
        if row.unreachable_since is not None:
            inventory.seen(row)

    def not_reached(self, node: str, *, reason: str, evidence: str, hop: str) -> None:
        row = self.nodes.get(node)
        if row is not None:
            row.refresh_from_db()
            inventory.not_reached(row, reason=reason, evidence=evidence, hop=hop)

    def outcome(self, **values: Any) -> None:
        with transaction.atomic():
            run = Run.objects.get(pk=self.run_id)
            self._fenced(outcome={**run.outcome, **plain(values)})

    def sampled(self, points: sampling.Curves, kernel: Sequence[Mapping[str, Any]]) -> None:
        """Memory by node, and what the kernels have logged: grows `memory` and `kernel` of the outcome."""
        with transaction.atomic():
            known = Run.objects.values_list("outcome", flat=True).get(pk=self.run_id)
            found = [*known.get("kernel", ()), *kernel][-sampling.MOST_LINES :]
            more = {"memory": sampling.grown(known.get("memory") or {}, points)}
            self._fenced(outcome=plain({**known, **more, **({"kernel": found} if found else {})}))
        self._ring()

    def cancel_asked(self) -> bool:
        """Also the moment to notice that the lease is gone, and to ring what is owed."""
        self.ring_owed()
        row = Run.objects.filter(pk=self.run_id).values_list("cancel_asked_at", "lease_token").first()
        if row is None or row[1] != self.token:
            raise LeaseLost(f"run {self.run_id}")
        return row[0] is not None

    def earlier_job(self, step: PlannedStep) -> str:
        """The job that an earlier run of this deployment started for the step with the key `step.ends`, or ""."""
        run = Run.objects.get(pk=self.run_id)
        found = (
            Step.objects.filter(run__deployment=run.deployment_id, key=step.ends, job_id__gt="", run_id__lte=run.pk)
            .order_by("-run_id")
            .first()
        )
        return found.job_id if found else ""

    def recall(self, key: str, name: str, default: int) -> int:
        """A number that a step keeps from slice to slice."""
        return int(self.rows[key].memory.get(name, default))

    def remember(self, key: str, name: str, value: int) -> None:
        row = self.rows[key]
        row.memory[name] = value
        with transaction.atomic():
            self._fenced()
            row.save(update_fields=["memory"])

    def reason_of(self, key: str) -> tuple[str, str]:
        row = self.rows[key]
        return row.reason or "internal", row.evidence

    def end(self, state: str, *, reason: str | None = None, evidence: str = "") -> None:
        """The run is over: steps that never began are skipped, nodes are free again, the audit trail gets the outcome, and a
        second try begins where the table of reasons says so. Raises CancelAsked: who was told that the end comes gets it."""
        with transaction.atomic():
            self._fenced()
            run = (
                Run.objects.select_for_update(of=("self",)).select_related("deployment", "revision").get(pk=self.run_id)
            )
            if state != Run.State.CANCELLED and run.cancel_asked_at is not None:
                raise CancelAsked(f"run {run.pk}")
            if state == Run.State.SUCCEEDED and run.story in ("launch", "relaunch", "adopt"):
                self._keep_ranks(run)
            elif state == Run.State.SUCCEEDED and run.story == "stop" and run.deployment is not None:
                run.deployment.ranks.exclude(service__in=run.plan.get("kept", ())).delete()
            if state == Run.State.SUCCEEDED and run.deployment is not None:
                forget_found(run.deployment, run.story)
            if state == Run.State.FAILED and run.outcome.get("left"):
                self._keep_left(run, reason, evidence)
            settling.finish(run, state, reason=reason, evidence=evidence)
            if state == Run.State.FAILED and again.worth_it(run, reason):
                again.try_again(run)
        self._ring(now=True)

    def _keep_ranks(self, run: Run) -> None:
        """The ranks of what this run started; those of services that it left alone stay as they are."""
        assert run.deployment is not None and run.revision is not None
        spec, kept = run.revision.spec, run.plan.get("kept", ())
        first = bases(spec)
        run.deployment.ranks.exclude(service__in=kept).delete()
        Deployment.objects.filter(pk=run.deployment.pk).update(observed={})
        for one in spec.each:
            if one.service not in kept:
                for place in range(len(one.nodes)):
                    self._keep_rank(run, one, place, first[one.service] + place)

    def _keep_left(self, run: Run, reason: str | None, evidence: str) -> None:
        """Of several services some came up and stay, although the launch failed: they are watched, and a relaunch starts the
        others alone."""
        assert run.deployment is not None and run.revision is not None
        self._keep_ranks(run)
        up = (*run.plan.get("kept", ()), *run.outcome["left"])
        services = {
            one.service: {"state": "serving", "reason": None, "evidence": ""}
            if one.service in up
            else {"state": "lost", "reason": reason, "evidence": evidence}
            for one in run.revision.spec.each
        }
        observed = {"state": "degraded", "reason": reason, "evidence": evidence, "services": services}
        Deployment.objects.filter(pk=run.deployment.pk).update(observed=plain(observed))

    def _keep_rank(self, run: Run, spec: Spec, place: int, number: int) -> None:
        assert run.deployment is not None and run.revision is not None
        serve = next((row for row in self.rows.values() if row.kind == "serve" and row.rank == number), None)
        # The job is the engine itself as a plain process, and behind Ray on the head; elsewhere it only follows a log.
        engine = serve is not None and (spec.runtime == "process" or (spec.cluster == "ray" and place == 0))
        found = next((one for one in run.deployment.found if one["service"] == spec.service), None)
        adopted = found if run.story == "adopt" else None
        node = self.nodes[spec.nodes[place]]
        node.refresh_from_db()
        Rank.objects.create(
            deployment=run.deployment,
            number=number,
            service=spec.service,
            node=node,
            revision=run.revision,
            run_id=run.pk,
            container=_as_found(adopted, "container")
            if adopted
            else container_name(spec, place)
            if spec.runtime == "docker"
            else "",
            unit=_as_found(adopted, "unit"),
            job_id=serve.job_id if serve and engine and not adopted else "",
            boot_id=node.boot_id,
            state="serving",
            seen_at=datetime.now(UTC),
        )


def _as_found(found: Mapping[str, Any] | None, kind: str) -> str:
    return str(found["name"]) if found and found["kind"] == kind else ""


def _merged(known: Mapping[str, Any], facts: Mapping[str, Any], service: str) -> dict[str, Any]:
    """The facts of a run: those of the main service by their names, another's below `services`."""
    if not service:
        return {**known, **facts}
    others = dict(known.get("services") or {})
    if facts:
        others[service] = {**others.get(service, {}), **facts}
    return {**known, "services": others} if others else dict(known)


def _history(
    known: dict[str, list[list[float]]], progress: Mapping[str, Any], now: float
) -> dict[str, list[list[float]]]:
    """Per rank, the moments at which another shard was done: [unix seconds, done, total]; at most 400 a rank."""
    grown = {rank: list(points) for rank, points in known.items()}
    for rank, seen in (progress.get("ranks") or {}).items():
        if seen.get("done") is None or not seen.get("total"):
            continue
        points = grown.setdefault(rank, [])
        if not points or points[-1][1:] != [seen["done"], seen["total"]]:
            points.append([round(now, 2), seen["done"], seen["total"]])
        del points[:-400]
    return grown
