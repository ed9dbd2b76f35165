"""Credentials, nodes, recipes, deployments and revisions: what goes in comes out, typed; what is wrong is named."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from apps.audit.models import Entry
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Credential, HostKey, Node
from apps.runs import services as runs
from tests.api.conftest import EDITOR, KEYS, Program, Story, node
from tests.api.test_problems import is_problem

pytestmark = pytest.mark.django_db
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")


def test_the_start_names_the_rest(admin: Program) -> None:
    assert admin.get("").body["nodes"] == "/api/v1/nodes"


class TestCredentials:
    def test_made_here(self, admin: Program) -> None:
        answer = admin.post("credentials", {"name": "sparks"})
        assert answer.status == 201
        assert answer.body["public_key"].startswith("ssh-ed25519 ")
        assert answer.body["kind"] == "generated"
        assert MOMENT.fullmatch(answer.body["created_at"])
        listed = admin.get("credentials").body
        assert listed == {"credentials": [answer.body], "next": None}
        assert Entry.objects.latest("id").actor_name == "admin program"

    def test_uploaded_and_never_shown_again(self, admin: Program) -> None:
        private, public = inventory._generated()
        answer = admin.post("credentials", {"name": "mine", "private_key": private})
        assert (answer.status, answer.body["kind"]) == (201, "uploaded")
        assert answer.body["public_key"].startswith(public)
        assert "PRIVATE" not in str(admin.get("credentials").body)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"name": ""}, "name"),
            ({"name": "x", "private_key": "ssh-ed25519 AAAA"}, "private_key"),
            ({"name": "x", "private_key": "x" * 1_000_000}, "private_key"),
            ({"name": "x", "private_key": 5}, "private_key"),
        ],
    )
    def test_bad_ones(self, admin: Program, body: dict[str, object], field: str) -> None:
        is_problem(admin.post("credentials", body), 422, "bad_input", field)
        assert not Credential.objects.exists()

    def test_a_name_once(self, admin: Program) -> None:
        admin.post("credentials", {"name": "sparks"})
        is_problem(admin.post("credentials", {"name": "sparks"}), 422, "bad_input", "name")

    def test_only_an_admin(self, program: object) -> None:
        is_problem(program("editor").post("credentials", {"name": "x"}), 403, "denied")  # type: ignore[operator]


class TestNodes:
    def test_a_node_with_its_sheet(self, admin: Program, story: Story) -> None:
        body = admin.get(f"nodes/{story.second.pk}").body
        assert (body["name"], body["port"], body["state"]) == ("spark-5be3", 22, "ready")
        assert body["jump"] == {"id": story.head.pk, "name": "spark-1a32"}
        assert [(key["hop"], key["type"], key["state"]) for key in body["host_keys"]] == [
            ("spark-5be3", "ssh-ed25519", "pinned"),
            ("spark-5be3", "ecdsa-sha2-nistp256", "offered"),
            ("spark-1a32", "ssh-ed25519", "pinned"),
            ("spark-1a32", "ecdsa-sha2-nistp256", "offered"),
        ]
        assert body["sheet"]["memory"]["total_bytes"] > 100 * 2**30
        assert "evidence" not in body["sheet"]
        assert "evidence" in admin.get(f"nodes/{story.second.pk}?evidence=true").body["sheet"]
        assert MOMENT.fullmatch(body["sheet_taken_at"])
        assert body["unreachable_reason"] is None and body["reserved_by"] is None

    def test_an_unreachable_one(self, admin: Program, story: Story) -> None:
        inventory.not_reached(story.head, reason="no_route", evidence="No route to host", hop="spark-1a32")
        body = admin.get(f"nodes/{story.head.pk}").body
        assert (body["unreachable_reason"], body["unreachable_hop"]) == ("no_route", "spark-1a32")
        assert MOMENT.fullmatch(body["unreachable_since"])
        assert body["sheet"] is not None

    def test_lists_page_in_a_stable_order(self, admin: Program, story: Story) -> None:
        first = admin.get("nodes?limit=1").body
        assert [one["name"] for one in first["nodes"]] == ["spark-1a32"]
        rest = admin.get(f"nodes?limit=1&after={first['next']}").body
        assert [one["name"] for one in rest["nodes"]] == ["spark-5be3"]
        assert rest["next"] is None
        assert len(admin.get("nodes?limit=100000").body["nodes"]) == 2
        assert [one["name"] for one in admin.get("nodes?name=spark-5be3").body["nodes"]] == ["spark-5be3"]

    def test_without_a_worker_nothing_is_stored(self, admin: Program) -> None:
        admin.post("credentials", {"name": "sparks"})
        body = {"name": "spark-1", "address": "127.0.0.1", "user": "aurora", "credential": "sparks"}
        is_problem(admin.post("nodes", body), 503, "no_worker")
        assert not Node.objects.exists()

    def test_a_jump_must_exist(self, admin: Program) -> None:
        admin.post("credentials", {"name": "sparks"})
        body = {"name": "n", "address": "a", "user": "u", "credential": "sparks", "jump": "nowhere"}
        is_problem(admin.post("nodes", body), 422, "bad_input", "jump")

    def test_confirm(self, admin: Program, db: None) -> None:
        made = node("spark-1a32", "a", confirmed=False)
        is_problem(
            admin.post(f"nodes/{made.pk}/confirm", {"sha256": "SHA256:other"}), 422, "host_key_unknown", "sha256"
        )
        is_problem(admin.post(f"nodes/{made.pk}/probe"), 409, "host_key_unknown")
        answer = admin.post(f"nodes/{made.pk}/confirm", {"sha256": KEYS["spark-1a32"]})
        assert (answer.status, answer.body["state"]) == (200, "ready")
        assert answer.body["host_keys"][0]["confirmed_by"] == "admin program"

    def test_repin(self, admin: Program, program: object, story: Story) -> None:
        inventory.not_reached(story.head, reason="host_key_changed", evidence="SHA256:new", hop="spark-1a32")
        HostKey.objects.create(node=story.head, type="ssh-ed25519", base64="CCCC", sha256="SHA256:new", state="refused")
        path = f"nodes/{story.head.pk}/repin"
        is_problem(program("editor").post(path, {"sha256": "SHA256:new", "reason": "x"}), 403, "denied")  # type: ignore[operator]
        is_problem(admin.post(path, {"sha256": "SHA256:new"}), 422, "bad_input", "reason")
        is_problem(admin.post(path, {"sha256": "SHA256:no", "reason": "x"}), 422, "host_key_unknown", "sha256")
        is_problem(admin.post(f"nodes/{story.head.pk}/probe"), 409, "host_key_changed")
        answer = admin.post(path, {"sha256": "SHA256:new", "reason": "reinstalled"})
        assert (answer.status, answer.body["state"]) == (200, "ready")
        assert Entry.objects.latest("id").reason == "reinstalled"

    def test_scan_and_probe_start_runs(self, admin: Program, story: Story) -> None:
        for path, story_name in (("scan", "scan"), ("probe", "probe")):
            answer = admin.post(f"nodes/{story.head.pk}/{path}")
            assert answer.status == 202
            assert runs.Run.objects.get(pk=answer.body["run"]).story == story_name

    def test_remove(self, admin: Program, db: None) -> None:
        head = node("spark-1a32", "a")
        second = node("spark-5be3", "b", jump=head)
        is_problem(admin.send("DELETE", f"nodes/{head.pk}"), 409, "in_use")
        assert admin.send("DELETE", f"nodes/{second.pk}?reason=sold").status == 204
        assert Entry.objects.latest("id").reason == "sold"
        is_problem(admin.send("DELETE", f"nodes/{second.pk}"), 404, "not_found")


def test_recipes(admin: Program, story: Story) -> None:
    listed = admin.get("recipes").body["recipes"]
    assert {"qwen3.5-122b-a10b-fp8"} <= {one["slug"] for one in listed}
    one = admin.get("recipes/qwen3.5-122b-a10b-fp8").body
    assert (one["world_size"], one["spec"]["tensor_parallel"], one["version"]) == (2, 2, 1)
    assert [version["number"] for version in one["versions"]] == [1]


class TestDeployments:
    def test_from_a_recipe_by_slug_or_id(self, admin: Program, story: Story) -> None:
        one = admin.get("recipes/qwen3.5-122b-a10b-fp8").body
        recipe = one["id"]
        for name, reference in (("a", "qwen3.5-122b-a10b-fp8"), ("b", recipe), ("c", str(recipe)), ("d", one["name"])):
            body = {"name": name, "recipe": reference, "nodes": ["spark-1a32", "spark-5be3"], "spec": {"port": 31000}}
            answer = admin.post("deployments", body)
            assert answer.status == 201, answer.body
            assert answer.body["spec"]["port"] == 31000
            assert answer.body["spec"]["attention_backend"] == "TRITON_ATTN"
            assert answer.body["recipe"] == "qwen3.5-122b-a10b-fp8"

    def test_its_fields_stay_apart(self, admin: Program, story: Story) -> None:
        body = admin.get(f"deployments/{story.deployment.pk}").body
        parts = {name: body[name] for name in ("state", "reason", "phase", "flags", "evidence")}
        assert parts == {"state": "draft", "reason": None, "phase": None, "flags": {}, "evidence": None}
        assert datetime.fromisoformat(body["since"]).tzinfo is not None
        assert body["nodes"] == ["spark-1a32", "spark-5be3"]
        assert (body["endpoint"], body["tunnel"]) == (None, None)  # nothing answers yet
        assert (body["run"], body["active_run"], body["ranks"]) == (None, None, [])
        Deployment.objects.update(state="lost", reason="replaced", evidence="Both nodes rebooted.")
        body = admin.get("deployments?state=lost").body["deployments"][0]
        assert (body["state"], body["reason"], body["evidence"]) == ("lost", "replaced", "Both nodes rebooted.")
        assert body["remedy"].startswith("Relaunch")
        assert admin.get("deployments?name=nothing").body["deployments"] == []

    def test_without_a_recipe(self, admin: Program, story: Story) -> None:
        spec = {
            "model": "local/tiny", "model_path": "/models/tiny", "runtime": "process", "cluster": "single",
            "environment": {"VLLM_LOGGING_LEVEL": "INFO"}, "arguments": ["--max-num-seqs", "4"],
        }  # fmt: skip
        answer = admin.post("deployments", {"name": "tiny", "nodes": ["spark-1a32"], "spec": spec})
        assert answer.status == 201, answer.body
        assert answer.body["spec"]["environment"] == [["VLLM_LOGGING_LEVEL", "INFO"]]
        again = {"environment": answer.body["spec"]["environment"], "port": 9000}
        body = {"spec": again, "reason": "another port"}
        assert admin.post(f"deployments/{answer.body['id']}/revisions", body).body["spec"]["port"] == 9000

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"name": "Not Allowed"}, "name"),
            ({"name": "qwen"}, "name"),
            ({"nodes": []}, "nodes"),
            ({"nodes": ["nowhere"]}, "nodes"),
            ({"nodes": ["spark-1a32", "spark-1a32"]}, "nodes"),
            ({"nodes": "spark-1a32"}, "nodes"),
            ({"nodes": ["spark-1a32", 5]}, "nodes[1]"),
            ({"nodes": ["x"] * 1000}, "nodes"),
            ({"recipe": "nothing"}, "recipe"),
            ({"recipe": 999}, "recipe"),
            ({"recipe": None}, "spec.model"),
            ({"spec": []}, "spec"),
            ({"spec": {"port": 80}}, "spec.port"),
            ({"spec": {"port": "30000"}}, "spec.port"),
            ({"spec": {"engine": "magic"}}, "spec.engine"),
            ({"spec": {"gpu_memory_utilization": 1.5}}, "spec.gpu_memory_utilization"),
            ({"spec": {"image": "a b"}}, "spec.image"),
            ({"spec": {"model_path": "/x/../y"}}, "spec.model_path"),
            ({"spec": {"environment": [["A"]]}}, "spec.environment[0]"),
            ({"spec": {"environment": {"A B": "x"}}}, "spec.environment"),
            ({"spec": {"arguments": ["$(reboot)", 3]}}, "spec.arguments[1]"),
            ({"spec": {"port": None}}, "spec.port"),
            ({"spec": {"nodes": ["x"]}}, "spec.nodes"),
            ({"on_rank_lost": "explode"}, "on_rank_lost"),
        ],
    )
    def test_bad_ones(self, admin: Program, story: Story, changes: dict[str, object], field: str) -> None:
        body = {"name": "new", "recipe": "qwen3.5-122b-a10b-fp8", "nodes": ["spark-1a32", "spark-5be3"], **changes}
        is_problem(admin.post("deployments", body), 422, "bad_input", field)
        assert Deployment.objects.count() == 1

    def test_revisions(self, admin: Program, story: Story) -> None:
        path = f"deployments/{story.deployment.pk}/revisions"
        is_problem(admin.post(path, {"spec": {"port": 31000}}), 422, "bad_input", "reason")
        is_problem(admin.post(path, {"spec": {"port": 3}, "reason": "x"}), 422, "bad_input", "spec.port")
        is_problem(admin.post(path, {"nodes": ["x"], "reason": "x"}), 422, "bad_input", "nodes")
        answer = admin.post(path, {"spec": {"max_model_len": None}, "reason": "the model's own"})
        assert (answer.status, answer.body["number"], answer.body["spec"]["max_model_len"]) == (201, 2, None)
        assert answer.body["spec"]["port"] == 30000
        assert [one["number"] for one in admin.get(path).body["revisions"]] == [2, 1]
        body = admin.get(f"deployments/{story.deployment.pk}").body
        assert (body["revision"], body["spec"]["max_model_len"]) == (2, None)

    def test_an_operator_makes_none(self, program: object, story: Story) -> None:
        operator = program("operator")  # type: ignore[operator]
        is_problem(operator.post("deployments", {"name": "x", "nodes": ["spark-1a32"]}), 403, "denied")
        is_problem(operator.post(f"deployments/{story.deployment.pk}/revisions", {"reason": "x"}), 403, "denied")


def test_names_win_over_ids(admin: Program, story: Story) -> None:
    """A credential may be called "1"."""
    inventory.make_credential(EDITOR, name=str(story.head.credential_id))
    body = {"name": "n", "address": "a", "user": "u", "credential": str(story.head.credential_id), "jump": "nowhere"}
    is_problem(admin.post("nodes", body), 422, "bad_input", "jump")
