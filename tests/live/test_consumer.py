"""The socket: what it sends and in which order, to whom, and when it closes."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from apps.doorbell.ring import ring
from apps.live import consumer, messages
from apps.live.hub import hub
from apps.people.models import User
from apps.runs.models import Run
from apps.runs.recorder import Recorder
from tests.live.conftest import cookie_of, page


def played(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async_to_sync(act)()


def write(recorder: Recorder, key: str, text: str) -> None:
    recorder.output(key, offset=recorder.position(key), data=text.encode(), ended=False)


def test_the_tail_comes_first_then_every_line_once(run: Run, recorder: Recorder, person: User, bell: None) -> None:
    cookie = cookie_of(person)
    write(recorder, "a", "".join(f"line {n}\n" for n in range(1, 1001)))

    async def act() -> None:
        socket = page(cookie)
        assert await socket.connect()
        await socket.say(op="log", run=run.pk)
        first = await socket.hear_type("snapshot")
        seen = [line["n"] for line in first["lines"]]
        while seen[-1] < 1000:  # what does not fit into one frame follows in others
            seen += [line["n"] for line in (await socket.hear_type("lines"))["lines"]]
        assert seen == list(range(1001 - consumer.TAIL_LINES, 1001))
        assert first["total"] == 1000 and not first["ended"]
        await sync_to_async(write)(recorder, "b", "after 1\nafter 2\n")
        more = await socket.hear_type("lines")
        assert [(line["n"], line["rank"], line["text"]) for line in more["lines"]] == [
            (1001, 1, "after 1"),
            (1002, 1, "after 2"),
        ]
        await socket.disconnect()

    played(act)


def test_who_comes_again_goes_on_after_their_cursor(run: Run, recorder: Recorder, person: User, bell: None) -> None:
    cookie = cookie_of(person)
    write(recorder, "a", "".join(f"line {n}\n" for n in range(1, 2501)))

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=run.pk, after=10)
        seen: list[int] = []
        while len(seen) < 2490:
            text = await socket.receive_text(5)
            assert len(text.encode()) <= messages.FRAME_BYTES
            seen += [line["n"] for line in json.loads(text).get("lines", [])]
        assert seen == list(range(11, 2501))
        await socket.disconnect()

    played(act)


@pytest.mark.parametrize("after", [6, 2**61])
def test_a_cursor_behind_the_end_gets_the_tail_and_what_comes(
    run: Run, recorder: Recorder, person: User, bell: None, after: int
) -> None:
    """An older backup was restored under an open page: what it has seen is not there, or other lines have its numbers."""
    cookie = cookie_of(person)
    write(recorder, "a", "".join(f"line {n}\n" for n in range(1, 6)))

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=run.pk, after=after)
        told = await socket.hear_type("snapshot")
        assert [line["n"] for line in told["lines"]] == [1, 2, 3, 4, 5] and told["next"] == 5
        await sync_to_async(write)(recorder, "a", "line 6\n")
        told = await socket.hear_type("lines")
        assert [line["n"] for line in told["lines"]] == [6]
        await socket.disconnect()

    played(act)


def test_long_lines_are_cut_into_frames(run: Run, recorder: Recorder, person: User, bell: None) -> None:
    cookie = cookie_of(person)
    write(recorder, "a", "".join("ü" * 4000 + "\n" for _ in range(60)))

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=run.pk)
        seen = 0
        while seen < 60:
            text = await socket.receive_text(5)
            assert len(text.encode()) <= messages.FRAME_BYTES
            seen += len(json.loads(text).get("lines", []))
        await socket.disconnect()

    played(act)


def test_without_the_doorbell_lines_come_a_little_later(
    run: Run, recorder: Recorder, person: User, settings: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    cookie = cookie_of(person)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="watch", objects=[f"run:{run.pk}"])
        await socket.say(op="log", run=run.pk)
        assert (await socket.hear_type("snapshot"))["lines"] == []
        await sync_to_async(write)(recorder, "a", "slow but sure\n")
        kinds = {}
        while {"lines", "changed"} - set(kinds):
            message = await socket.hear(10)
            kinds[message["type"]] = message
        assert kinds["lines"]["lines"][0]["text"] == "slow but sure"
        assert kinds["changed"]["id"] == run.pk
        await socket.disconnect()

    played(act)


def test_news_only_of_what_is_watched(run: Run, person: User, bell: None) -> None:
    cookie = cookie_of(person)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="watch", objects=["run:7", "fleet:0"])
        await socket.say(op="ping")
        await socket.hear_type("pong")
        for _ in range(100):
            if hub().connected:
                break
            await sync_to_async(ring)("node", 1)
            import asyncio

            await asyncio.sleep(0.05)
        for kind, identity, version in (("run", 8, 1), ("deployment", 7, 1), ("run", 7, 5)):
            await sync_to_async(ring)(kind, identity, version)
        while True:
            message = await socket.hear_type("changed")
            assert (message["object"], message["id"]) in (("run", 7), ("fleet", 0))
            if message["version"] == 5:
                break
        await socket.disconnect()

    played(act)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"op":"launch"}',
        '{"op":"log"}',
        '{"op":"log","run":"1"}',
        '{"op":"log","run":true}',
        '{"op":"log","run":1,"after":-1}',
        '{"op":"watch","objects":["run"]}',
        '{"op":"watch","objects":"run:1"}',
        '{"op":"log","run":99999999999999999999999}',
        "[" * 9000,
        '{"op":"watch","objects":[' + ",".join('"run:1"' for _ in range(500)) + "]}",
    ],
)
def test_nonsense_is_refused_and_the_socket_stays(text: str, person: User, bell: None, transactional_db: None) -> None:
    cookie = cookie_of(person)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.send_text(text)
        assert (await socket.hear_type("refused"))["why"]
        await socket.say(op="ping")
        await socket.hear_type("pong")
        await socket.disconnect()

    played(act)


def test_a_run_that_is_not_there(person: User, bell: None, transactional_db: None) -> None:
    cookie = cookie_of(person)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="log", run=4242)
        assert "4242" in (await socket.hear_type("refused"))["why"]
        await socket.say(op="page", run=4242, after=0)
        await socket.hear_type("refused")
        await socket.disconnect()

    played(act)


def test_pages_of_lines_on_request(run: Run, recorder: Recorder, person: User, bell: None) -> None:
    cookie = cookie_of(person)
    write(recorder, "a", "".join(f"line {n}\n" for n in range(1, 51)))
    write(recorder, "b", "other\n")

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="page", run=run.pk, before=20, limit=5)
        answer = await socket.hear_type("page")
        assert [line["n"] for line in answer["lines"]] == [15, 16, 17, 18, 19] and answer["before"] == 20
        await socket.say(op="page", run=run.pk, after=0, rank=1)
        assert [line["text"] for line in (await socket.hear_type("page"))["lines"]] == ["other"]
        await socket.disconnect()

    played(act)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "http://127.0.0.1:8001",
        "http://localhost:8000.evil.example",
        "https://127.0.0.1:8000",
        "null",
        "http://127.0.0.1:8000x",
        "http://127.0.0.1:8000, http://evil",
    ],
)
def test_other_pages_may_not_open_it(origin: str, person: User, transactional_db: None) -> None:
    cookie = cookie_of(person)

    async def act() -> None:
        assert not await page(cookie, origin).connect()

    played(act)


def test_not_signed_in(transactional_db: None) -> None:
    async def act() -> None:
        for cookie in (b"", b"sparkweb_8000=nonsense", b"\xff=;;"):
            socket = page(cookie)
            assert await socket.connect()
            assert await socket.closed_with() == consumer.NOT_SIGNED_IN

    played(act)


@pytest.mark.parametrize("ringing", [True, False], ids=["person doorbell", "only the slow check"])
@pytest.mark.parametrize("change", ["deactivated", "role", "signed out"])
def test_it_closes_soon_after_the_right_is_gone(
    change: str,
    ringing: bool,
    person: User,
    bell: None,
    transactional_db: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not ringing:
        monkeypatch.setattr(consumer, "CHECK_S", 1.0)
    cookie = cookie_of(person)

    def take_away() -> None:
        from django.contrib.sessions.models import Session

        if change == "signed out":
            Session.objects.all().delete()
        else:
            fields = (
                {"active": False}
                if change == "deactivated"
                else {"role": "operator", "access_version": person.access_version + 1}
            )
            User.objects.filter(pk=person.pk).update(**fields)
        if ringing:
            ring("person", person.pk)

    async def act() -> None:
        socket = page(cookie)
        await socket.connect()
        await socket.say(op="ping")
        await socket.hear_type("pong")
        await sync_to_async(take_away)()
        assert await socket.closed_with(10) == consumer.NOT_ALLOWED

    played(act)
