"""Every page with nothing there, and what needs no story: forms of nodes and keys, a thousand of everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from apps.deployments.models import Deployment
from tests.web import seed as story

EMPTY = [
    "/",
    "/deployments",
    "/nodes",
    "/recipes",
    "/settings",
    "/settings/credentials",
    "/patterns",
    "/audit",
    "/banners",
]
MINE = ["/deployments/new", "/nodes/add", "/settings/secrets"]


@pytest.mark.parametrize("path", EMPTY + MINE)
def test_with_nothing_there(path: str, signed_in: Callable[[str], Client]) -> None:
    response = signed_in("admin").get(path)
    assert response.status_code == 200, path
    assert "no-store" in response.headers["Cache-Control"]


def test_the_empty_fleet_says_what_to_do_next(signed_in: Callable[[str], Client]) -> None:
    text = signed_in("editor").get("/").content.decode()
    assert "Begin with a node" in text and 'href="/nodes/add"' in text
    assert "No worker is there" in text


def test_without_a_worker_a_node_is_not_added_and_the_form_says_why(signed_in: Callable[[str], Client]) -> None:
    client = signed_in("admin")
    client.post("/settings/credentials", {"how": "generate", "name": "sparks"})
    credential = story.inventory.Credential.objects.get()
    form = {
        "name": "spark-1a32",
        "address": "10.1.230.180",
        "port": "22",
        "user": "aurora",
        "credential": credential.pk,
        "jump": "",
    }
    response = client.post("/nodes/add", form)
    assert (
        response.status_code == 503
        and "No worker" in response.content.decode()
        and "10.1.230.180" in response.content.decode()
    )
    for field, value in (
        ("port", "0"),
        ("name", "a b"),
        ("address", "-oProxyCommand=x"),
        ("user", "$(id)"),
        ("credential", "x"),
        ("jump", "12"),
    ):
        response = client.post("/nodes/add", form | {field: value})
        assert response.status_code == 422 and "aria-invalid" in response.content.decode(), field
    assert not story.Node.objects.exists()


def test_a_private_key_never_comes_back(signed_in: Callable[[str], Client]) -> None:
    client = signed_in("admin")
    response = client.post(
        "/settings/credentials",
        {"how": "upload", "name": "mine", "private_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0LXZhbHVl\n"},
    )
    assert response.status_code == 422 and "c2VjcmV0LXZhbHVl" not in response.content.decode()
    client.post("/settings/credentials", {"how": "generate", "name": "made"})
    text = client.get("/settings/credentials").content.decode()
    assert "ssh-ed25519" in text and "PRIVATE KEY-----\n" not in text.replace("placeholder", "")


def test_a_thousand_of_everything(
    signed_in: Callable[[str], Client], db: None, django_assert_max_num_queries: Callable[..., object]
) -> None:
    story.load_shipped()
    node = story.node("n0", "10.0.0.1", sheet=story.sheets.head())
    rows = [
        story.Node(name=f"n{number}", address="10.0.0.1", user="a", credential=node.credential)
        for number in range(1, 1000)
    ]
    story.Node.objects.bulk_create(rows)
    made = [Deployment(name=f"d{number}", state="serving" if number % 2 else "failed") for number in range(1000)]
    Deployment.objects.bulk_create(made)
    from apps.deployments.models import Revision

    body = story.sheets.qwen35().to_json()
    Revision.objects.bulk_create([Revision(deployment=one, number=1, body=body) for one in Deployment.objects.all()])
    client = signed_in("viewer")
    for path in ("/", "/deployments", "/nodes", "/deployments?page=20", "/nodes?page=3"):
        with django_assert_max_num_queries(260):
            response = client.get(path)
        assert response.status_code == 200 and len(response.content) < 400_000, path
