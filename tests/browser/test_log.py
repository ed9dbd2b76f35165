"""The log pane: by the socket alone, by polling alone, at the bottom and away from it, in a log that is long."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Site

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
BADGE = "[data-log=badge]"


def write(site: Site, text: str, *, key: str = "serve.engine", run: int | None = None) -> None:
    """More output, written by another process as a worker would."""
    site.python(
        "from apps.runs.models import Run; from apps.runs.recorder import Recorder\n"
        f'run = Run.objects.get(pk={run or site.ids["loading"]}); recorder = Recorder(run, "the seed\'s lease")\n'
        f"key = run.steps.filter(key__startswith={key!r}).first().key\n"
        f"recorder.output(key, offset=recorder.position(key), data={text.encode()!r}, ended=True)\n"
    )


def expect(page: Any, condition: str, *, within: float = 12000) -> None:
    """Wait until the condition holds. Asked through the debugger: the page's own policy forbids eval."""
    until = time.monotonic() + within / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < until, f"not within {within / 1000:.0f} s: {condition}"
        page.wait_for_timeout(50)


def once(words: str) -> str:
    """Words that no try before this one has written."""
    return f"{words} {uuid.uuid4().hex[:8]}"


def has_line(text: str) -> str:
    return f"[...document.querySelectorAll('.line-text')].some(line => line.textContent.includes({text!r}))"


def badge_is(word: str) -> str:
    return f"document.querySelector({BADGE!r}).dataset.state === {word!r}"


def test_lines_come_by_the_socket_when_all_polling_is_blocked(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("operator").new_page()
    asked: list[str] = []

    def block(route: Any) -> None:
        asked.append(route.request.url)
        route.abort()

    page.route(lambda url: "/lines" in url, block)
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    expect(page, has_line("RayWorkerWrapper"))
    words = once("written while you watch")
    write(site, f"{words}\n")
    expect(page, has_line(words))
    assert asked == []


def test_lines_come_by_polling_when_the_socket_is_blocked(site: Site, signed_in: Callable[..., Any]) -> None:
    window = signed_in("operator")
    page = window.new_page()
    page.route_web_socket("**/ws/live", lambda socket: socket.close(code=1011))
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("polling"))
    words = once("written for pollers")
    write(site, f"{words}\n")
    expect(page, has_line(words))
    page.unroute_all()
    assert page.locator(BADGE).inner_text() == "polling"


def test_it_goes_from_polling_to_live_without_losing_or_doubling(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("operator").new_page()
    closed = {"on": True}

    def door(socket: Any) -> None:
        if closed["on"]:
            socket.close(code=1011)
        else:
            socket.connect_to_server()

    page.route_web_socket("**/ws/live", door)
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("polling"))
    write(site, "polled 1\npolled 2\n")
    expect(page, has_line("polled 2"))
    closed["on"] = False
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page, badge_is("live"), within=20000)
    write(site, "live 3\n")
    expect(page, has_line("live 3"))
    texts = page.locator(".line-text").all_inner_texts()
    assert [text for text in texts if text.startswith(("polled", "live "))][-3:] == ["polled 1", "polled 2", "live 3"]


def test_it_follows_only_at_the_bottom(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("operator").new_page()
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    write(site, "".join(f"filler {n}\n" for n in range(300)))
    expect(page, has_line("filler 299"))
    page.locator("[data-log=view]").hover()
    page.mouse.wheel(0, -1500)
    expect(page, "document.querySelector('[data-log=pill]').dataset.follow === 'false'")
    top = page.evaluate("document.querySelector('[data-log=view]').scrollTop")
    write(site, "news 1\nnews 2\n")
    expect(page, "document.querySelector('[data-log=pill]').textContent.includes('2 new lines')")
    assert abs(page.evaluate("document.querySelector('[data-log=view]').scrollTop") - top) < 30
    page.locator("[data-log=pill]").click()
    expect(page, has_line("news 2"))
    expect(page, "document.querySelector('[data-log=pill]').dataset.follow === 'true'")
    page.locator("h1").click()
    page.keyboard.press("f")
    expect(page, "document.querySelector('[data-log=pill]').dataset.follow === 'false'")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"


def test_a_long_log_stays_small_in_the_page(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("viewer").new_page()
    write(site, "".join(f"many {n:05d}\n" for n in range(30000)))
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, has_line("many 29999"))
    for _ in range(6):
        page.locator("[data-log=view]").hover()
        page.mouse.wheel(0, -4000)
        page.wait_for_timeout(250)
        assert page.locator(".line").count() <= 500
    page.locator("[data-log=search] input").fill("many 00042")
    page.keyboard.press("Enter")
    page.locator("[data-log=found] a").first.click()
    expect(page, has_line("many 00042"))
    expect(page, "document.querySelector('.line[data-marked=true] .line-text')?.textContent === 'many 00042'")
    assert page.evaluate("location.hash").startswith("#L")
    numbers = [int(text.replace(" ", "").replace("\xa0", "")) for text in page.locator(".line-n").all_inner_texts()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    page.reload()
    expect(page, "document.querySelector('.line[data-marked=true] .line-text')?.textContent === 'many 00042'")
    page.locator("[data-log=pill]").click()
    expect(page, has_line("many 29999"))


VIEW = "document.querySelector('[data-log=view]')"
NUMBERS = "[...document.querySelectorAll('.line-n')].map((one) => Number(one.textContent.replace(/\\D/g, '')))"
SEEN = f"""(() => {{ const box = {VIEW}.getBoundingClientRect();
  return [...document.querySelectorAll('.line')].filter((row) => row.getBoundingClientRect().bottom > box.top
    && row.getBoundingClientRect().top < box.bottom).map((row) => Number(row.dataset.n)); }})()"""


def test_the_scrollbar_is_that_of_the_whole_log(site: Site, signed_in: Callable[..., Any]) -> None:
    """Dragged to anywhere, the lines of that place are shown; the page never holds all of them."""
    page = signed_in("viewer").new_page()
    write(site, "".join(f"place {n:06d}\n" for n in range(50_000)))
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, has_line("place 049999"))
    total = max(page.evaluate(NUMBERS))
    for share in (0.5, 0.1, 0.9, 0.0):
        page.evaluate(f"{VIEW}.scrollTop = {VIEW}.scrollHeight * {share}")
        wanted = f"{SEEN}.length > 5 && Math.abs({SEEN}[0] - {total} * {share}) < {total} * 0.05"
        expect(page, wanted, within=20000)
        assert page.locator(".line").count() <= 500
        page.wait_for_timeout(600)  # it stays there
        assert page.evaluate(wanted), page.evaluate(SEEN)[:1]
    page.locator("[data-log=pill]").click()
    expect(page, has_line("place 049999"))


def test_a_link_to_a_line_shows_it_also_behind_a_gap(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("viewer").new_page()
    words = once("kept or not")
    write(site, "".join(f"{words} {n:06d}\n" for n in range(20_000)))
    number = int(site.python(GAP.replace("RUN", str(site.ids["loading"]))).strip())
    page.goto(f"/runs/{site.ids['loading']}#L{number}")
    expect(page, f"{SEEN}.includes({number})")
    expect(
        page, "document.querySelector('.line[data-marked=true] .line-gap')?.textContent.includes('are not kept here')"
    )
    assert "The job is not affected" in page.locator("#run-live").inner_text()
    page.locator("[data-log=search] input").fill(f"{words} 019990")
    page.keyboard.press("Enter")
    expect(page, "document.querySelectorAll('[data-log=found] .found-hit').length === 1")
    assert page.locator("[data-log=found] .found-around").all_inner_texts()[0].endswith(f"{words} 019989")
    site.python(
        "from apps.runs.models import Stream; Stream.objects.filter(gap_end__gt=0).update(gap_start=0, gap_end=0)"
    )


GAP = """
from apps.runs.models import *
stream = Stream.objects.filter(run_id=RUN, name="output").order_by("-offset").first()
chunks = list(stream.chunks.order_by("offset"))
gone = chunks[-8:-4]
stream.gap_start, stream.gap_end, stream.gap_lines = gone[0].offset, chunks[-4].offset, sum(one.line_count for one in gone)
stream.save()
Chunk.objects.filter(pk__in=[one.pk for one in gone]).delete()
print(chunks[-4].first_line)
"""


def test_copy_notes_and_download(site: Site, signed_in: Callable[..., Any]) -> None:
    window = signed_in("viewer")
    window.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.new_page()
    write(site, "\x1b[31mfor the clipboard\x1b[0m\n")
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, has_line("for the clipboard"))
    page.locator("[data-log=copy]").click()
    expect(page, "document.querySelector('[data-log=copy]').textContent.startsWith('copied')")
    assert page.evaluate("navigator.clipboard.readText()").endswith("\nfor the clipboard")
    page.goto(f"/runs/{site.ids['loading']}#L1")
    expect(page, "document.querySelectorAll('.line[data-level=note]').length > 3")
    page.locator("[data-log=notes]").click()
    expect(
        page,
        "document.querySelectorAll('.line[data-level=note]').length === 0 && document.querySelectorAll('.line').length > 0",
    )
    page.locator("[data-log=notes]").click()
    with page.expect_download() as started:
        page.locator("[data-log=download]").click()
    assert b"\x1b[31mfor the clipboard\x1b[0m\n" in Path(started.value.path()).read_bytes()


def test_redraws_collapse_and_colours_are_no_markup(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("viewer").new_page()
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    mine = time.monotonic_ns()  # the log is that of all tests here, and of those that are tried again
    write(
        site,
        f"{mine} fetching 1%\r{mine} fetching 2%\r{mine} fetching 3%\r{mine} fetching 99%\n"
        f"\x1b[31mred {mine}\x1b[0m <img src=x onerror=alert(1)> \x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07\nbehind {mine}\n",
    )
    expect(page, has_line(f"behind {mine}"))
    texts = page.locator(".line-text").all_inner_texts()
    assert [text for text in texts if "fetching" in text and str(mine) in text] == [f"{mine} fetching 99%"]
    assert any(text == f"red {mine} <img src=x onerror=alert(1)> link" for text in texts)
    assert page.locator(".line-text img, .line-text a").count() == 0
    assert page.locator("[data-colour=red]", has_text=str(mine)).all_inner_texts() == [f"red {mine}"]


def test_tabs_filter_and_steps(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("viewer").new_page()
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    page.get_by_role("tab", name="rank 1").click()
    expect(page, "[...document.querySelectorAll('.line-who')].every(who => who.textContent === 'rank 1')")
    page.get_by_role("tab", name="All ranks").click()
    page.locator("[data-log=step]").select_option(index=1)
    expect(page, has_line("Look at spark-1a32"))
    page.locator("[data-log=filter]").fill("nothing holds this")
    expect(page, "!document.querySelector('[data-log=empty]').hidden")


def test_signed_out_while_watching(site: Site, signed_in: Callable[..., Any]) -> None:
    number, cookie = site.python(SOMEBODY).split()
    window = signed_in("viewer")
    window.add_cookies([{"name": site.ids["cookie"], "value": cookie, "url": site.url}])
    page = window.new_page()
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    site.python(
        "from apps.people.models import User; from apps.doorbell.ring import ring\n"
        f"User.objects.filter(pk={number}).update(access_version=99); ring('person', {number})"
    )
    expect(page, badge_is("closed"), within=11000)
    assert page.locator("#signed-out a").get_attribute("href").startswith("/sign-in?next=")


# Of their own, so that the test can be tried again.
SOMEBODY = """
import uuid
from django.conf import settings
from apps.people.models import User
from tests.web.conftest import browser_of
person = User.objects.create(name=f"auditor-{uuid.uuid4().hex[:8]}", role="auditor")
print(person.pk, browser_of(person).cookies[settings.SESSION_COOKIE_NAME].value)
"""


def test_shard_progress_grows_without_a_reload(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("operator").new_page()
    page.goto(f"/runs/{site.ids['loading']}")
    expect(page, badge_is("live"))
    page.evaluate("window.same = true")
    before = int(re.search(r"(\d+)/39", page.locator("#run-side").inner_text())[1])  # type: ignore[index]
    site.python(
        "from apps.runs.models import Run, Step; from apps.runs.recorder import Recorder\n"
        f"run = Run.objects.get(pk={site.ids['loading']}); step = run.steps.filter(key__startswith='serve.engine').get()\n"
        f"progress = step.progress; more = dict(done={before + 1}, overall={0.35 + (before - 16) / 50})\n"
        "progress['ranks']['0'].update(more); progress['ranks']['1'].update(more)\n"
        'Recorder(run, "the seed\'s lease").progress(step.key, progress, {})\n'
    )
    expect(page, f"document.querySelector('#run-side').textContent.includes('{before + 1}/39')", within=5000)
    assert page.evaluate("window.same") is True
    assert page.locator("h1 + .status").inner_text() == f"loading, shard {before + 1} of 39"


def test_the_theme_is_kept_and_the_plan_ticks_work(site: Site, signed_in: Callable[..., Any]) -> None:
    page = signed_in("editor").new_page()
    page.goto(f"/deployments/{site.ids['draft']}/plan?story=launch")
    page.locator("[data-theme-switch]").first.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    button = page.get_by_role("button", name="Launch", exact=True)
    assert button.is_disabled()
    page.locator("input[name=clear]").first.check()
    page.wait_for_selector("text=systemctl stop")
    assert page.locator("input[name=clear]").first.is_checked() and button.is_enabled()
    page.locator("input[name=disable]").first.check()
    page.wait_for_selector("text=systemctl disable")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
