"""/healthz says that the process lives; /readyz names database, Redis and worker, each with what is wrong."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path

from apps.people.access import public
from apps.runs.services import worker_status


@public
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"alive": True})


@public
def readyz(request: HttpRequest) -> JsonResponse:
    """200 when all three parts answer, else 503. Says no more than that: it is open to everybody."""
    parts = {"database": _database(), "redis": _redis(), "worker": _worker()}
    good = all(part["ok"] for part in parts.values())
    return JsonResponse({"ready": good, **parts}, status=200 if good else 503)


def _database() -> dict[str, Any]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return {"ok": True}
    except Exception as problem:
        return {"ok": False, "problem": type(problem).__name__}


def _redis() -> dict[str, Any]:
    import redis  # here: what only looks at the addresses needs it not

    try:
        client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=1)
        client.ping()
        client.close()
        return {"ok": True}
    except (redis.RedisError, OSError) as problem:
        return {"ok": False, "problem": type(problem).__name__}


def _worker() -> dict[str, Any]:
    try:
        status = worker_status()
    except Exception as problem:
        return {"ok": False, "problem": type(problem).__name__}
    return {"ok": status.alive, "heartbeat_age_s": None if status.age_s is None else round(status.age_s, 1)}


urlpatterns = [path("healthz", healthz), path("readyz", readyz)]
