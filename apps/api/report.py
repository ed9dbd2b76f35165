"""The state report of the fleet and of one deployment."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from apps.api import audit
from apps.api.finding import by_id
from apps.api.schemas import Out
from apps.deployments.models import Deployment
from apps.people.access import action_of, actor_of, allow, may
from apps.report import gathering, shaping

router = Router(tags=["report"])


class Report(Out):
    """What runs where, on which versions, what is wrong, who decided what and where every file is; see docs/report.md."""

    format: str
    version: int
    made: str
    scope: str
    name: str | None
    summary: list[str]
    deployments: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    limitations: list[dict[str, Any]]
    decisions: list[dict[str, Any]] | None
    left_out: list[str]


def _sees_trail(request: HttpRequest) -> bool:
    return may(actor_of(request), action_of(audit.list_audit, "GET") or "")


@router.get("report", response=Report)
@allow("view")
def report(request: HttpRequest) -> dict[str, Any]:
    """The state of the whole fleet by what is known now; no node is asked. `decisions` is null for a role that may not see the trail."""
    return shaping.report(gathering.fleet(trail=_sees_trail(request)))


@router.get("deployments/{deployment_id}/report", response=Report)
@allow("view")
def deployment_report(request: HttpRequest, deployment_id: int) -> dict[str, Any]:
    """The same of one deployment and the nodes that it is on."""
    found = by_id(Deployment.objects.select_related("recipe_version__recipe"), deployment_id)
    return shaping.report(gathering.of_deployment(found, trail=_sees_trail(request)))
