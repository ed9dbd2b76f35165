"""Over a real worker and a real sshd: register, confirm, probe, look; and what is wrong with a door is said."""

from __future__ import annotations

from typing import Any

import pytest

from apps.inventory.models import Node
from apps.runs.models import Run
from tests.api.conftest import program_of
from tests.api.test_problems import is_problem
from tests.openssh import free_port, openssh
from tests.runs.conftest import ended, worker

__all__ = ["openssh", "worker"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_register_confirm_probe_look(worker: Any, openssh: Any) -> None:
    server = openssh.start("spark-1")
    admin = program_of("admin")
    key = admin.post("credentials", {"name": "sparks", "private_key": server.private_key}).body
    body = {"name": "spark-1", "address": "127.0.0.1", "port": server.port, "user": server.endpoint().user}

    answer = admin.post("nodes", {**body, "credential": "sparks"})
    assert answer.status == 201, answer.body
    made = answer.body
    assert (made["state"], made["credential"]["id"], made["jump"]) == ("unconfirmed", key["id"], None)
    assert {one["hop"] for one in made["host_keys"]} == {"spark-1"}
    assert made["host_keys"][0]["type"] == "ssh-ed25519" and made["host_keys"][0]["sha256"].startswith("SHA256:")

    path = f"nodes/{made['id']}"
    is_problem(admin.post(f"{path}/probe"), 409, "host_key_unknown")
    answer = admin.post(f"{path}/confirm", {"sha256": made["host_keys"][0]["sha256"]})
    assert answer.body["state"] == "ready"

    answer = admin.post(f"{path}/probe")
    assert answer.status == 202
    run = ended(Run.objects.get(pk=answer.body["run"]))
    shown = admin.get(f"runs/{run.pk}").body
    assert (shown["state"], shown["reason"]) == ("succeeded", None), shown
    looked = admin.get(path).body
    assert looked["sheet"]["memory"]["total_bytes"] > 0
    assert looked["boot_id"] and looked["unreachable_reason"] is None

    second = openssh.start("spark-2")
    beyond = {**body, "name": "spark-2", "port": second.port, "credential": key["id"], "jump": "spark-1"}
    answer = admin.post("nodes", beyond)
    assert answer.status == 201, answer.body
    assert answer.body["host_keys"][0]["hop"] == "spark-2"
    assert {one["hop"] for one in answer.body["host_keys"]} == {"spark-2", "spark-1"}
    assert answer.body["jump"] == {"id": made["id"], "name": "spark-1"}


def test_a_closed_door_is_a_reason_and_stores_nothing(worker: Any) -> None:
    admin = program_of("admin")
    admin.post("credentials", {"name": "sparks"})
    body = {"name": "spark-1", "address": "127.0.0.1", "port": free_port(), "user": "aurora", "credential": "sparks"}
    is_problem(admin.post("nodes", body), 422, "ssh_refused", "port")
    assert not Node.objects.exists()
