"""What every page knows: where one can go, who looks, what that person may do, and what all should hear about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest

from apps.audit.actor import Actor
from apps.pages.words import duration_words
from apps.people.roles import ACTIONS, ROLES
from apps.runs.services import worker_status
from apps.watch import braking


@dataclass(frozen=True)
class Place:
    name: str
    url: str
    current: bool = False


@dataclass(frozen=True)
class Banner:
    """Something that every page says. status: ok busy warn bad off."""

    status: str
    title: str
    text: str
    code: str = ""


HERE = Path(__file__).resolve().parent
# name, address, the module that makes the page
PLACES = (
    ("Fleet", "/", "fleet"),
    ("Deployments", "/deployments", "deployments"),
    ("Nodes", "/nodes", "nodes"),
    ("Cluster", "/cluster", "cluster"),
    ("Models", "/models", "models"),
    ("Recipes", "/recipes", "recipes"),
    ("Benchmarks", "/benchmarks", "compare"),
    ("Explain", "/explain", "explain"),
    ("Audit", "/audit", "audit"),
    ("Settings", "/settings", "settings"),
)


def places(path: str) -> list[Place]:
    """The pages of the left column; the longest matching address is the current one. Runs belong to Deployments."""
    if path.startswith("/runs"):
        path = "/deployments"
    if path.startswith("/report"):
        path = "/settings"
    there = [(name, url) for name, url, module in PLACES if (HERE / f"{module}.py").exists()]
    current = max(
        (url for _, url in there if path == url or (url != "/" and path.startswith(url + "/"))), key=len, default=""
    )
    return [Place(name, url, url == current) for name, url in there]


def banners(request: HttpRequest) -> list[Banner]:
    found = []
    if settings.REACH.open_words:
        found.append(
            Banner(
                "warn",
                "Plain HTTP",
                "Passwords and logs cross the network readable by others. Put TLS in front and set",
                "ORIGINS=https://…",
            )
        )
    try:
        worker = worker_status()
    except DatabaseError:
        return found
    if not worker.alive:
        seen = "none has been seen yet" if worker.age_s is None else f"last seen {duration_words(worker.age_s)} ago"
        found.append(
            Banner(
                "bad",
                "No worker is there",
                f"Nothing starts or moves on until one is ({seen}). What is queued is kept and begins by itself then.",
            )
        )
    brake = braking.current()  # one row at most
    if brake is not None:
        found.append(Banner("warn", "Most nodes are silent", f"{brake.sentence} It ends by itself when they answer."))
    return found


def page_context(request: HttpRequest) -> dict[str, Any]:
    """The context of every template. For a visitor who is not signed in it says nothing about the fleet."""
    actor = getattr(request, "actor", None)
    if actor is None:
        return {"person": None, "nav": [], "bar": [], "banners": [], "can": frozenset(), "command": settings.COMMAND}
    nav = places(request.path)
    return {
        "person": actor,
        "nav": nav,
        "bar": nav[:3],
        "banners": banners(request) if request.method == "GET" else [],
        "can": permissions(actor),
        "command": settings.COMMAND,
    }


def permissions(actor: Actor) -> frozenset[str]:
    """Names of the actions that this actor may do, for templates; the views check again."""
    if actor.kind in ("system", "robot"):
        return frozenset(ACTIONS)
    return ROLES.get(actor.role, frozenset())
