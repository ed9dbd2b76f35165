"""What the watch asks of each node, and what it compares the answers with: from the rows of deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Max

from apps.deployments.models import Deployment, Rank, Revision
from apps.facts.sheet import Sheet
from apps.inventory.models import Node, SheetRow
from apps.plan.spec import Spec
from apps.runs.models import Run
from apps.watch.flagging import EVERYWHERE, ServiceWanted
from apps.watch.judging import RankWanted
from apps.watch.models import Followed, Sighting
from apps.watch.recorded import Recorded, recorded


@dataclass(frozen=True)
class Asked:
    """Of one node: jobs that are engines, APIs (port, host, whether it is asked for a key), containers that are missed."""

    jobs: tuple[str, ...] = ()
    apis: tuple[tuple[int, str, bool], ...] = ()
    missed: tuple[str, ...] = ()

    @property
    def extra(self) -> dict[str, str]:
        """As the sections of the script read it."""
        return {
            "apis": "\n".join(f"{port} {host} {'key' if key else '-'}" for port, host, key in self.apis),
            "missed": "\n".join(self.missed),
        }


@dataclass
class Known:
    """What the last whole sheet of a node says that the cheap look does not ask: which containers a unit starts, and which
    interfaces are the fabric's."""

    sheet: tuple[int, datetime]
    starts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fabric: frozenset[str] = frozenset()


_known: dict[int, Known] = {}  # by node; of the newest sheet only
MOST_KEPT = 512
_specs: dict[tuple[int, datetime], Spec] = {}
_plans: dict[tuple[int, datetime], Mapping[str, Recorded]] = {}


def spec_of(revision: Revision) -> Spec:
    """A revision never changes, so it is read once."""
    key = (revision.pk, revision.created_at)
    if key not in _specs:
        if len(_specs) >= MOST_KEPT:
            _specs.clear()
        _specs[key] = revision.spec
    return _specs[key]


def _plan_of(rank: Rank) -> Mapping[str, Recorded]:
    """By container; nor does a run's plan."""
    key = (rank.run_id, rank.revision.created_at)
    if key not in _plans:
        if len(_plans) >= MOST_KEPT:
            _plans.clear()
        plan = Run.objects.filter(pk=rank.run_id).values_list("plan", flat=True).first()
        _plans[key] = recorded(plan or {})
    return _plans[key]


def what_to_ask() -> dict[str, Asked]:
    """By name of node."""
    keys = {
        followed.deployment_id: {name: api.get("keyed") for name, api in followed.body.get("apis", {}).items()}
        for followed in Followed.objects.all()
    }
    missing = {name: tuple(each) for name, each in Sighting.objects.values_list("node__name", "body__missed") if each}
    made: dict[str, list[list[object]]] = {}
    for rank in Rank.objects.select_related("node", "revision").filter(deployment__archived_at=None):
        jobs, apis = made.setdefault(rank.node.name, [[], []])
        if rank.job_id:
            jobs.append(rank.job_id)
        spec = next((one for one in spec_of(rank.revision).each if one.service == rank.service), None)
        if spec is not None and spec.nodes[:1] == (rank.node.name,) and spec.port:
            asked = keys.get(rank.deployment_id, {}).get(spec.service)
            apis.append((spec.port, _host(spec.api_host), asked is None))
    names = {*made, *missing}
    return {
        name: Asked(
            jobs=tuple(map(str, dict.fromkeys(made.get(name, [[], []])[0]))),
            apis=tuple(dict.fromkeys(made.get(name, [[], []])[1])),  # type: ignore[arg-type]
            missed=missing.get(name, ()),
        )
        for name in names
    }


def _host(asked: str) -> str:
    """The address of the node itself under which its engine is asked."""
    if asked in EVERYWHERE:
        return "127.0.0.1"
    return f"[{asked}]" if ":" in asked and not asked.startswith("[") else asked


def known_of(nodes: list[Node]) -> Mapping[int, Known]:
    """By node. One query where no sheet is new."""
    rows = SheetRow.objects.filter(node__in=[node.pk for node in nodes])
    newest = {
        row["node"]: (row["newest"], row["taken"])
        for row in rows.values("node").annotate(newest=Max("pk"), taken=Max("taken_at"))
    }
    for gone in set(_known) - set(newest):
        _known.pop(gone, None)
    fresh = [sheet[0] for node, sheet in newest.items() if node not in _known or _known[node].sheet != sheet]
    for node, units, interfaces in SheetRow.objects.filter(pk__in=fresh).values_list(
        "node_id", "body__units", "body__interfaces"
    ):
        sheet = Sheet.from_json({"node": "", "taken_at": 0.0, "units": units, "interfaces": interfaces})
        _known[node] = Known(
            newest[node],
            {unit.name: unit.containers for unit in sheet.units or () if unit.containers},
            frozenset(one.name for one in sheet.interfaces or () if one.role == "fabric"),
        )
    return _known


def wanted_of(deployment: Deployment) -> list[RankWanted]:
    """The ranks of the last good launch, each with its service's name for people."""
    rows = list(deployment.ranks.all())
    labels = {one.service: one.label for one in spec_of(rows[0].revision).each} if rows else {}
    return [
        RankWanted(
            row.number,
            row.node.name,
            row.container,
            row.boot_id,
            row.job_id,
            service=row.service,
            label=labels.get(row.service, row.service),
            unit=row.unit,
            healthy=bool(deployment.found),
        )
        for row in rows
    ]


def services_of(deployment: Deployment) -> list[ServiceWanted]:
    """Those of which there are ranks, each by the revision that runs."""
    made: dict[str, ServiceWanted] = {}
    for row in deployment.ranks.all():
        spec = next((one for one in spec_of(row.revision).each if one.service == row.service), None)
        if spec is None or row.service in made or not spec.nodes or not spec.port:
            continue
        keyed = any("API_KEY" in one.variable for one in spec.secrets) or any(
            word.startswith("--api-key") for word in spec.arguments
        )
        made[row.service] = ServiceWanted(
            spec.service, spec.label, spec.nodes[0], spec.port, spec.api_host, keyed, spec.nodes
        )
    return list(made.values())


def plans_of(deployment: Deployment) -> dict[int, Recorded]:
    """What was recorded of each rank's container, where the plan's run is there still. Ranks that a relaunch left alone name the
    run that started them."""
    found = {row.number: _plan_of(row).get(row.container) for row in deployment.ranks.all() if row.container}
    return {number: one for number, one in found.items() if one is not None}


def launched(deployment: Deployment) -> str:
    """Changes with every launch of any rank."""
    return " ".join(f"{row.number}:{row.run_id}" for row in deployment.ranks.all())
