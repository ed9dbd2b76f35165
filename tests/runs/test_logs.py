"""What is kept of a log, what befalls it, and that nothing is lost or doubled when somebody dies in between."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.utils import timezone

from apps.audit.models import Entry
from apps.diagnosis.masking import mask
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.pages.words import mib, thousands
from apps.people.models import User
from apps.remote.transport import Endpoint, JobLook, RemoteError
from apps.runs import downloads, limits, lines, recorder, serving
from apps.runs.models import Chunk, Run, Step, Stream
from apps.runs.recorder import LeaseLost, Recorder
from tests.live.conftest import cookie_of
from tests.openssh import make_key
from tests.runs.conftest import ADMIN

pytestmark = pytest.mark.django_db(transaction=True)
TOKEN = "a lease"
SECRET = b"s3cret-value-of-a-token"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(recorder, "ring", lambda *_: None)
    made = Run.objects.create(
        code="c0de", story="launch", state="running", lease_token=TOKEN, actor_kind="person", actor_name="op", actor_role="operator",
    )  # fmt: skip
    Step.objects.create(run=made, stage=0, ordinal=0, key="a", title="A", kind="job", rank=0)
    Step.objects.create(run=made, stage=0, ordinal=1, key="b", title="B", kind="job", rank=1)
    return made


def write(to: Recorder, data: bytes, *, key: str = "a", ended: bool = False) -> None:
    to.output(key, offset=to.position(key), data=data, ended=ended)


def flood(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %06d token=%s\n" % (n, SECRET) for n in range(start, start + count))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Head and tail


@pytest.fixture
def small(settings: Any) -> None:
    settings.LOG_HEAD_BYTES, settings.LOG_TAIL_BYTES = 100_000, 300_000


@pytest.mark.parametrize("step", [7_000, 100_000, 2_000_000])
def test_head_and_tail_are_those_of_the_masked_whole(run: Run, small: None, step: int) -> None:
    raw = flood(40_000)
    for start in range(0, len(raw), step):
        to = Recorder(run, TOKEN, secrets=(SECRET,))  # as if the worker were another each time
        write(to, raw[to.position("a") : start + step], ended=start + step >= len(raw))
        kept = sum(Chunk.objects.filter(run=run).values_list("length", flat=True))
        assert kept <= 100_000 + 300_000 * 17 // 16 + 2 * 32_768
    stream = Stream.objects.get(step__key="a", name="output")
    assert stream.ended and 0 < stream.gap_start < stream.gap_end
    rows = list(stream.chunks.order_by("offset").values_list("offset", "length", "data", "line_count"))
    head = b"".join(bytes(data) for offset, _, data, _ in rows if offset < stream.gap_start)
    tail = b"".join(bytes(data) for offset, _, data, _ in rows if offset >= stream.gap_end)
    whole = mask(raw, (SECRET,))
    assert sha(head) == sha(whole[: len(head)]) and sha(tail) == sha(whole[-len(tail) :])
    assert sha(head) == sha(mask(raw[: stream.gap_start], (SECRET,)))
    assert stream.gap_start >= 100_000 and len(raw) - stream.gap_end >= 300_000
    assert len(raw) - stream.gap_bytes <= 400_000 + 2 * 32_768
    assert sum(count for *_, count in rows) + stream.gap_lines == 40_000
    assert Run.objects.get(pk=run.pk).state == "running"  # the job goes on


def test_the_gap_stands_before_the_first_line_behind_it(run: Run, small: None) -> None:
    to = Recorder(run, TOKEN)
    write(to, flood(40_000), ended=True)
    stream = Stream.objects.get(step__key="a")
    found = lines.lines(run, after=0, limit=5000)
    marked = [line for line in found["lines"] if "gap" in line]
    assert [line["gap"] for line in marked] == [{"bytes": stream.gap_bytes, "lines": stream.gap_lines}]
    place = found["lines"].index(marked[0])
    before, behind = found["lines"][place - 1], marked[0]
    assert behind["n"] - before["n"] - 1 == stream.gap_lines and not behind["continued"]
    assert behind["text"].startswith(f"line {behind['n'] - 1:06d} ")
    text = b"".join(lines.download(run, step="a"))
    assert text.count(b"[sparkweb: ") == 1 and f"{stream.gap_lines:,} lines".encode() in text
    assert [one.step.key for one in lines.kept(run).gaps] == ["a"]
    found = lines.search(run, "line 03999")
    assert [row["n"] for row in found.lines] == list(range(39_991, 40_001))


def test_the_page_says_so_and_that_the_job_is_not_affected(run: Run, small: None) -> None:
    write(Recorder(run, TOKEN), flood(40_000), ended=True)
    Recorder(run, TOKEN).befell("b", "log_lost")
    name, _, value = cookie_of(User.objects.create(name="vi", role="viewer")).decode().partition("=")
    client = Client()
    client.cookies[name] = value
    text = client.get(f"/runs/{run.pk}").content.decode()
    stream = Stream.objects.get(step__key="a", name="output")
    assert f"{thousands(stream.gap_lines)} lines" in text and f"({mib(stream.gap_bytes)})" in text
    assert "The job is not affected." in text and "the disk there is full" in text
    assert 'data-status="warn"' in text


# Retention


def test_old_lines_go_runs_and_audit_stay(run: Run, settings: Any) -> None:
    settings.LOG_KEPT_DAYS = 30
    write(Recorder(run, TOKEN), flood(20_000), ended=True)
    young = Run.objects.create(code="new", story="probe", state="succeeded", ended_at=timezone.now())
    step = Step.objects.create(run=young, stage=0, ordinal=0, key="a", title="A", kind="job")
    Run.objects.filter(pk=young.pk).update(lease_token=TOKEN)
    write(Recorder(young, TOKEN), b"kept\n")
    long_ago = timezone.now() - timedelta(days=31)
    Chunk.objects.filter(run=run).update(time=long_ago)
    assert limits.forget() == 0  # it has not ended
    Run.objects.filter(pk=run.pk).update(state="succeeded", ended_at=long_ago)
    settings.LOG_KEPT_DAYS = 0
    assert limits.forget() == 0
    settings.LOG_KEPT_DAYS = 30
    assert limits.forget() > 20
    run.refresh_from_db()
    assert not run.chunks.exists() and run.log_removed_at is not None and run.log_kept_days == 30
    assert run.steps.count() == 2 and lines.lines(run)["lines"] == [] and lines.search(run, "line").lines == []
    assert step.run.chunks.count() == 1
    entry = Entry.objects.get(action="run:log_removed")
    assert (entry.object_id, entry.reason, entry.actor_name) == (str(run.pk), "the retention of 30 days", "retention")
    assert limits.forget() == 0 and Entry.objects.filter(action="run:log_removed").count() == 1


# Search and download


def test_search_with_context_goes_on_where_it_stopped(run: Run) -> None:
    to = Recorder(run, TOKEN)
    for start in range(0, 6000, 1000):
        write(to, flood(1000, start))
        write(to, b"other %d\n" % start, key="b")
    first = lines.search(run, "LINE 000", limit=3, context=2)
    assert [row["text"][:11] for row in first.lines] == [
        "line 000000",
        "line 000001",
        "line 000002",
    ] and first.next == 3
    assert [row["n"] for row in first.lines[1]["before"]] == [1] and [
        row["n"] for row in first.lines[1]["following"]
    ] == [3, 4]
    edge = lines.search(run, "line 001000", context=2).lines[
        0
    ]  # its neighbours lie in other pieces, past a line of another output
    assert [row["text"][:11] for row in edge["before"]] == ["line 000998", "line 000999"]
    found, after = [], 0
    for _ in range(1000):
        part = lines.search(run, "line", limit=500, after=after, within_s=0.0)  # as slow as can be: one piece a call
        found += [row["n"] for row in part.lines]
        if part.next is None:
            break
        assert part.next > after
        after = part.next
    assert len(found) == 6000 == len(set(found)) and found == sorted(found)
    assert [row["rank"] for row in lines.search(run, "o", rank=1).lines] == [1] * 6
    assert len(lines.search(run, "o", step="b").lines) == 6


def test_lines_of_a_rank_are_not_read_twice(run: Run) -> None:
    to = Recorder(run, TOKEN)
    write(to, flood(3000))
    answer = lines.lines(run, rank=1)
    assert (answer["lines"], answer["next"]) == ([], 3000)
    write(to, b"mine\n", key="b")
    assert [row["text"] for row in lines.lines(run, rank=1, after=3000)["lines"]] == ["mine"]


def test_a_read_of_long_lines_is_bounded_and_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_BYTES", 300_000)
    to = Recorder(run, TOKEN)
    for n in range(10):
        write(to, b"%d" % n * 100_000 + b"\n")
    seen: list[dict[str, Any]] = []
    while True:
        answer = lines.lines(run, after=seen[-1]["n"] if seen else 0)
        if not answer["lines"]:
            break
        assert sum(len(row["text"]) for row in answer["lines"]) < 500_000
        seen += answer["lines"]
    assert "".join(row["text"] for row in seen) == "".join(str(n) * 100_000 for n in range(10))
    back = lines.lines(run, before=2**62)["lines"]
    assert 0 < len(back) < len(seen) and back == seen[-len(back) :]


@pytest.mark.parametrize("size", [1, 40_000])
def test_forwards_and_backwards_say_the_same(run: Run, size: int) -> None:
    to = Recorder(run, TOKEN)
    for start in range(0, 3000, 100):
        write(to, flood(100, start) if size == 1 else flood(100, start).replace(b"token", b"x" * 300))
    forwards, after = [], 0
    while rows := lines.lines(run, after=after, limit=77)["lines"]:
        forwards += rows
        after = rows[-1]["n"]
    backwards, before = [], 2**62
    while rows := lines.lines(run, before=before, limit=131)["lines"]:
        backwards = rows + backwards
        before = rows[0]["n"]
    assert forwards == backwards and [row["n"] for row in forwards] == list(range(1, 3001))


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("", 200, slice(None)),
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=100000-", 206, slice(100_000, None)),
        ("bytes=31000-99999", 206, slice(31_000, 100_000)),
        ("bytes=-17", 206, slice(-17, None)),
        ("bytes=0-99999999999", 206, slice(None)),
        ("bytes=99999999999-", 416, slice(0, 0)),
        ("bytes=-", 200, slice(None)),
        ("lines=1-2", 200, slice(None)),
        ("bytes=1-2,5-6", 200, slice(None)),
    ],
)
def test_ranges_of_a_download(run: Run, asked: str, status: int, part: slice) -> None:
    raw = flood(5000) + b"\x1b[31mred\x1b[0m \0 \xff and no end"
    write(Recorder(run, TOKEN, secrets=(SECRET,)), raw, ended=True)
    whole = mask(raw, (SECRET,))
    request = RequestFactory().get("/", headers={"Range": asked} if asked else {})
    answer = downloads.response(request, lines.Download(run, step="a"), "run.log")
    body = b"".join(answer.streaming_content) if status != 416 else b""  # type: ignore[attr-defined]
    assert (answer.status_code, body) == (status, whole[part])
    if status != 416:
        assert int(answer["Content-Length"]) == len(body) and answer["Accept-Ranges"] == "bytes"
    if status == 206:
        start = whole.index(body) if len(body) > 17 else whole.rindex(body) if asked == "bytes=-17" else 0
        assert answer["Content-Range"] == f"bytes {start}-{start + len(body) - 1}/{len(whole)}"


def test_a_range_of_what_has_changed_is_not_given(run: Run, small: None) -> None:
    to = Recorder(run, TOKEN)
    write(to, flood(2000))
    tag = downloads.response(RequestFactory().get("/"), lines.Download(run, step="a"), "x")["ETag"]

    def status() -> int:
        request = RequestFactory().get("/", headers={"Range": "bytes=5-", "If-Range": tag})
        return int(downloads.response(request, lines.Download(run, step="a"), "x").status_code)

    write(to, b"more\n")  # behind what somebody has
    assert status() == 206
    write(to, flood(40_000), ended=True)  # a part before the end is gone
    assert status() == 200


# Deaths and other troubles


def test_another_collector_changes_nothing(run: Run) -> None:
    first = Recorder(run, TOKEN)
    write(first, b"one\n")
    Run.objects.filter(pk=run.pk).update(lease_token="another")
    second = Recorder(run, "another")
    write(second, b"two\n")
    for late in (b"two\n", b"three\n"):
        with pytest.raises(LeaseLost):
            write(first, late)
    assert b"".join(lines.download(run, step="a")) == b"one\ntwo\n"


def test_the_collector_does_not_advance_while_the_database_is_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = flood(3000)
    write(Recorder(run, TOKEN), raw[:50_000])
    stored = Recorder(run, TOKEN).position("a")
    lost = Recorder(run, TOKEN)
    at = lost.position("a")

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(Stream, "save", away)  # the last statement of the transaction
    with pytest.raises(OperationalError):
        write(lost, raw[at : at + 40_000])
    monkeypatch.undo()
    again = Recorder(run, TOKEN)
    assert again.position("a") == stored
    write(again, raw[stored:], ended=True)
    assert b"".join(lines.download(run, step="a")) == mask(raw)
    assert [row["n"] for row in lines.lines(run, limit=5000)["lines"]] == list(range(1, 3001))


def test_a_file_that_was_emptied_under_the_job_is_marked_and_followed_on(run: Run) -> None:
    to = Recorder(run, TOKEN)
    write(to, b"before 1\nbefore 2\nhalf a li")
    assert to.befell("a", "log_shrunk")
    assert to.position("a") == 0
    other = Recorder(run, TOKEN)  # also after another worker took over
    assert other.position("a") == 0
    write(other, b"after 1\nafter 2\n")
    assert Recorder(run, TOKEN).position("a") == 16
    assert b"".join(lines.download(run, step="a")) == b"before 1\nbefore 2\nhalf a liafter 1\nafter 2\n"
    notes = [row["text"] for row in lines.lines(run)["lines"] if row["stream"] == "note"]
    assert len(notes) == 1 and "emptied or replaced" in notes[0] and "not affected" in notes[0]
    assert other.befell("a", "log_shrunk") and other.position("a") == 0  # as often as it happens
    assert other.befell("a", "log_capped") and not other.befell("a", "log_capped")
    said = dict((stream.step.key, words) for stream, words in lines.kept(run).marks)
    assert len(said["a"]) == 2


# Engines that serve


class Door:
    """Jobs of a node as serving.follow asks for them: files in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.state = "running"
        self.note: str | None = None
        self.away = False
        self.asked = 0

    def look(self, asked: Any, *, limit: int) -> list[JobLook]:
        self.asked += 1
        if self.away:
            raise RemoteError("ssh_timeout", hop="spark-1", evidence="no answer")
        found = []
        for job, offset in asked:
            data = self.files[job]
            if offset > len(data):
                found.append(JobLook(job, self.state, size=len(data), note="log_shrunk"))
                continue
            part = data[offset : offset + limit]
            state = self.state if offset + len(part) == len(data) else "running"
            found.append(JobLook(job, state, data=part, size=len(data), note=self.note))
        return found


@pytest.fixture
def door(run: Run, monkeypatch: pytest.MonkeyPatch) -> Door:
    made = Door()

    class NoPool:
        def get(self, door: Any) -> str:
            return str(door.name)

    monkeypatch.setattr(
        serving, "_doors", lambda nodes: {node: Endpoint(node, "127.0.0.1", 22, "u", "") for node in nodes}
    )
    monkeypatch.setattr(serving, "pool", NoPool)
    monkeypatch.setattr(serving, "NodeJobs", lambda transport, timeout_s: made)
    monkeypatch.setattr(serving, "_away", {})
    return made


@pytest.fixture
def engine(run: Run, door: Door, tmp_path: Path) -> Step:
    key = inventory.make_credential(ADMIN, name="key", private_key=make_key(tmp_path / "key"))
    node = Node.objects.create(name="spark-1", address="127.0.0.1", port=22, user="u", credential=key, state="ready")
    step = Step.objects.create(
        run=run,
        stage=1,
        ordinal=2,
        key="serve.engine.spark-1",
        title="Serve",
        kind="serve",
        rank=0,
        node=node,
        job_id="c0de-2",
    )
    plan = {"story": "launch", "deployment": 1, "revision": 1, "nodes": ["spark-1"], "stages": []}
    Run.objects.filter(pk=run.pk).update(plan=plan)
    write(Recorder(run, TOKEN), b"loading\n", key=step.key)
    Run.objects.filter(pk=run.pk).update(state="succeeded", ended_at=timezone.now(), lease_token="", lease_until=None)
    door.files["c0de-2"] = b"loading\nserving\n"
    run.refresh_from_db()
    return step


def engine_lines(run: Run) -> list[str]:
    return [
        row["text"] for row in lines.lines(Run.objects.get(pk=run.pk), limit=5000)["lines"] if row["stream"] == "output"
    ]


def test_an_engine_is_followed_after_its_run(run: Run, engine: Step, door: Door) -> None:
    serving.follow()
    assert engine_lines(run) == ["loading", "serving"]
    answer = lines.lines(run)
    assert answer["serving"] and answer["ended"]
    door.files["c0de-2"] += b"request 1\nunfinish"
    serving.follow()
    door.files["c0de-2"] += b"ed\n"
    serving.follow()
    assert engine_lines(run)[-2:] == ["request 1", "unfinished"]
    run.refresh_from_db()
    assert (run.state, run.lease_token, run.lease_until) == ("succeeded", "", None)
    door.files["c0de-2"] += b"the last words"
    door.state = "exited"
    serving.follow()
    assert engine_lines(run)[-1] == "the last words" and not lines.lines(run)["serving"]
    asked = door.asked
    serving.follow()
    assert door.asked == asked and serving.serving() == []


def test_a_loud_engine_is_read_on_and_bounded(run: Run, engine: Step, door: Door, small: None) -> None:
    door.files["c0de-2"] += flood(60_000)
    serving.follow()
    stream = Stream.objects.get(step=engine)
    assert stream.offset == len(door.files["c0de-2"]) and stream.gap_end > 0
    assert sum(stream.chunks.values_list("length", flat=True)) < 500_000


def test_a_node_that_is_away_is_asked_ever_less_and_nothing_is_lost(
    run: Run, engine: Step, door: Door, settings: Any
) -> None:
    settings.FOLLOW_PERIOD_S = 5
    door.away = True
    for _ in range(5):
        serving.follow()
    assert door.asked == 1 and engine_lines(run) == ["loading"]
    door.away = False
    serving._away.clear()
    serving.follow()
    assert engine_lines(run) == ["loading", "serving"]


@pytest.mark.parametrize("how", ["removed", "missing", "deleted under the engine"])
def test_a_log_that_is_gone_ends(run: Run, engine: Step, door: Door, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "removed":
        engine.node = None
        engine.save()
    elif how == "missing":
        door.state, door.files["c0de-2"] = "missing", b""
    else:
        monkeypatch.setattr(
            door, "look", lambda asked, **_: [JobLook(job, "running", note="log_gone") for job, _ in asked]
        )
    serving.follow()
    assert not lines.lines(run)["serving"] and engine_lines(run) == ["loading"]
    assert "the file there is gone" in lines.kept(run).marks[0][1][0]


def test_an_emptied_log_is_followed_from_its_new_beginning(run: Run, engine: Step, door: Door) -> None:
    serving.follow()
    door.files["c0de-2"] = b"new\n"
    serving.follow()
    assert engine_lines(run) == ["loading", "serving", "new"]


def test_two_workers_do_not_follow_the_same_engine_at_once(run: Run, engine: Step, door: Door) -> None:
    Run.objects.filter(pk=run.pk).update(lease_token="another", lease_until=timezone.now() + timedelta(seconds=30))
    serving.follow()
    assert door.asked == 0
    Run.objects.filter(pk=run.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    serving.follow()
    assert engine_lines(run) == ["loading", "serving"]


def test_a_run_that_failed_or_was_stopped_is_not_followed(run: Run, engine: Step, door: Door) -> None:
    Run.objects.filter(pk=run.pk).update(state="failed")
    serving.follow()
    assert door.asked == 0
