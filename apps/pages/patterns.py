"""Every part of the pages in every state: to look at after a change of the styles, and for the screenshot test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.deployments.models import Deployment
from apps.pages import charts
from apps.pages.refusing import Error
from apps.people.access import allow
from apps.runs.models import Run, Step

GIB = 1 << 30
BARS = (
    ("others hold it", (("os", 6), ("others", 98), ("free", 15))),
    ("another deployment holds it", (("os", 8), ("deployments", 88), ("others", 4), ("free", 19))),
    ("serving", (("os", 8), ("weights", 57), ("graphs", 5), ("state", 6), ("kv", 25), ("free", 18))),
    ("empty", (("os", 4), ("free", 115))),
    ("too much", (("os", 8), ("weights", 130), ("graphs", 4), ("kv", 3))),
    ("until it is cleared", (("os", 8), ("weights", 57), ("graphs", 5), ("kv", 31), ("others", 40))),
)


@dataclass(frozen=True)
class Message:
    status: str
    title: str
    text: str


@allow("view")
@require_GET
def patterns(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    context: dict[str, Any] = {
        "deployment_states": [
            (state, reason)
            for state in Deployment.State.values
            for reason in (
                ("replaced", "rebooted", "vanished")
                if state == "lost"
                else ("oom_host",)
                if state == "failed"
                else ("",)
            )
        ],
        "run_states": Run.State.values,
        "step_states": Step.State.values,
        "tones": ("ok", "busy", "warn", "bad", "off"),
        "bars": [
            (
                name,
                charts.memory_bar(
                    [(kind, size * GIB) for kind, size in parts], 119 * GIB, large=True, key=f"p{number}"
                ),
            )
            for number, (name, parts) in enumerate(BARS)
        ],
        "shards": [
            (words, tone, charts.shards(done, total, overall))
            for words, tone, done, total, overall in (
                ("17 of 39", "busy", 17, 39, 0.0),
                ("all of 7", "ok", 7, 7, 0.0),
                ("60 of 161", "warn", 60, 161, 0.0),
                ("failed at 3", "bad", 3, 39, 0.0),
                ("no shards known", "busy", None, None, 0.4),
            )
        ],
        "track": [
            {"name": name, "state": state, "grow": grow, "value": value, "seconds": seconds, "usual_seconds": usual}
            for name, state, grow, value, seconds, usual in (
                ("Preflight", "done", 1, 1.0, 4.0, None),
                ("Clear", "done", 2, 1.0, 21.0, None),
                ("Load", "busy", 9, 0.46, 306.0, 710.0),
                ("Verify", "waiting", 2, 0.0, None, 40.0),
            )
        ],
        "errors": [
            Error(
                "Please correct this",
                "'Qwen 3' is no deployment name.",
                "Use small letters, digits, dots or dashes.",
                "name",
            ),
            Error(
                "Key not accepted",
                "The node answered, but does not accept our key for this user.",
                "Add the public key to authorized_keys.",
                evidence="Permission denied (publickey).",
            ),
        ],
        "messages_shown": [
            Message(tone, f"This is {tone}", "A sentence that says what it means, and what to do next.")
            for tone in ("ok", "busy", "warn", "bad", "off")
        ],
        "times": [
            now - timedelta(seconds=6),
            now - timedelta(minutes=5, seconds=6),
            now - timedelta(hours=2, minutes=40),
            now - timedelta(days=3),
        ],
        "sizes": [0, 512, 5 * 10**6, 119 * 10**9],
        "tokens_shown": [131072, 1310000],
        "long": "a-name-that-is-as-long-as-names-may-be-" * 2,
        "error": Error("Please correct this", "The name is taken.", "Choose another name.", "sample"),
    }
    return render(request, "pages/patterns.html", context)


urlpatterns = [path("patterns", patterns, name="patterns")]
