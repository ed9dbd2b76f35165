"""What others ask of deployments: who else is on some nodes."""

from __future__ import annotations

from collections.abc import Sequence

from apps.deployments.models import Deployment
from apps.plan.spec import Other, Spec


def others(deployment: Deployment, nodes: Sequence[str]) -> tuple[Other, ...]:
    """All other deployments, by id: archived ones too, as their containers carry the label still. With the spec of what
    runs on any of these nodes, else of the newest revision that names one of them."""
    rows = Deployment.objects.exclude(pk=deployment.pk).prefetch_related("ranks__node", "ranks__revision", "revisions")
    return tuple(Other(row.pk, row.name, row.state, _spec_on(row, frozenset(nodes))) for row in rows.order_by("pk"))


def _spec_on(deployment: Deployment, nodes: frozenset[str]) -> Spec | None:
    running = [rank.revision for rank in deployment.ranks.all() if rank.node.name in nodes]
    newest = max(deployment.revisions.all(), key=lambda one: one.number, default=None)
    revision = running[0] if running else newest if newest and nodes & set(newest.body.get("nodes", ())) else None
    return revision.spec if revision else None
