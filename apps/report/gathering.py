"""What a report needs, out of the database, in a number of queries that does not grow with what is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Case, Count, IntegerField, OuterRef, Q, QuerySet, Subquery, Value, When
from django.utils import timezone

from apps.audit.models import Entry
from apps.benchmarks import compared, comparing
from apps.deployments.models import Deployment
from apps.deployments.queries import endpoint
from apps.deployments.state import FLAG_WORDS, rank_state
from apps.facts.sheet import Sheet
from apps.inventory.models import Node, SheetRow
from apps.report.known import (
    Answers,
    Decision,
    Job,
    Known,
    KnownDeployment,
    KnownNode,
    KnownRevision,
    Launched,
    Measurement,
    Placed,
)
from apps.runs import queries, restoring
from apps.runs.models import ACTIVE, Run, Step
from apps.runs.services import worker_status
from apps.watch import braking

MOST_DEPLOYMENTS = 100  # in detail; trouble comes first
MOST_NODES = 100
MOST_DECISIONS = 200  # the newest
MOST_REVISIONS = 20
MOST_BENCHMARKS = 5
MOST_JOBS = 20  # folders that are named, a node
BROUGHT_UP = ("launch", "relaunch", "adopt")
TROUBLE_FIRST = ("failed", "lost", "degraded", "unreachable", "launching", "stopping", "serving", "stopped", "draft")
SERVES = ("serving", "degraded")


def fleet(*, trail: bool) -> Known:
    """The whole fleet. `trail`: whether this viewer may see the audit trail."""
    rows = Deployment.objects.filter(archived_at=None)
    deployments = list(_trouble_first(rows)[:MOST_DEPLOYMENTS])
    named = {name for one in deployments for name in _nodes_of(one)}
    first = Case(
        When(unreachable_since__isnull=False, then=Value(0)),
        When(name__in=list(named)[:500], then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )
    nodes = list(Node.objects.select_related("jump").order_by(first, "pk")[:MOST_NODES])
    entries = Entry.objects.all()
    alarms = [] if worker_status().alive else ["No worker is there: nothing starts or moves on until one is."]
    brake = braking.current()
    alarms += [brake.sentence] if brake else []
    return _known("", deployments, nodes, entries if trail else None, rows.count(), Node.objects.count(), alarms)


def of_deployment(deployment: Deployment, *, trail: bool) -> Known:
    """One deployment with the nodes that it is on, or is meant to be on."""
    nodes = list(Node.objects.select_related("jump").filter(name__in=_nodes_of(deployment)).order_by("pk"))
    runs = deployment.runs.values_list("pk", flat=True)
    about = (
        Q(object_type="deployment", object_id=str(deployment.pk))
        | Q(run_id__in=runs)
        | Q(object_type="node", object_id__in=[str(node.pk) for node in nodes])
    )
    entries = Entry.objects.filter(about)
    return _known(deployment.name, [deployment], nodes, entries if trail else None, 1, len(nodes), [])


def _known(
    name: str,
    deployments: Sequence[Deployment],
    nodes: Sequence[Node],
    entries: QuerySet[Entry] | None,
    deployment_count: int,
    node_count: int,
    alarms: Sequence[str],
) -> Known:
    decisions, count = (None, 0) if entries is None else _decisions(entries)
    return Known(
        made=timezone.now(),
        name=name,
        nodes=_nodes(nodes),
        deployments=tuple(_deployment(one) for one in deployments),
        decisions=decisions,
        node_count=node_count,
        deployment_count=deployment_count,
        decision_count=count,
        cleared=_cleared(nodes),
        alarms=tuple(alarms),
    )


def _cleared(nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Each thing once, with the last run that stopped it."""
    last = {(one.node, one.kind, one.name): one.run for one in restoring.cleared([node.name for node in nodes])}
    return tuple((node, f"{kind} {name} (run {run})") for (node, kind, name), run in last.items())


def _trouble_first(rows: QuerySet[Deployment]) -> QuerySet[Deployment]:
    whens = [When(state=state, then=Value(place)) for place, state in enumerate(TROUBLE_FIRST)]
    rank = Case(*whens, default=Value(99), output_field=IntegerField())
    return rows.annotate(rank=rank).order_by("rank", "-since", "-pk")


def _nodes_of(deployment: Deployment) -> tuple[str, ...]:
    ran = deployment.ranks.values_list("node__name", flat=True)
    return tuple(dict.fromkeys((*deployment.revision.body.get("nodes", ()), *ran)))


def _decisions(entries: QuerySet[Entry]) -> tuple[tuple[Decision, ...], int]:
    """Acts for which somebody gave a reason; refusals have a sentence there that is nobody's reason."""
    found = entries.exclude(reason="").exclude(outcome="denied").order_by("-id")
    made = tuple(
        Decision(
            one.id,
            one.time,
            one.actor_name,
            one.actor_role,
            one.action,
            one.object_type,
            one.object_id,
            one.object_name,
            one.outcome,
            one.reason,
            one.run_id,
        )
        for one in found[:MOST_DECISIONS]
    )
    return made, found.count()


# Nodes


def _nodes(rows: Sequence[Node]) -> tuple[KnownNode, ...]:
    sheets, jobs, counts = _sheets(rows), _jobs(rows), _job_counts(rows)
    provisioned = _provisioned(rows)
    return tuple(
        KnownNode(
            id=node.pk,
            name=node.name,
            address=node.address,
            port=node.port,
            user=node.user,
            via=node.jump.name if node.jump else "",
            state=node.state,
            seen_at=node.last_seen_at,
            unreachable_since=node.unreachable_since,
            unreachable_reason=node.unreachable_reason,
            unreachable_evidence=node.unreachable_evidence,
            boot_id=node.boot_id,
            sheet=sheets.get(node.pk),
            jobs=tuple(jobs.get(node.pk, ())),
            job_count=counts.get(node.pk, 0),
            provisioned=tuple(provisioned.get(node.pk, ())),
        )
        for node in rows
    )


def _sheets(rows: Sequence[Node]) -> dict[int, Sheet]:
    newest = SheetRow.objects.filter(node=OuterRef("pk")).order_by("-taken_at", "-pk").values("pk")[:1]
    ids = Node.objects.filter(pk__in=[node.pk for node in rows]).annotate(newest=Subquery(newest))
    wanted = [pk for pk in ids.values_list("newest", flat=True) if pk is not None]
    found = SheetRow.objects.filter(pk__in=wanted).values_list("node_id", "body")
    return {node: Sheet.from_json(body) for node, body in found.iterator(chunk_size=20)}


def _job_steps(rows: Sequence[Node]) -> QuerySet[Step]:
    return Step.objects.filter(node__in=[node.pk for node in rows], job_id__gt="")


def _jobs(rows: Sequence[Node]) -> dict[int, list[Job]]:
    made: dict[int, list[Job]] = {}
    for node in rows:
        steps = Step.objects.filter(node=node, job_id__gt="").order_by("-pk")[:MOST_JOBS]
        made[node.pk] = [Job(one.job_id, one.title, one.run_id, one.started_at) for one in steps]
    return made


def _job_counts(rows: Sequence[Node]) -> dict[int, int]:
    counted = _job_steps(rows).values("node").annotate(count=Count("pk")).values_list("node", "count")
    return {node: count for node, count in counted if node is not None}


def _provisioned(rows: Sequence[Node]) -> dict[int, list[int]]:
    """Runs that changed the machine, the newest first: their record is on the node."""
    steps = _job_steps(rows).filter(run__story="provision", state=Step.State.SUCCEEDED)
    made: dict[int, list[int]] = defaultdict(list)
    for node, run in steps.order_by("-run_id").values_list("node", "run_id").distinct():
        if node is not None:
            made[node].append(run)
    return made


# Deployments


def _deployment(one: Deployment) -> KnownDeployment:
    revisions = list(one.revisions.order_by("-number")[:MOST_REVISIONS])
    ranks = list(one.ranks.select_related("node", "revision"))
    running = ranks[0].revision if ranks else None
    services = queries.service_states(one)
    states = {row["service"]: row["state"] for row in services}
    last = one.runs.filter(story__in=BROUGHT_UP).order_by("-pk").first()
    good = one.runs.filter(story__in=BROUGHT_UP, state="succeeded").order_by("-pk").first()
    active = one.runs.filter(state__in=ACTIVE).order_by("-pk").values_list("pk", flat=True).first()
    body = running.body if running else revisions[0].body
    version = one.recipe_version
    return KnownDeployment(
        id=one.pk,
        name=one.name,
        state=one.state,
        reason=one.reason or "",
        evidence=one.evidence,
        since=one.since,
        served_at=one.served_at,
        created_at=one.created_at,
        created_by=one.created_by,
        body=body,
        revisions=tuple(
            KnownRevision(each.number, each.created_at, each.created_by, each.reason, each.body) for each in revisions
        ),
        revision_count=one.revisions.count(),
        running=running.number if running else None,
        flags=tuple(
            (FLAG_WORDS.get(name, name), str(said.get("evidence", "")), str(said.get("since", "")))
            for name, said in (one.flags or {}).items()
            if isinstance(said, dict)
        ),
        policy=one.relaunch_policy,
        on_rank_lost=one.on_rank_lost,
        adopted=one.adopted,
        recipe=f"{version.recipe.name} v{version.number}" if version else "",
        ranks=tuple(
            Placed(
                rank.number,
                rank.service,
                rank.node.name,
                rank.container,
                rank.unit,
                rank.job_id,
                rank_state(states.get(rank.service, one.state)),
                rank.revision.number,
                rank.run_id,
            )
            for rank in ranks
        ),
        answers=tuple(_answers(one, services)),
        services=tuple(services),
        last=_launched(last),
        good=_launched(good) if good and good != last else None,
        active_run=active,
        consents=tuple(
            f"{each.kind} {each.name} on {each.node}{' (and not at boot again)' if each.disable else ''}"
            for each in one.consents.order_by("node", "kind", "name")
        ),
        benchmarks=tuple(_measured(one)),
        robot=str(one.relaunching.get("sentence", "")),
    )


def _answers(one: Deployment, services: Sequence[dict[str, Any]]) -> Iterable[Answers]:
    names = [row["service"] for row in services if row["state"] in SERVES] if services else [""]
    for name in names:
        reached = endpoint(one, name)
        if reached is not None:
            yield Answers(name, reached.url, reached.node, reached.tunnel, reached.why)


def _measured(one: Deployment) -> Iterable[Measurement]:
    found = list(one.benchmarks.exclude(result={}).order_by("-pk")[:MOST_BENCHMARKS])
    good = comparing.good_ones() if found else []
    for row in map(comparing.row_of, found):
        verdict = compared.judge(row, good)
        first = dict(compared.points(row, "ttft"))
        yield Measurement(
            row.id,
            row.name,
            str(row.result.get("made", "")),
            row.good,
            tuple((int(at), total, first.get(at)) for at, total in compared.points(row, "aggregate")),
            verdict.against.name if verdict.against else "",
            tuple(worse.sentence for worse in verdict.worse),
        )


def _launched(run: Run | None) -> Launched | None:
    if run is None:
        return None
    return Launched(
        id=run.pk,
        story=run.story,
        state=run.state,
        reason=run.reason or "",
        evidence=run.evidence,
        by=run.actor_name,
        why=run.why,
        ended_at=run.ended_at,
        facts=run.facts,
        outcome=run.outcome,
        settings=tuple(run.plan.get("settings") or ()),
    )
