"""Plan, launch, relaunch, stop, runs, lines, cancel, audit, explain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from apps.audit.models import Entry
from apps.deployments import services as deployments
from apps.inventory import services as inventory
from apps.plan.spec import Clear
from apps.runs import provisioning, services, settling
from apps.runs.models import Run
from apps.runs.recorder import Recorder
from tests.api.conftest import CONSENT, EDITOR, Program, Story
from tests.api.test_problems import is_problem
from tests.plan import sheets

pytestmark = pytest.mark.django_db
TOKEN = "the test's lease"


def path_of(story: Story, what: str) -> str:
    return f"deployments/{story.deployment.pk}/{what}"


def digest_of(program: Program, on: Story, **asked: Any) -> str:
    return str(program.post(path_of(on, "plan"), asked).body["digest"])


def launched(program: Program, story: Story, **headers: str) -> Any:
    body = {"digest": digest_of(program, story, clear=CONSENT), "reason": "a test", "clear": CONSENT}
    return program.post(path_of(story, "launch"), body, **headers)


def finish(identity: int, state: str = "succeeded", **words: Any) -> None:
    settling.finish(Run.objects.get(pk=identity), state, **words)


class TestPlan:
    def test_its_stages_hold_the_commands_of_each_node(self, program: Any, story: Story) -> None:
        answer = program("operator").post(path_of(story, "plan"), {"clear": CONSENT})
        assert answer.status == 200
        body = answer.body
        assert len(body["digest"]) == 64 and not body["refused"]
        assert body["nodes"] == ["spark-1a32", "spark-5be3"]
        heads = [node for stage in body["stages"] if stage["name"] == "Ray head" for node in stage["nodes"]]
        assert any("ray start --head" in command for command in heads[0]["commands"])
        joined = [command for step in heads[0]["steps"] for command in step["commands"]]
        assert joined == heads[0]["commands"]
        assert body["fit"]["verdict"] == "fits_after_clearing" and body["fit"]["kv_tokens"] > 0
        assert body["fit"]["bars"][0]["segments"]["weights"] > 50 * 10**9
        assert not Run.objects.exists()

    def test_what_is_in_the_way_says_how_to_agree(self, admin: Program, story: Story) -> None:
        body = admin.post(path_of(story, "plan")).body
        held = next(problem for problem in body["problems"] if problem["severity"] == "consent")
        assert body["refused"] and held["name"] == "memory_held" and held["node"] == "spark-1a32"
        assert not admin.post(path_of(story, "plan"), {"clear": held["clear"]}).body["refused"]

    @pytest.mark.parametrize("kind", ["launch", "relaunch", "stop"])
    def test_every_story(self, admin: Program, story: Story, kind: str) -> None:
        assert admin.post(path_of(story, "plan"), {"story": kind, "clear": CONSENT}).body["story"] == kind

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"story": "explode"}, "story"),
            ({"story": 1}, "story"),
            ({"clear": {}}, "clear"),
            ({"clear": [3]}, "clear[0]"),
            ({"clear": [{"node": "a", "kind": "unit"}]}, "clear[0].name"),
            ({"clear": [{"node": "a", "kind": "world", "name": "x"}]}, "clear[0].kind"),
            ({"clear": [{"node": "a", "kind": "unit", "name": "x", "disable": "yes"}]}, "clear[0].disable"),
            ({"clear": [{"node": "a", "kind": "unit", "name": ""}]}, "clear[0].name"),
            ({"clear": [{"node": "a", "kind": "unit", "name": "x" * 1_000_000}]}, "clear[0].name"),
            ({"clear": [{"node": "a", "kind": "unit", "name": "x"}] * 501}, "clear"),
            ({"clear": [{"node": "a", "kind": "unit", "name": "x"}]}, "clear[0].node"),  # no node of this deployment
            ({"clear": [{"node": "spark-1a32", "kind": "unit", "name": "x\n"}]}, "clear[0]"),
            (
                {"clear": [{"node": "spark-1a32", "kind": "unit", "name": "x", "disable": d} for d in (True, False)]},
                "clear",
            ),
            ({"other": 1}, "other"),
        ],
    )
    def test_bad_ones(self, admin: Program, story: Story, body: Any, field: str) -> None:
        is_problem(admin.post(path_of(story, "plan"), body), 422, "bad_input", field)

    def test_a_viewer_may_not(self, program: Any, story: Story) -> None:
        is_problem(program("viewer").post(path_of(story, "plan")), 403, "denied")


class TestStart:
    def test_launch(self, program: Any, story: Story) -> None:
        editor = program("editor")
        answer = launched(editor, story)
        assert answer.status == 202, answer.body
        body = editor.get(f"runs/{answer.body['run']}").body
        assert (body["story"], body["state"], body["why"]) == ("launch", "queued", "a test")
        assert body["actor"]["name"] == "editor program" and body["actor"]["kind"] == "token"
        assert body["deployment"] == story.deployment.pk and body["revision"] == 1
        assert [row["phase"] for row in body["track"]][:2] == ["preflight", "clearing"]
        assert [row["node"] for row in body["ranks"]] == ["spark-1a32", "spark-5be3"]
        assert body["eta"]["seconds"] is None and body["worker_alive"] is True
        assert body["steps"][0]["state"] == "waiting"
        shown = editor.get(path_of(story, "")[:-1]).body
        assert (shown["state"], shown["active_run"]) == ("launching", answer.body["run"])
        assert editor.get(f"nodes/{story.head.pk}").body["reserved_by"]["run"] == answer.body["run"]
        stored = editor.get(f"runs/{answer.body['run']}/plan").body
        assert stored["digest"] == body["digest"]
        entry = Entry.objects.get(action="deployment:launch")
        assert (entry.actor_name, entry.reason, entry.outcome) == ("editor program", "a test", "requested")

    def test_a_plan_that_changed(self, admin: Program, story: Story) -> None:
        digest = digest_of(admin, story, clear=CONSENT)
        inventory.store_sheet(story.head, replace(sheets.head(busy=False), taken_at=sheets.TAKEN_AT + 60))
        answer = admin.post(path_of(story, "launch"), {"digest": digest, "reason": "x", "clear": CONSENT})
        is_problem(answer, 409, "plan_changed", "digest")
        assert answer.body["digest"] == digest_of(admin, story, clear=CONSENT) != digest
        assert not Run.objects.exists()

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("relaunch", ""),
            ("relaunch", "   "),
            *((kind, bad) for kind in ("launch", "relaunch", "stop") for bad in ("x" * 2001, 5, None)),
        ],
    )
    def test_a_relaunch_without_a_reason_and_reasons_that_are_none(
        self, admin: Program, story: Story, kind: str, reason: Any
    ) -> None:
        body = {"digest": digest_of(admin, story, story=kind), "reason": reason}
        is_problem(admin.post(path_of(story, kind), body), 422, "bad_input", "reason")

    @pytest.mark.parametrize(
        "change",
        [
            {"name": "other.service"},
            {"name": CONSENT[0]["name"].upper()},
            {"name": CONSENT[0]["name"].removesuffix(".service")},
            {"name": CONSENT[0]["name"] + " "},
            {"node": "spark-5be3"},
            {"kind": "container"},
            {"disable": True},
        ],
    )
    def test_an_operator_clears_what_was_agreed_to_and_nothing_like_it(
        self, program: Any, story: Story, change: dict[str, Any]
    ) -> None:
        agreed = (Clear(**CONSENT[0]),)
        deployments.remember_consents(EDITOR, story.deployment, agreed, reason="agreed")
        body = {"digest": "x", "reason": "back", "clear": [{**CONSENT[0], **change}]}
        is_problem(program("operator").post(path_of(story, "relaunch"), body), 403, "consent_needed", "clear")
        assert Entry.objects.filter(action="deployment:clear", outcome="denied").count() == 1
        assert not Run.objects.exists()

    def test_a_process_number_is_never_agreed_to_for_later(self, program: Any, story: Story) -> None:
        process = {"node": "spark-1a32", "kind": "process", "name": "4711"}
        deployments.remember_consents(EDITOR, story.deployment, (Clear(**process),), reason="this once")
        assert deployments.consented(story.deployment) == ()
        body = {"digest": "x", "reason": "back", "clear": [process]}
        is_problem(program("operator").post(path_of(story, "relaunch"), body), 403, "consent_needed", "clear")

    def test_without_a_digest(self, admin: Program, story: Story) -> None:
        is_problem(admin.post(path_of(story, "launch"), {"reason": "x"}), 422, "bad_input", "digest")
        is_problem(admin.post(path_of(story, "launch")), 422, "bad_input", "body")

    def test_what_is_in_the_way_refuses(self, admin: Program, story: Story) -> None:
        answer = admin.post(path_of(story, "launch"), {"digest": digest_of(admin, story), "reason": "x"})
        is_problem(answer, 409, "memory_held")
        assert answer.body["node"] == "spark-1a32" and answer.body["clear"]

    def test_a_busy_node_names_its_holder(self, admin: Program, program: Any, story: Story) -> None:
        run = launched(admin, story).body["run"]
        answer = launched(program("editor"), story)
        is_problem(answer, 409, "node_reserved")
        assert answer.body["run"] == run and "admin program" in answer.body["detail"]

    def test_an_operator_clears_only_what_an_editor_agreed_to(self, program: Any, story: Story) -> None:
        operator, editor = program("operator"), program("editor")
        is_problem(launched(operator, story), 403, "consent_needed", "clear")
        finish(launched(editor, story).body["run"], "failed", reason="oom_gpu", evidence="CUDA out of memory")
        assert operator.get(path_of(story, "")[:-1]).body["reason"] == "oom_gpu"
        assert len(operator.get(path_of(story, "")[:-1]).body["consents"]) == len(CONSENT)
        digest = digest_of(operator, story, story="relaunch", clear=CONSENT)
        body = {"digest": digest, "reason": "again", "clear": CONSENT}
        answer = operator.post(path_of(story, "relaunch"), body)
        assert answer.status == 202, answer.body
        assert operator.get(f"runs/{answer.body['run']}").body["was"] == "oom_gpu"

    def test_roles(self, program: Any, story: Story) -> None:
        for role in ("viewer", "auditor"):
            for kind in ("launch", "relaunch", "stop"):
                is_problem(program(role).post(path_of(story, kind), {"digest": "x", "reason": "x"}), 403, "denied")


class TestIdempotency:
    def test_the_same_key_is_the_same_run(self, admin: Program, story: Story) -> None:
        first, second = (launched(admin, story, Idempotency_Key="k-1") for _ in range(2))
        assert (first.status, second.status) == (202, 202)
        assert first.body == second.body and Run.objects.count() == 1
        probes = [admin.post(f"nodes/{story.second.pk}/probe", Idempotency_Key="k-2").body for _ in range(2)]
        assert probes[0] == probes[1]

    def test_a_key_of_something_else_is_no_success(self, admin: Program, story: Story) -> None:
        run = admin.post(f"nodes/{story.head.pk}/probe", Idempotency_Key="k").body["run"]
        for answer in (
            launched(admin, story, Idempotency_Key="k"),
            admin.post(f"nodes/{story.second.pk}/probe", Idempotency_Key="k"),
        ):
            is_problem(answer, 422, "idempotency_key_reused", "Idempotency-Key")
            assert answer.body["run"] == run
        assert Run.objects.count() == 1

    def test_the_same_key_with_another_reason_is_another_request(self, admin: Program, story: Story) -> None:
        digest = digest_of(admin, story, clear=CONSENT)
        body = {"digest": digest, "reason": "for ada", "clear": CONSENT}
        first = admin.post(path_of(story, "launch"), body, Idempotency_Key="k")
        assert first.status == 202
        assert admin.post(path_of(story, "launch"), body, Idempotency_Key="k").body == first.body
        for other in ({**body, "reason": "for bea"}, {**body, "digest": "0" * 64}):
            answer = admin.post(path_of(story, "launch"), other, Idempotency_Key="k")
            is_problem(answer, 422, "idempotency_key_reused", "Idempotency-Key")
        assert Run.objects.count() == 1

    @pytest.mark.parametrize("what", ["launch", "probe", "scan", "unlock", "provision"])
    def test_the_second_of_two_that_come_at_once_gets_the_run_of_the_first(
        self, admin: Program, story: Story, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The key is not used when the second one looks; then its nodes are taken, the plan is another, or the key is used."""
        path, body = f"nodes/{story.head.pk}/{what}", {"reason": "a test"} if what == "unlock" else None
        if what == "launch":
            path = path_of(story, what)
            body = {"digest": digest_of(admin, story, clear=CONSENT), "reason": "a test", "clear": CONSENT}
        elif what == "provision":
            wish = {"nodes": ["spark-1a32"]}
            asked = admin.post("nodes/provision/plan", wish).body
            passwords = {one["node"]: {one["kind"]: "a password"} for one in asked["passwords"]}
            path = "nodes/provision/start"
            body = {**wish, "digest": asked["digest"], "reason": "a test", "passwords": passwords}
        first = admin.post(path, body, Idempotency_Key="k")
        assert first.status == 202, first.body
        looks = {"left": 1}

        def known(*given: Any, real: Any = services.same_request, **asked: Any) -> Run | None:
            looks["left"] -= 1
            return None if looks["left"] >= 0 else real(*given, **asked)

        for module in (services, provisioning):
            monkeypatch.setattr(module, "same_request", known)
        second = admin.post(path, body, Idempotency_Key="k")
        assert (second.status, second.body) == (202, first.body)
        assert Run.objects.count() == 1 and looks["left"] < 0

    def test_a_run_that_was_planned_anew_in_line_is_still_the_one_of_its_request(
        self, admin: Program, story: Story
    ) -> None:
        body = {"digest": digest_of(admin, story, clear=CONSENT), "reason": "a test", "clear": CONSENT}
        first = admin.post(path_of(story, "launch"), body, Idempotency_Key="k")
        Run.objects.filter(pk=first.body["run"]).update(digest="f" * 64, outcome={"planned_before": body["digest"]})
        assert admin.post(path_of(story, "launch"), body, Idempotency_Key="k").body == first.body

    def test_others_may_use_it_too(self, admin: Program, program: Any, story: Story) -> None:
        path = f"nodes/{story.head.pk}/probe"
        first = admin.post(path, Idempotency_Key="k").body
        assert program("operator").post(path, Idempotency_Key="k").body != first

    @pytest.mark.parametrize("key", ["", "x" * 81, "a b", "\u00e9"])
    def test_bad_ones(self, admin: Program, story: Story, key: str) -> None:
        answer = admin.post(f"nodes/{story.head.pk}/probe", Idempotency_Key=key)
        is_problem(answer, 422, "bad_input", "Idempotency-Key")


@pytest.fixture
def written(admin: Program, story: Story) -> int:
    """A launch whose first job printed 25 lines, one with hostile text."""
    identity = int(launched(admin, story).body["run"])
    Run.objects.filter(pk=identity).update(state="running", lease_token=TOKEN, started_at=timezone.now())
    recorder = Recorder(Run.objects.get(pk=identity), TOKEN)
    key = next(
        step["key"]
        for stage in Run.objects.get(pk=identity).plan["stages"]
        for step in stage["steps"]
        if step["kind"] == "serve"
    )
    recorder.begin(key, job_id="j")
    text = "".join(f"line {number}\n" for number in range(1, 25)) + "<script>\x1b[31mCUDA out of memory\n"
    recorder.output(key, offset=0, data=text.encode(), ended=False)
    return identity


class TestRuns:
    def test_lines_by_cursor(self, admin: Program, written: int) -> None:
        seen: list[int] = []
        after, calls = 0, 0
        while calls < 10:
            body = admin.get(f"runs/{written}/lines?after={after}&limit=10").body
            calls += 1
            if not body["lines"]:
                break
            seen += [line["n"] for line in body["lines"]]
            after = body["next"]
        assert seen == list(range(1, 26)) and calls == 4
        assert not body["ended"]
        line = admin.get(f"runs/{written}/lines?after=24").body["lines"][0]
        assert set(line) >= {"n", "time", "node", "rank", "step", "stream", "text"}
        assert (line["node"], line["stream"]) == ("spark-1a32", "output")
        assert "<script>" in line["text"]
        finish(written, "failed", reason="oom_gpu", evidence="CUDA out of memory")
        assert admin.get(f"runs/{written}/lines?after=25").body == {
            "lines": [],
            "next": 25,
            "ended": True,
            "serving": False,
        }
        assert not admin.get(f"runs/{written}/lines?limit=3").body["ended"]
        for address in (f"runs/{written}/lines?after=26", f"runs/{written}/lines?after={2**63 - 1}"):
            assert admin.get(address).body["next"] == 25, "an older backup was restored: the end is the end"

    def test_lines_of_a_rank_or_step(self, admin: Program, written: int) -> None:
        step = admin.get(f"runs/{written}/lines?limit=1").body["lines"][0]["step"]
        assert len(admin.get(f"runs/{written}/lines?step={step}").body["lines"]) == 25
        assert admin.get(f"runs/{written}/lines?step=other").body["lines"] == []
        assert admin.get(f"runs/{written}/lines?rank=7").body["lines"] == []
        assert len(admin.get(f"runs/{written}/lines?limit=999999").body["lines"]) == 25

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("after=-1", "after"),
            ("after=x", "after"),
            ("after=" + "9" * 25, "after"),
            ("limit=0", "limit"),
            ("rank=-1", "rank"),
        ],
    )
    def test_bad_cursors(self, admin: Program, written: int, query: str, field: str) -> None:
        is_problem(admin.get(f"runs/{written}/lines?{query}"), 422, "bad_input", field)

    def test_search(self, admin: Program, written: int) -> None:
        assert [line["n"] for line in admin.get(f"runs/{written}/search?text=cuda%20OUT").body["lines"]] == [25]
        body = admin.get(f"runs/{written}/search?text=line&limit=5").body
        assert [line["n"] for line in body["lines"]] == [1, 2, 3, 4, 5] and body["next"] == 5
        is_problem(admin.get(f"runs/{written}/search"), 422, "bad_input", "text")
        found = admin.get(f"runs/{written}/search?text=line%2020&context=2").body["lines"][0]
        assert [line["n"] for line in found["before"]] == [18, 19]
        assert [line["n"] for line in found["following"]] == [21, 22]
        assert admin.get(f"runs/{written}/search?text=line&rank=7").body == {"lines": [], "next": None}

    def test_the_log_as_a_file(self, admin: Program, written: int) -> None:
        step = admin.get(f"runs/{written}/lines?limit=1").body["lines"][0]["step"]
        headers = admin.headers

        def got(query: str, **more: str) -> tuple[int, bytes]:
            response = admin.client.get(f"/api/v1/runs/{written}/log?{query}", headers={**headers, **more})
            return response.status_code, b"".join(response.streaming_content)

        whole = got(f"step={step}")[1]
        assert whole.startswith(b"line 1\nline 2\n") and whole.endswith(b"\x1b[31mCUDA out of memory\n")
        assert got(f"step={step}", Range="bytes=5-8") == (206, whole[5:9])
        is_problem(admin.get(f"runs/{written}/log?step=other"), 404, "not_found", "step")

    def test_lists_newest_first(self, admin: Program, written: int, story: Story) -> None:
        finish(written)
        probe = admin.post(f"nodes/{story.head.pk}/probe").body["run"]
        first = admin.get("runs?limit=1").body
        assert [run["id"] for run in first["runs"]] == [probe]
        assert [run["id"] for run in admin.get(f"runs?limit=1&after={first['next']}").body["runs"]] == [written]
        assert [run["id"] for run in admin.get("runs?story=launch").body["runs"]] == [written]
        assert [run["id"] for run in admin.get("runs?state=queued").body["runs"]] == [probe]
        assert [run["id"] for run in admin.get(f"runs?deployment={story.deployment.pk}").body["runs"]] == [written]
        is_problem(admin.get("runs?deployment=x"), 422, "bad_input", "deployment")

    def test_cancel(self, admin: Program, program: Any, written: int) -> None:
        is_problem(program("viewer").post(f"runs/{written}/cancel"), 403, "denied")
        is_problem(admin.post(f"runs/{written}/cancel", {"reason": 3}), 422, "bad_input", "reason")
        answer = program("operator").post(f"runs/{written}/cancel", {"reason": "wrong model"})
        assert (answer.status, answer.body["cancel_asked_by"]) == (202, "operator program")
        assert admin.post(f"runs/{written}/cancel").body["cancel_asked_by"] == "operator program"
        finish(written, "cancelled", reason="cancelled")
        is_problem(admin.post(f"runs/{written}/cancel"), 409, "bad_input")

    def test_a_scan_has_no_plan(self, admin: Program, story: Story) -> None:
        run = admin.post(f"nodes/{story.head.pk}/scan").body["run"]
        is_problem(admin.get(f"runs/{run}/plan"), 404, "not_found")
        assert admin.get(f"runs/{run}").body["steps"] == []


class TestAudit:
    def test_filters_and_pages(self, admin: Program, story: Story) -> None:
        launched(admin, story)
        body = admin.get("audit?action=deployment:launch").body
        entry = body["entries"][0]
        assert (entry["actor"]["name"], entry["reason"], entry["run"]) == (
            "admin program",
            "a test",
            Run.objects.get().pk,
        )
        assert entry["after"]["nodes"] == ["spark-1a32", "spark-5be3"]
        assert entry["time"] == Entry.objects.get(pk=entry["id"]).content()["time"]
        assert len(admin.get("audit?action=deployment:").body["entries"]) == 2
        assert admin.get(f"audit?object=node:{story.head.pk}").body["entries"]
        assert {one["actor"]["name"] for one in admin.get("audit?actor=admin%20program").body["entries"]} == {
            "admin program"
        }
        first = admin.get("audit?limit=2").body
        rest = admin.get(f"audit?limit=200&before={first['next']}").body
        assert len(first["entries"]) == 2 and rest["next"] is None
        numbers = [one["id"] for one in first["entries"] + rest["entries"]]
        assert numbers == list(range(Entry.objects.count(), 0, -1))

    def test_since(self, admin: Program, story: Story) -> None:
        count = Entry.objects.count()
        assert len(admin.get("audit?since=2020-01-01").body["entries"]) == count
        assert len(admin.get("audit?since=2020-01-01T00:00:00Z").body["entries"]) == count
        assert len(admin.get("audit?since=2020-01-01T00:00:00+02:00").body["entries"]) == count
        assert admin.get("audit?since=2999-01-01").body == {"entries": [], "next": None}
        assert admin.get("audit?until=2020-01-01").body["entries"] == []

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("since=yesterday", "since"),
            ("since=0001-01-01T00:00:00%2B14:00", "since"),
            ("before=0", "before"),
            ("run=x", "run"),
            ("object=%00", "object"),
        ],
    )
    def test_bad_filters(self, admin: Program, query: str, field: str) -> None:
        is_problem(admin.get(f"audit?{query}"), 422, "bad_input", field)

    def test_a_viewer_reads_it(self, program: Any) -> None:
        assert program("viewer").get("audit").status == 200


class TestExplain:
    def test_a_failure_is_named(self, program: Any) -> None:
        text = "ssh: connect to host 10.1.230.180 port 22: No route to host\n"
        answer = program("viewer").post("explain", {"text": text})
        assert answer.status == 200
        assert answer.body["readings"][0]["failure"]["reason"] == "no_route"

    @pytest.mark.parametrize("text", ["", "\u202e\x1b[31m", "x" * 1_000_000, '{"status": 503}'])
    def test_any_text(self, admin: Program, text: str) -> None:
        assert admin.post("explain", {"text": text}).status == 200

    def test_bad_ones(self, admin: Program) -> None:
        is_problem(admin.post("explain", {}), 422, "bad_input", "text")
        is_problem(admin.post("explain", {"text": 1}), 422, "bad_input", "text")
