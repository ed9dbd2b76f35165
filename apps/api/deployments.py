"""Deployments: make one, revise it, plan, launch, relaunch, stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.models import Max, Q, QuerySet
from django.http import HttpRequest
from ninja import Router, Status

from apps.api import planned
from apps.api.finding import by_id, by_reference, page
from apps.api.schemas import (
    LIMIT,
    After,
    AnswerOut,
    ClearBody,
    DeploymentBody,
    DeploymentOut,
    Deployments,
    DeploymentWithSpec,
    ExportedFiles,
    FatalOut,
    FitBody,
    FitOut,
    IdempotencyKey,
    Limit,
    PlanBody,
    PlanOut,
    PolicyBody,
    RankOut,
    ReasonBody,
    RevisionBody,
    RevisionOut,
    Revisions,
    ServiceOut,
    SpecBody,
    StartBody,
    Started,
    TakeOverBody,
    TestBody,
    TestOut,
    Tests,
    Word,
)
from apps.deployments import queries, services
from apps.deployments.models import Deployment, Revision
from apps.deployments.state import FLAG_WORDS, rank_state
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused
from apps.people.access import actor_of, allow
from apps.plan.spec import Clear
from apps.recipes import exports
from apps.recipes.models import Recipe, RecipeVersion
from apps.recipes.services import version_of
from apps.runs import fatal, fitting, testing
from apps.runs import services as runs
from apps.runs.models import ACTIVE, LOOKS_ON, Run
from apps.runs.queries import service_states

router = Router(tags=["deployments"])


def _rows() -> QuerySet[Deployment]:
    runs_of = {
        "run": Max("runs__pk"),
        "active_run": Max("runs__pk", filter=Q(runs__state__in=ACTIVE) & ~Q(runs__story__in=LOOKS_ON)),
    }
    return (
        Deployment.objects.all()
        .select_related("recipe_version__recipe")
        .prefetch_related("revisions", "ranks__revision")
        .annotate(**runs_of)
    )


def _fields(deployment: Deployment) -> dict[str, Any]:
    revision = _newest(deployment)
    spec: dict[str, Any] = revision.body
    reason = REASONS.get((deployment.reason or "").partition(":")[0])
    version, reached = deployment.recipe_version, queries.endpoint(deployment)
    return {
        "id": deployment.pk,
        "name": deployment.name,
        "state": deployment.state,
        "reason": deployment.reason,
        "phase": deployment.phase,
        "flags": {
            name: {"words": FLAG_WORDS.get(name, name), **one}
            for name, one in (deployment.flags or {}).items()
            if isinstance(one, dict)
        },
        "evidence": deployment.evidence or None,
        "since": deployment.since,
        "remedy": reason.remedy if reason else None,
        "nodes": spec.get("nodes", []),
        "model": spec.get("served_model_name") or spec.get("model") or None,
        "endpoint": reached.url if reached and not reached.tunnel else None,
        "tunnel": reached.tunnel or None if reached else None,
        "recipe": version.recipe.slug if version else None,
        "recipe_version": version.number if version else None,
        "revision": revision.number,
        "on_rank_lost": deployment.on_rank_lost,
        "run": getattr(deployment, "run", None),
        "active_run": getattr(deployment, "active_run", None),
        "served_at": deployment.served_at,
        "archived_at": deployment.archived_at,
        "created_at": deployment.created_at,
        "created_by": deployment.created_by or None,
        "adopted": deployment.adopted,
        "relaunch": _policy(deployment),
    }


def _policy(deployment: Deployment) -> dict[str, Any]:
    chosen, said = deployment.relaunch_set, deployment.relaunching
    return {
        "policy": deployment.relaunch_policy,
        "limit": deployment.relaunch_limit,
        "backoff_s": deployment.relaunch_backoff_s,
        "set_by": chosen.get("by"),
        "set_at": chosen.get("at"),
        "reason": chosen.get("reason"),
        "state": said.get("state"),
        "sentence": said.get("sentence"),
        "next_at": said.get("next_at"),
    }


def _newest(deployment: Deployment) -> Revision:
    return max(deployment.revisions.all(), key=lambda one: one.number)


def _whole(deployment_id: int) -> DeploymentWithSpec:
    deployment = by_id(_rows(), deployment_id)
    services = service_states(deployment)
    states = {row["service"]: row["state"] for row in services}
    ranks = [
        RankOut(
            number=rank.number,
            service=rank.service,
            node=rank.node.name,
            state=rank_state(states.get(rank.service, deployment.state)),
            container=rank.container or None,
            unit=rank.unit or None,
            boot_id=rank.boot_id or None,
            seen_at=rank.seen_at,
        )
        for rank in deployment.ranks.select_related("node")
    ]
    consents = [
        {"node": one.node, "kind": one.kind, "name": one.name, "disable": one.disable, "given_by": one.given_by}
        for one in deployment.consents.order_by("node", "kind", "name")
    ]
    return DeploymentWithSpec(
        **_fields(deployment),
        spec=_newest(deployment).body,
        services=[_service(deployment, row) for row in services],
        ranks=ranks,
        found=deployment.found,
        consents=consents,
        go_back_to=back.number if (back := runs.to_go_back_to(deployment)) else None,
        fatal=_fatal(deployment),
    )


def _fatal(deployment: Deployment) -> FatalOut | None:
    said = fatal.of_deployment(deployment)
    if said is None:
        return None
    run, line = said
    return FatalOut(line=line.number, run=run.pk, rank=line.rank, node=line.node, text=line.text, reason=line.reason)


def _service(deployment: Deployment, row: dict[str, Any]) -> ServiceOut:
    reached = queries.endpoint(deployment, row["service"]) if row["state"] in queries.ANSWERS else None
    url = None if reached is None or reached.tunnel else reached.url
    shown = {**row, "evidence": row["evidence"] or None, "endpoint": url}
    return ServiceOut(**shown, tunnel=(reached.tunnel or None) if reached else None)


def _given(spec: SpecBody | None) -> dict[str, Any]:
    return spec.model_dump(exclude_unset=True) if spec else {}


@contextmanager
def _fields_under_spec() -> Iterator[None]:
    """Services name a field of the Spec; in a body it stands below `spec`."""
    try:
        yield
    except Refused as refused:
        if (refused.field or "").partition("[")[0] in SpecBody.model_fields:
            refused.field = f"spec.{refused.field}"
        raise


def _begin(reference: int | str | None, number: int | None = None) -> tuple[dict[str, Any], RecipeVersion | None]:
    """Where a spec begins: a version of a recipe, the newest where none is named, or nothing."""
    recipes = Recipe.objects.filter(archived_at=None, versions__isnull=False).distinct()
    recipe = None if reference is None else by_reference(recipes, reference, field="recipe", names=("slug", "name"))
    version = version_of(recipe, number) if recipe else None
    return (version.body if version else {"model": "", "model_path": ""}), version


@router.get("deployments", response=Deployments)
@allow("view")
def list_deployments(
    request: HttpRequest,
    name: Word = "",
    state: Word = "",
    archived: bool = False,
    after: After = None,
    limit: Limit = LIMIT,
) -> Deployments:
    """All deployments but archived ones, or with `archived` only those; the oldest first. `name` and `state` are exact."""
    rows = _rows().filter(archived_at__isnull=not archived)
    rows = rows.filter(name=name) if name else rows
    rows = rows.filter(state=state) if state else rows
    found, following = page(rows, after=after, limit=limit)
    return Deployments(deployments=[DeploymentOut(**_fields(one)) for one in found], next=following)


@router.post("deployments", response={201: DeploymentWithSpec})
@allow("edit_deployments")
def create_deployment(request: HttpRequest, body: DeploymentBody) -> Status[DeploymentWithSpec]:
    """Make a deployment: the recipe's newest version with the fields of `spec` over it. Nothing runs yet."""
    start, version = _begin(body.recipe, body.recipe_version)
    with _fields_under_spec():
        made = services.create(
            actor_of(request),
            name=body.name,
            body={**start, **_given(body.spec)},
            nodes=body.nodes,
            recipe_version=version,
            on_rank_lost=body.on_rank_lost,
            reason=body.reason.strip(),
        )
    return Status(201, _whole(made.pk))


@router.get("deployments/{int:deployment_id}", response=DeploymentWithSpec)
@allow("view")
def get_deployment(request: HttpRequest, deployment_id: int) -> DeploymentWithSpec:
    """One deployment: `state`, `reason`, `phase`, `flags`, `evidence` and `since` are separate and never composed."""
    return _whole(deployment_id)


@router.get("deployments/{int:deployment_id}/revisions", response=Revisions)
@allow("view")
def list_revisions(request: HttpRequest, deployment_id: int, after: After = None, limit: Limit = LIMIT) -> Revisions:
    """All revisions, the newest first."""
    rows = by_id(Deployment.objects.all(), deployment_id).revisions.all()
    found, following = page(rows, after=after, limit=limit, newest_first=True)
    return Revisions(revisions=[_revision(one) for one in found], next=following)


def _revision(revision: Revision) -> RevisionOut:
    return RevisionOut(
        number=revision.number,
        spec=revision.body,
        reason=revision.reason or None,
        created_at=revision.created_at,
        created_by=revision.created_by or None,
    )


@router.post("deployments/{int:deployment_id}/revisions", response={201: RevisionOut})
@allow("edit_deployments")
def revise_deployment(request: HttpRequest, deployment_id: int, body: RevisionBody) -> Status[RevisionOut]:
    """Change fields of the newest revision, with a reason. What runs keeps running; the next launch uses it."""
    deployment = by_id(Deployment.objects.filter(archived_at=None), deployment_id)
    if not body.reason.strip():
        remedy = "Say in a few words what it is for."
        raise Refused("bad_input", "A new revision needs a reason.", field="reason", remedy=remedy)
    spec = deployment.revision.body
    kept = {name: value for name, value in spec.items() if name not in ("name", "nodes", "on_rank_lost")}
    nodes = spec["nodes"] if body.nodes is None else body.nodes
    with _fields_under_spec():
        made = services.revise(
            actor_of(request), deployment, body={**kept, **_given(body.spec)}, nodes=nodes, reason=body.reason.strip()
        )
    return Status(201, _revision(made))


@router.post("deployments/{int:deployment_id}/archive", response=DeploymentWithSpec)
@allow("edit_deployments")
def archive_deployment(request: HttpRequest, deployment_id: int, body: ReasonBody | None = None) -> DeploymentWithSpec:
    """Put away one that holds nothing (draft, stopped, failed, lost). Its history stays, its nodes may be removed."""
    reason = body.reason if body else ""
    services.archive(actor_of(request), by_id(Deployment.objects.all(), deployment_id), reason=reason)
    return _whole(deployment_id)


@router.post("deployments/{int:deployment_id}/unarchive", response=DeploymentWithSpec)
@allow("edit_deployments")
def unarchive_deployment(
    request: HttpRequest, deployment_id: int, body: ReasonBody | None = None
) -> DeploymentWithSpec:
    """Bring an archived one back as it was. Nothing is started."""
    reason = body.reason if body else ""
    services.unarchive(actor_of(request), by_id(Deployment.objects.all(), deployment_id), reason=reason)
    return _whole(deployment_id)


@router.post("deployments/{int:deployment_id}/take-over", response=DeploymentWithSpec)
@allow("edit_deployments")
def take_over_deployment(request: HttpRequest, deployment_id: int, body: TakeOverBody) -> DeploymentWithSpec:
    """What was adopted is ours from now on, with a reason: a stop stops it, a relaunch starts ours in its place. Nothing happens on
    the node by this."""
    found = by_id(Deployment.objects.filter(archived_at=None), deployment_id)
    services.take_over(actor_of(request), found, reason=body.reason, disable=body.disable)
    return _whole(deployment_id)


@router.post("deployments/{int:deployment_id}/policy", response=DeploymentWithSpec)
@allow("edit_deployments")
def set_relaunch_policy(request: HttpRequest, deployment_id: int, body: PolicyBody) -> DeploymentWithSpec:
    """What a robot does when it is lost: nothing (manual), one relaunch after a reboot (once), or as often as the limit says, each
    try after twice the wait of the one before (always). It clears only what an editor agreed to for this deployment."""
    services.set_policy(
        actor_of(request),
        by_id(Deployment.objects.filter(archived_at=None), deployment_id),
        policy=body.policy,
        limit=body.limit,
        backoff_s=body.backoff_s,
        reason=body.reason,
    )
    return _whole(deployment_id)


# What runs


def _clear(items: list[ClearBody]) -> tuple[Clear, ...]:
    return runs.clear_from([item.model_dump() for item in items])


@router.post("deployments/{int:deployment_id}/plan", response=PlanOut)
@allow("plan")
def plan_deployment(request: HttpRequest, deployment_id: int, body: PlanBody | None = None) -> PlanOut:
    """What would run now, on which node, and what stands in its way. Changes nothing."""
    deployment = by_id(Deployment.objects.filter(archived_at=None), deployment_id)
    asked = body or PlanBody()
    config = fitting.checked_config(asked.config)
    return planned.shown(
        runs.preview(
            actor_of(request),
            deployment,
            story=asked.story,
            clear=_clear(asked.clear),
            config=config,
            revision=asked.revision,
        )
    )


@router.post("fit", response=FitOut)
@allow("plan")
def ask_whether_it_fits(request: HttpRequest, body: FitBody) -> FitOut:
    """Whether a model fits, on which nodes with which settings, without a deployment. Nothing is stored or started."""
    start, _ = _begin(body.recipe)
    deployment = (
        None
        if body.deployment is None
        else by_reference(Deployment.objects.all(), body.deployment, field="deployment", names=())
    )
    if deployment is not None and body.recipe is None:
        start = deployment.revision.body
    start = {name: value for name, value in start.items() if name not in ("name", "nodes", "on_rank_lost")}
    with _fields_under_spec():
        found = fitting.will_it_fit(
            {**start, **_given(body.spec)},
            body.nodes,
            deployment=deployment,
            config=body.config,
            weights_bytes=body.weights_bytes,
        )
    return planned.fitted(found)


@router.get("deployments/{int:deployment_id}/export/{form}", response=ExportedFiles)
@allow("plan")
def export_deployment(request: HttpRequest, deployment_id: int, form: str) -> ExportedFiles:
    """What its launch would run now, without sparkweb: a shell script, compose files or systemd units by node."""
    deployment = by_id(Deployment.objects.filter(archived_at=None), deployment_id)
    plan = runs.preview(actor_of(request), deployment, story="launch")
    return ExportedFiles(format=form, files=exports.of_plan(plan, form))


def _start(request: HttpRequest, deployment_id: int, story: str, body: StartBody, key: str | None) -> Status[Started]:
    deployment = by_id(Deployment.objects.filter(archived_at=None), deployment_id)
    run = runs.start(
        actor_of(request),
        deployment,
        story=story,
        digest=body.digest,
        reason=body.reason,
        clear=_clear(body.clear),
        idempotency_key=key or "",
        wait=body.wait,
        revision=body.revision,
    )
    return Status(202, Started(run=run.pk))


@router.post("deployments/{int:deployment_id}/launch", response={202: Started})
@allow("launch")
def launch_deployment(
    request: HttpRequest, deployment_id: int, body: StartBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Run the plan with this digest. 409 `plan_changed` carries the new one, `node_reserved` the run that holds."""
    return _start(request, deployment_id, "launch", body, idempotency_key)


@router.post("deployments/{int:deployment_id}/relaunch", response={202: Started})
@allow("relaunch")
def relaunch_deployment(
    request: HttpRequest, deployment_id: int, body: StartBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Bring it back, with a reason. An operator may clear again exactly what an editor agreed to."""
    return _start(request, deployment_id, "relaunch", body, idempotency_key)


@router.post("deployments/{int:deployment_id}/stop", response={202: Started})
@allow("stop")
def stop_deployment(
    request: HttpRequest, deployment_id: int, body: StartBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """End its ranks and give the memory back."""
    return _start(request, deployment_id, "stop", body, idempotency_key)


@router.post("deployments/{int:deployment_id}/test", response={202: Started})
@allow("test")
def test_deployment(
    request: HttpRequest, deployment_id: int, body: TestBody | None = None, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Ask what runs what people will ask of it: its model by name, a completion, whole and streamed, a tool call where the recipe names
    a parser, embeddings, a ranking. A run of its own that holds no node; `GET deployments/…/tests` has what it showed."""
    asked = body or TestBody()
    run = testing.test(
        actor_of(request),
        by_id(Deployment.objects.filter(archived_at=None), deployment_id),
        services=asked.services,
        reason=asked.reason,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))


@router.get("deployments/{int:deployment_id}/tests", response=Tests)
@allow("view")
def list_tests(request: HttpRequest, deployment_id: int, limit: Limit = 20) -> Tests:
    """The newest smoke tests, and launches that ended with one, the newest first, with request and answer of each question."""
    deployment = by_id(Deployment.objects.all(), deployment_id)
    return Tests(tests=[_tested(run) for run in testing.tests_of(deployment, most=limit)])


def _tested(run: Run) -> TestOut:
    told = [
        AnswerOut(**{name: row.get(name) for name in AnswerOut.model_fields} | {"warning": row.get("warning") or ""})
        for row in testing.answers(run)
    ]
    return TestOut(
        run=run.pk,
        story=run.story,
        state=run.state,
        reason=run.reason,
        evidence=run.evidence or None,
        revision=run.revision.number if run.revision else None,
        actor=run.actor_name,
        why=run.why or None,
        created_at=run.created_at,
        ended_at=run.ended_at,
        answers=told,
    )
