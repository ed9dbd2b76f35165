"""Programs with tokens of each role, and the story's two Sparks as rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.audit.actor import COMMAND_LINE, Actor
from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.people import access
from apps.people import services as people
from apps.people.models import User
from apps.recipes.models import Recipe
from apps.recipes.services import current_version, load_shipped
from apps.runs.models import WorkerBeat
from tests.plan import sheets

EDITOR = Actor("person", 1, "ed", "editor")
KEYS = {"spark-1a32": "SHA256:headheadhead", "spark-5be3": "SHA256:secondsecond"}
CONSENT = [{"node": c.node, "kind": c.kind, "name": c.name, "disable": c.disable} for c in sheets.CONSENT]


@dataclass
class Answer:
    status: int
    body: Any
    headers: Any


class Program:
    """Speaks to /api/v1 with one token, or none."""

    def __init__(self, token: str = "") -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def send(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str) -> Answer:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        kind = headers.pop("content_type", "application/json")
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.client.generic(
            method, f"/api/v1/{path}", data=data, content_type=kind, headers={**self.headers, **names}
        )
        is_json = response.content and "json" in response.headers.get("Content-Type", "")
        return Answer(
            response.status_code, json.loads(response.content) if is_json else response.content, response.headers
        )

    def get(self, path: str) -> Answer:
        return self.send("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.send("POST", path, body, **headers)


def program_of(role: str, name: str = "") -> Program:
    if not User.objects.exists():
        User.objects.create(name="Root", role="admin")
    return Program(people.make_token(COMMAND_LINE, name or f"{role} program", role).value)


@pytest.fixture(autouse=True)
def _calm() -> None:
    access._refusals.forget()


@pytest.fixture
def program(db: None) -> Callable[..., Program]:
    """program("operator") sends with a token of that role; program("") without one."""
    User.objects.get_or_create(name="Root", role="admin")
    return lambda role, name="": program_of(role, name) if role else Program()


@pytest.fixture
def admin(program: Callable[..., Program]) -> Program:
    return program("admin")


def node(name: str, address: str, *, jump: Node | None = None, confirmed: bool = True) -> Node:
    credential = inventory.Credential.objects.first() or inventory.make_credential(EDITOR, name="sparks")
    made = inventory.add_node(
        EDITOR, name=name, address=address, port=22, user="aurora", credential=credential, jump=jump,
        found=[{"type": "ssh-ed25519", "base64": f"AAAA{name}", "sha256": KEYS[name]},
               {"type": "ecdsa-sha2-nistp256", "base64": f"BBBB{name}", "sha256": f"{KEYS[name]}2"}],
    )  # fmt: skip
    return inventory.confirm_host_key(EDITOR, made, sha256=KEYS[name]) if confirmed else made


@dataclass
class Story:
    head: Node
    second: Node
    deployment: Deployment


@pytest.fixture
def story(db: None) -> Story:
    """Both Sparks probed, the old stack on the head, the recipe deployed as a draft, a worker that is alive."""
    load_shipped()
    head = node("spark-1a32", "10.1.230.180")
    second = node("spark-5be3", "192.168.200.13", jump=head)
    inventory.store_sheet(head, sheets.head())
    inventory.store_sheet(second, sheets.second())
    version = current_version(Recipe.objects.get(slug="qwen3.5-122b-a10b-fp8"))
    made = deployments.create(
        EDITOR, name="qwen", body=version.body, nodes=["spark-1a32", "spark-5be3"], recipe_version=version
    )
    beat()
    return Story(head, second, made)


def beat() -> None:
    WorkerBeat.objects.update_or_create(name="w", defaults={"at": timezone.now(), "started_at": timezone.now()})
