"""The main job as a person does it: from nothing to serving, a reboot, a relaunch by somebody else; all of it in a browser.

One test, because each chapter needs what the one before it made, and a stack takes its time to start.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import free_port
from tests.browser.stack import RealStack, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
HEAD, SECOND = "spark-1a32", "spark-5be3"
FABRIC_ADDRESS = "192.168.200.13"
PASSWORD = "correct horse battery"
FACTOR, SHARDS, LOAD_S = 60, 20, 16.0  # everything pretended is this much faster, but a load takes about LOAD_S
WATCH_PERIOD_S = 3
LAUNCH_WHY, RELAUNCH_WHY = "first launch, the old stack may go", "both were rebooted, we need it back"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[RealStack]:
    lab = ["--factor", str(FACTOR), "--shards", str(SHARDS), "--shard-seconds", str(FACTOR * LOAD_S / SHARDS)]
    made = RealStack(tmp_path, port=free_port(), settings={"WATCH_PERIOD_S": str(WATCH_PERIOD_S)}, lab=lab)
    try:
        yield made
    finally:
        made.end()


class Person:
    """Somebody in a browser window of their own. Whatever the page says in the console as an error is kept."""

    def __init__(self, window: Any, expect: Callable[..., Any]) -> None:
        self.page, self.expect = window.new_page(), expect
        self.page.set_default_timeout(20000)
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))

    def sees(self, text: str | re.Pattern[str], *, within_s: float = 20, where: str = "#main") -> None:
        self.expect(self.page.locator(where)).to_contain_text(text, timeout=within_s * 1000)

    def types(self, **values: str) -> None:
        """Into the inputs of these names."""
        for name, value in values.items():
            self.page.locator(f"#field-{name}").fill(value)

    def presses(self, name: str | re.Pattern[str]) -> None:
        self.page.get_by_role("button", name=name).first.click()

    def follows(self, name: str | re.Pattern[str], *, within: str = "body") -> None:
        self.page.locator(within).get_by_role("link", name=name).first.click()

    def refused(self, field: str, *, remedy: str) -> None:
        """The message stands beside its field, with what to do, and the field is marked."""
        marked = self.page.locator(f"[name={field}][aria-invalid=true]")
        self.expect(marked).to_be_visible()
        beside = self.page.locator(f".field:has([name={field}][aria-invalid=true]) .error")
        self.expect(beside).to_contain_text(remedy)
        assert "Traceback" not in self.page.content()

    def value(self, name: str) -> str:
        return str(self.page.locator(f"#field-{name}").input_value())

    @contextlib.contextmanager
    def without_reload(self) -> Iterator[None]:
        """The document that is open now is the one that is open at the end."""
        self.page.evaluate("window.sameDocument = 'yes'")
        yield
        assert self.page.evaluate("window.sameDocument") == "yes"

    def picture(self, name: str) -> None:
        folder = os.environ.get("MAIN_JOB_PICTURES")
        if folder:
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=not name.startswith("run"))


def test_the_main_job_in_the_browser(stack: RealStack, browser: Any) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=20000)  # this machine may be busy with other tests
    windows = []

    def person(**more: Any) -> Person:
        more = {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light", **more}
        windows.append(browser.new_context(base_url=stack.url, device_scale_factor=1, **more))
        return Person(windows[-1], expect)

    began = time.monotonic()

    def chapter(title: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {title}", flush=True)

    try:
        chapter("first run")
        admin = person()
        create_administrator(admin, stack.code())
        chapter("credentials")
        make_key(admin, stack)
        chapter("enrol both")
        refuse_bad_nodes(admin)
        head, second = enrol_both(admin, stack)
        chapter("probe")
        probe_both(admin, head, second)
        chapter("new deployment and its plan")
        describe_deployment(admin)
        chapter("launch without a worker, then with one")
        run = launch(admin, stack, chapter)
        chapter("serving; the deployment and the trail")
        deployment = read_deployment(admin)
        read_trail(admin, "ada", LAUNCH_WHY, run)
        chapter("the operator comes by a link")
        operator = person()
        person_page = invite(admin, operator)
        chapter("both reboot")
        see_it_replaced(admin, stack)
        chapter("relaunch by the operator")
        again = relaunch(operator, deployment, chapter)
        read_trail(admin, "otto", RELAUNCH_WHY, again)
        chapter("deactivation")
        deactivate(admin, operator, person_page)
        chapter("end")
        assert admin.troubles + operator.troubles == []
    except BaseException:
        folder = os.environ.get("MAIN_JOB_PICTURES")
        for number, window in enumerate(windows if folder else []):
            window.pages[0].screenshot(path=f"{folder}/failed-{number}.png", full_page=True)
        print(stack.logs())
        raise
    finally:
        for window in windows:
            window.close()
    assert not stack.tracebacks(), "\n\n".join(stack.tracebacks())


def path_of(page: Any) -> str:
    """The page's address without scheme and host."""
    return "/" + str(page.url).split("/", 3)[3]


def create_administrator(admin: Person, code: str) -> None:
    admin.page.goto("/")
    assert admin.page.url.endswith("/first-run")
    admin.types(code="AAAAA-BBBBB-CCCCC-DDDDD", name="ada", password=PASSWORD)
    admin.presses("Create administrator")
    admin.refused("code", remedy="")
    assert admin.value("name") == "ada"
    admin.types(code=code, password=PASSWORD)
    admin.presses("Create administrator")
    admin.sees("Begin with a node")
    admin.picture("01-begin")


def make_key(admin: Person, stack: RealStack) -> None:
    admin.follows("Add a node", within="#main")
    admin.sees("First a key")
    admin.follows("Make a key", within="#main")
    page = admin.page
    upload = page.locator("form:has(input[value=upload])")
    upload.locator("[name=name]").fill("pasted")
    upload.locator("[name=private_key]").fill("ssh-ed25519 AAAA this is no private key")
    admin.presses("Keep it")
    admin.refused("private_key", remedy="not the .pub file")
    assert upload.locator("[name=name]").input_value() == "pasted"
    generate = page.locator("form:has(input[value=generate])")
    for _ in range(2):
        generate.locator("[name=name]").fill("sparks")
        admin.presses("Make it")
    admin.refused("name", remedy="Choose another name")
    assert generate.locator("[name=name]").input_value() == "sparks"
    public = page.locator(".rows code", has_text="ssh-ed25519").first.inner_text()
    file = stack.var.parent / "sparks.pub"
    file.write_text(public + "\n")
    stack.sparks()
    stack.lab("authorize", str(file))
    admin.picture("02-credentials")


def refuse_bad_nodes(admin: Person) -> None:
    """A door that does not open changes nothing, says which field to correct and how, and keeps what was typed."""
    admin.page.goto("/nodes/add")
    typed = {"name": HEAD, "address": "spark-9z..lan", "port": "22", "user": "aurora"}
    admin.types(**typed)
    admin.presses("Look at its host keys")
    admin.refused("address", remedy="Correct the name")
    assert {name: admin.value(name) for name in typed} == typed
    typed |= {"address": "127.0.0.1", "port": str(free_port())}
    admin.types(**typed)
    admin.presses("Look at its host keys")
    admin.refused("port", remedy="correct the port")
    assert {name: admin.value(name) for name in typed} == typed
    admin.types(port="22222222")
    admin.presses("Look at its host keys")
    admin.refused("port", remedy="1 to 65535")
    admin.picture("03-bad-node")
    admin.page.goto("/nodes")
    admin.sees("Add a node")
    assert admin.page.locator("a.node-name").count() == 0


def enrol_both(admin: Person, stack: RealStack) -> tuple[str, str]:
    """The paths of both nodes' pages."""
    sparks = stack.sparks()
    fields = {"name": HEAD, "address": "127.0.0.1", "port": str(sparks[HEAD]["port"]), "user": "aurora"}
    head = enrol_one(admin, fields, sparks[HEAD]["host_keys"])
    admin.page.goto("/nodes/add")
    admin.types(**fields)
    admin.presses("Look at its host keys")
    admin.refused("name", remedy="Choose another name")
    second = enrol_one(
        admin,
        {"name": SECOND, "address": FABRIC_ADDRESS, "port": "22", "user": "aurora"},
        sparks[SECOND]["host_keys"],
        jump=HEAD,
    )
    return head, second


def enrol_one(admin: Person, fields: dict[str, str], keys: list[dict[str, str]], jump: str = "") -> str:
    admin.page.goto("/nodes/add")
    admin.types(**fields)
    if jump:
        admin.page.locator("#field-jump").select_option(label=jump)
    admin.presses("Look at its host keys")
    admin.sees("Is this the right machine?", within_s=30)
    if not jump:
        admin.picture("04-confirm")
    shown = admin.page.locator("form[action$='/confirm'] .fingerprint").all_inner_texts()
    known = {key["sha256"] for key in keys}  # what the machine's owner reads out
    assert shown and set(shown) <= known
    admin.page.locator("form[action$='/confirm'] button").first.click()
    admin.sees("is pinned")
    return path_of(admin.page)


def probe_both(admin: Person, head: str, second: str) -> None:
    admin.page.goto("/nodes")
    admin.presses("Probe all now")
    with admin.without_reload():
        admin.sees("succeeded", within_s=60, where=".title")
    admin.picture("05-probe")
    for path in (head, second):
        admin.page.goto(path)
        admin.sees("reachable")
        admin.sees("Memory")
    admin.picture("06-node")


def describe_deployment(admin: Person) -> None:
    admin.page.goto("/deployments/new")
    page = admin.page
    wanted = "qwen3.5-122b-a10b-fp8"
    with page.expect_response(lambda answer: "/deployments/new?" in answer.url):
        page.locator("#field-recipe").select_option("none")
    with page.expect_response(lambda answer: "/deployments/new?" in answer.url):
        page.locator("#field-recipe").select_option(wanted)
    admin.expect(page.locator("#field-model")).to_have_value(re.compile("Qwen3.5-122B"))
    page.locator("#rank-0").select_option(HEAD)
    page.locator("#rank-1").select_option(HEAD)
    admin.types(name="qwen3.5-122b", port="99999")
    admin.presses("Save and look at the plan")
    assert "Traceback" not in page.content()
    admin.expect(page.locator("[aria-invalid=true]").first).to_be_visible()
    admin.expect(page.locator(".field .error").first).to_be_visible()
    assert admin.value("name") == "qwen3.5-122b" and admin.value("port") == "99999"
    admin.picture("07-new-refused")
    admin.types(port="30000")
    page.locator("#rank-1").select_option(SECOND)
    admin.presses("Save and look at the plan")
    admin.sees("What will run")
    for node in (HEAD, SECOND):
        commands = page.locator(".plan-stage", has_text=node).locator(".code").all_inner_texts()
        assert any("docker run" in text for text in commands), node
    admin.expect(page.locator("#what-head + span code")).to_contain_text(re.compile(r"plan [0-9a-f]{7} · \d+ steps"))
    admin.sees("Before it can start")
    admin.picture("08-plan")


def agree(admin: Person) -> None:
    """Tick everything that waits for consent. What was typed and the page stay."""
    page = admin.page
    for _ in range(20):
        boxes = page.locator("input[name=clear]:not(:checked)")
        if not boxes.count():
            break
        with page.expect_response(lambda answer: "/plan?" in answer.url):
            boxes.first.check()
        page.wait_for_timeout(200)  # the swap
    admin.expect(page.locator("footer.launch button[type=submit]")).to_be_enabled()


def launch(admin: Person, stack: RealStack, chapter: Callable[[str], None]) -> str:
    """The path of the run's page."""
    page = admin.page
    page.locator("[name=reason]").fill(LAUNCH_WHY)
    agree(admin)
    assert page.locator("[name=reason]").input_value() == LAUNCH_WHY
    admin.picture("09-plan-agreed")
    with stack.stopped("worker"):
        pressed = time.monotonic()
        admin.presses("Launch")
        page.wait_for_url("**/runs/*")
        answered = time.monotonic() - pressed
        admin.sees("queued")
        assert answered < 5, f"Launch took {answered:.1f} s while no worker was there"
        with admin.without_reload():
            admin.sees("no worker is there", within_s=30)
            admin.sees("queued")
        admin.picture("run-10-queued")
    with admin.without_reload():
        chapter("the worker goes on")
        follow(admin, "run-11-loading")
    return path_of(page)


# Kept by the page itself: a slow test would miss what a person sees.
WATCH_PROGRESS = """() => {
  const seen = window.progressSeen = { shards: [], lines: [], estimates: [] };
  const look = () => {
    const found = (document.querySelector(".title")?.textContent ?? "").match(/shard (\\d+) of (\\d+)/);
    if (!found || seen.shards.at(-1) === Number(found[1])) return;
    seen.shards.push(Number(found[1]));
    seen.lines.push(Math.max(0, ...[...document.querySelectorAll("[data-log=rows] .line-n")].map((one) => Number(one.textContent))));
    const told = [...document.querySelectorAll(".facts dd, .track li b")].map((one) => one.textContent);
    seen.estimates.push(...told.filter((text) => text.includes("about") || text.includes("known")));
  };
  new MutationObserver(look).observe(document.getElementById("main"), { childList: true, subtree: true, characterData: true });
  look();
}"""


def follow(who: Person, name: str) -> None:
    """From queued to serving on the page that is open: shards and lines grow, the estimate is told."""
    page = who.page
    title = page.locator(".title")
    page.evaluate(WATCH_PROGRESS)
    who.expect(title).to_contain_text(re.compile(rf"loading, shard \d+ of {SHARDS}"), timeout=120000)
    who.expect(page.locator("[data-log=badge]")).to_have_text("live")
    who.picture(name)
    who.expect(title).to_contain_text(re.compile("succeeded|failed|cancelled|interrupted"), timeout=120000)
    assert "succeeded" in title.inner_text(), title.inner_text()
    seen = page.evaluate("window.progressSeen")
    assert len(seen["shards"]) >= 3 and seen["shards"] == sorted(seen["shards"]), seen
    assert seen["lines"][-1] > seen["lines"][0], seen
    assert seen["estimates"], "nothing was said of how long it takes"


def read_deployment(admin: Person) -> str:
    admin.picture("run-12-serving")
    admin.follows("Open deployment")
    admin.sees("serving")
    admin.sees("http://127.0.0.1:30000/v1")
    admin.sees("First completion passed")
    admin.picture("13-deployment")
    return path_of(admin.page)


def read_trail(admin: Person, name: str, why: str, run: str) -> None:
    admin.page.goto("/audit")
    row = admin.page.locator("#entries tr", has_text=why)
    admin.expect(row.first).to_contain_text(name)
    assert row.locator(f"a[href='{run}']").count() >= 1
    admin.picture("14-audit")


def invite(admin: Person, operator: Person) -> str:
    """Add the operator and hand over the link. The path of their page in the settings."""
    admin.page.goto("/settings")
    admin.follows("People", within="#main")
    page = admin.page
    admin.types(name="ada")
    page.locator("input[name=role][value=operator]").check()
    admin.presses("Add and make a sign-in link")
    admin.refused("name", remedy="")
    assert page.locator("input[name=role][value=operator]").is_checked() and admin.value("name") == "ada"
    admin.types(name="otto")
    admin.presses("Add and make a sign-in link")
    link = page.locator("#sign-in-link").inner_text()
    admin.picture("15-link")
    person_page = str(page.get_by_role("link", name="otto", exact=True).first.get_attribute("href"))
    operator.page.goto(link)
    operator.sees("Sign in as otto")
    operator.presses("Sign in")
    operator.sees("Fleet")
    return person_page


def see_it_replaced(admin: Person, stack: RealStack) -> None:
    """The Fleet page is open all the time; what happened on the nodes comes to it."""
    admin.page.goto("/")
    admin.sees("1 serving")
    admin.picture("16-fleet-serving")
    with admin.without_reload():
        stack.lab("reboot")
        row = admin.page.locator(".deployment", has_text="qwen3.5-122b")
        admin.expect(row).to_contain_text(re.compile("lost: replaced"), timeout=60000)
        admin.expect(row.locator(".quote")).to_contain_text("vllm_node")  # what holds its place
        admin.expect(row.locator(".quote")).to_contain_text("vllm-cluster.service")
        admin.sees("watch probed")  # fresh facts, so that a relaunch is planned from what is there now
    admin.picture("17-fleet-replaced")


def relaunch(operator: Person, deployment: str, chapter: Callable[[str], None]) -> str:
    page = operator.page
    page.goto("/")
    operator.follows(re.compile("Relaunch"), within="#main")
    operator.sees("What will run")
    assert "before a reboot" not in page.locator("#plan").inner_text()
    agree(operator)
    operator.picture("18-relaunch-plan")
    page.locator("[name=reason]").fill("   ")
    operator.presses("Relaunch")
    operator.expect(page.locator(".error", has_text="reason")).to_be_visible()
    page.locator("[name=reason]").fill(RELAUNCH_WHY)
    operator.presses("Relaunch")
    page.wait_for_url("**/runs/*")
    run = path_of(page)
    with operator.without_reload():
        chapter("it loads again")
        follow(operator, "run-19-relaunch")
    page.goto(deployment)
    operator.sees("serving")
    return run


def deactivate(admin: Person, operator: Person, person_page: str) -> None:
    """The socket of their open page says so within 10 s, and their next click lands on the sign-in page.

    A refresh of a fragment may find out first and go to the sign-in page by itself, so those are held back here.
    """
    operator.page.goto("/")
    operator.page.route(
        "**/*", lambda route: route.abort() if route.request.headers.get("hx-request") else route.continue_()
    )
    until(
        lambda: operator.page.evaluate("document.documentElement.dataset.live") == "live",
        20,
        "no socket on the Fleet page",
    )
    admin.page.goto(person_page)
    admin.page.locator("summary", has_text="Deactivate").click()
    with operator.without_reload():
        admin.page.locator("form:has(input[value=deactivate]) button").click()
        operator.expect(operator.page.locator("#signed-out")).to_contain_text("signed out", timeout=10000)
        assert operator.page.evaluate("document.documentElement.dataset.live") == "closed"
    operator.picture("20-signed-out")
    operator.page.locator(".nav a", has_text="Deployments").first.click()
    operator.page.wait_for_url("**/sign-in**")
    operator.sees("Sign in")
