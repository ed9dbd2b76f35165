"""Deployments: the list, a new one, one of them, and the plan that is looked at before anything runs."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Case, IntegerField, Max, Value, When
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils.dateparse import parse_datetime
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.audit.models import Entry
from apps.deployments import services
from apps.deployments.models import Deployment, Revision
from apps.deployments.queries import Reached, endpoint
from apps.deployments.state import FLAG_WORDS, rank_state
from apps.diagnosis.refusal import Refused
from apps.facts.sheet import storable
from apps.inventory.models import Node
from apps.pages import files, forms, holding, scripts
from apps.pages.fitting import bars as fit_bars
from apps.pages.refusing import Error, error_of, explained
from apps.pages.runs import log_context
from apps.pages.smoke import latest
from apps.pages.words import duration_words
from apps.people.access import actor_of, allow, authorize
from apps.people.roles import allows
from apps.plan.spec import Clear
from apps.plan.step import Plan, Problem, Setting, Step
from apps.recipes import exports
from apps.recipes.models import Recipe, RecipeVersion
from apps.recipes.services import current_version
from apps.runs import fatal, queries, restoring
from apps.runs import services as runs
from apps.runs.models import LOOKS_ON, Reservation, Run, at_work
from apps.runs.suggesting import suggested

PAGE = 50
BROUGHT_UP = ("launch", "relaunch", "adopt")
POLICIES = (
    ("manual", "a person relaunches it"),
    ("once", "relaunched once after a reboot"),
    ("always", "always relaunched, with growing waits"),
)
STORIES = {"launch": "launch", "relaunch": "relaunch", "stop": "stop"}
ARCHIVED = "archived"  # no state, but chosen among them
# newest trouble first, then what moves, then what serves, then the rest
ORDER = ("failed", "lost", "degraded", "unreachable", "launching", "stopping", "serving", "stopped", "draft")
TONE_OF_SEVERITY = {"stop": "bad", "consent": "warn", "warn": "warn", "fine": "ok"}
DRAWING_OF_SEVERITY = {"stop": "bad", "consent": "warn", "warn": "warn", "fine": "ok"}


def in_order(found: Any) -> Any:
    """Deployments with trouble first, the newest of a kind first."""
    rank = Case(
        *[When(state=state, then=Value(place)) for place, state in enumerate(ORDER)],
        default=Value(99),
        output_field=IntegerField(),
    )
    return found.annotate(rank=rank).order_by("rank", "-since", "-pk")


# Lists


@dataclass(frozen=True)
class Flag:
    """Something that is true beside the state."""

    word: str
    evidence: str
    since: str


@dataclass(frozen=True)
class Row:
    deployment: Deployment
    spec: dict[str, Any]
    run: Run | None
    reached: Reached | None
    overall: float
    eta_s: float | None
    shard: str
    about: str
    sentence: str
    flags: list[Flag]


def flags_of(deployment: Deployment) -> list[Flag]:
    return [
        Flag(FLAG_WORDS[name], one.get("evidence", ""), one.get("since", ""))
        for name, one in (deployment.flags or {}).items()
        if name in FLAG_WORDS and isinstance(one, dict)
    ]


def row_of(deployment: Deployment) -> Row:
    spec = deployment.revision.body
    run = deployment.runs.exclude(story__in=("probe", *LOOKS_ON)).order_by("-pk").first()
    overall, eta_s, shard = 0.0, None, ""
    if run is not None and not run.ended:
        overall = queries.overall(run)
        if run.phase == "loading":
            eta_s = queries.eta(run).seconds
            counted = [row for row in queries.rank_progress(run) if row.get("total") and row.get("done") is not None]
            if counted:
                slowest = min(counted, key=lambda row: row["done"] / row["total"])
                shard = f"{slowest['done']}/{slowest['total']}"
    about = " · ".join(
        filter(
            None,
            (
                str(spec.get("model", "")).rpartition("/")[2],
                str(spec.get("engine", "")),
                f"TP {spec['tensor_parallel']}" if (spec.get("tensor_parallel") or 1) > 1 else "",
                f"with {' and '.join(one['service'] for one in spec['services'])}" if spec.get("services") else "",
            ),
        )
    )
    why = explained(deployment.reason)
    return Row(
        deployment,
        spec,
        run,
        endpoint(deployment),
        overall,
        eta_s,
        shard,
        about,
        deployment.evidence or (why.sentence if why else ""),
        flags_of(deployment),
    )


@allow("view")
@require_GET
def deployments(request: HttpRequest) -> HttpResponse:
    name, state = request.GET.get("name", "").strip(), request.GET.get("state", "")
    found = in_order(Deployment.objects.filter(archived_at__isnull=state != ARCHIVED))
    if name:
        found = found.filter(name__icontains=name)
    if state in Deployment.State.values:
        found = found.filter(state=state)
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [row_of(one) for one in page.object_list],
        "name": name,
        "state": state,
        "states": [*Deployment.State.values, ARCHIVED],
        "nodes": Node.objects.count(),
        "filtered": bool(name or state),
    }
    piece = request.headers.get("HX-Request") and request.headers.get("HX-Target") == "deployments"
    return render(request, "pages/deployments_list.html" if piece else "pages/deployments.html", context)


# A new one, and a change of one


def _slots(chosen: Sequence[str], world: int) -> list[dict[str, Any]]:
    """One select a rank, in order; the first is the head."""
    names = list(Node.objects.filter(state=Node.State.READY).values_list("name", flat=True))
    count = max(1, world, len(chosen))
    return [
        {"number": number, "chosen": chosen[number] if number < len(chosen) else "", "names": names}
        for number in range(min(count, 64))
    ]


def _fields(fields: Sequence[forms.SpecField], values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"field": field, "value": values.get(field.name, "")} for field in fields]


def _beside_services(error: Error | None) -> Error | None:
    """A field of a further service stands in the one field that holds them all."""
    if error is None or not error.field.startswith("services["):
        return error
    return replace(error, field="services", detail=f"{error.field}: {error.detail}")


def _form(
    request: HttpRequest,
    *,
    values: dict[str, str],
    name: str,
    chosen: Sequence[str],
    world: int,
    recipe: Recipe | None,
    deployment: Deployment | None = None,
    error: Error | None = None,
    reason: str = "",
    on_rank_lost: str = "stop",
) -> HttpResponse:
    context = {
        "main": _fields(forms.MAIN, values),
        "further": _fields(forms.FURTHER, values),
        "name": name,
        "slots": _slots(chosen, world),
        "recipes": Recipe.objects.filter(archived_at=None),
        "recipe": recipe,
        "deployment": deployment,
        "error": _beside_services(error),
        "reason": reason,
        "on_rank_lost": on_rank_lost,
        "nodes": Node.objects.filter(state=Node.State.READY).count(),
        "world": world,
        "chosen_version": forms.identity((request.POST or request.GET).get("version", "")),
        "further_open": bool(error and error.field.partition("[")[0] in {field.name for field in forms.FURTHER}),
    }
    piece = request.headers.get("HX-Request") and request.method == "GET"
    return render(
        request,
        "pages/deployment_fields.html" if piece else "pages/deployment_form.html",
        context,
        status=422 if error else 200,
    )


@allow("edit_deployments")
@require_http_methods(["GET", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    source = request.POST if request.method == "POST" else request.GET
    recipe = Recipe.objects.filter(slug=source.get("recipe", ""), archived_at=None).first()
    if recipe is None and request.method == "GET" and "recipe" not in request.GET:
        recipe = suggested()
    version = _chosen_version(recipe, source.get("version", "")) if recipe else None
    world = version.world_size if version else 1
    name = source.get("name", "").strip()
    if request.method == "GET":
        ready = list(Node.objects.filter(state=Node.State.READY).values_list("name", flat=True)[:world])
        values = forms.shown(version.body if version else {"engine": "vllm", "runtime": "docker", "cluster": "single"})
        return _form(request, values=values, name=name, chosen=ready, world=world, recipe=recipe)
    nodes = [node for node in request.POST.getlist("nodes") if node]
    on_rank_lost = request.POST.get("on_rank_lost", "stop")
    try:
        made = services.create(
            actor_of(request),
            name=name,
            body={**forms.beyond(version.body if version else {}), **forms.spec_body(request.POST)},
            nodes=nodes,
            recipe_version=version,
            on_rank_lost=on_rank_lost,
        )
    except Refused as refused:
        return _form(
            request,
            values=forms.typed(request.POST),
            name=name,
            chosen=nodes,
            world=world,
            recipe=recipe,
            error=error_of(refused),
            on_rank_lost=on_rank_lost,
        )
    return redirect(f"/deployments/{made.pk}/plan?story=launch")


def _chosen_version(recipe: Recipe, number: str) -> RecipeVersion:
    """The version that the address names, else the newest."""
    return recipe.versions.filter(number=forms.identity(number)).first() or current_version(recipe)


@allow("edit_deployments")
@require_http_methods(["GET", "POST"])
def change(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """A new revision. What runs keeps running until the next launch."""
    deployment = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    body = deployment.revision.body
    if request.method == "GET":
        return _form(
            request,
            values=forms.shown(body),
            name=deployment.name,
            chosen=body["nodes"],
            world=len(body["nodes"]),
            recipe=None,
            deployment=deployment,
        )
    nodes = [node for node in request.POST.getlist("nodes") if node]
    reason = request.POST.get("reason", "").strip()
    try:
        if not reason:
            raise Refused(
                "bad_input",
                "A new revision needs a reason.",
                field="reason",
                remedy="Say in a few words what it is for.",
            )
        services.revise(actor_of(request), deployment, body=forms.spec_body(request.POST), nodes=nodes, reason=reason)
    except Refused as refused:
        return _form(
            request,
            values=forms.typed(request.POST),
            name=deployment.name,
            chosen=nodes,
            world=len(nodes),
            recipe=None,
            deployment=deployment,
            error=error_of(refused),
            reason=reason,
        )
    return redirect(f"/deployments/{deployment.pk}/plan?story={story_up(deployment)}")


# One of them


def story_up(deployment: Deployment) -> str:
    """What brings it up: a relaunch once it has served, a launch until then, also after one that failed."""
    return "relaunch" if deployment.served_at else "launch"


def differences(older: dict[str, Any], newer: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields that differ between two bodies, each with both values as text."""
    before, after = (
        forms.shown(older) | {"nodes": ", ".join(older.get("nodes", []))},
        forms.shown(newer) | {"nodes": ", ".join(newer.get("nodes", []))},
    )
    return [
        {"name": name, "before": before.get(name, ""), "after": after[name]}
        for name in after
        if before.get(name, "") != after[name]
    ]


def _revisions(deployment: Deployment) -> list[dict[str, Any]]:
    found: list[Revision] = list(deployment.revisions.order_by("-number")[:20])
    return [
        {"revision": one, "changes": differences(found[place + 1].body, one.body) if place + 1 < len(found) else []}
        for place, one in enumerate(found)
    ]


@allow("view")
@require_GET
def deployment(request: HttpRequest, deployment_id: int) -> HttpResponse:
    found = get_object_or_404(Deployment.objects.select_related("recipe_version__recipe"), pk=deployment_id)
    return _one(request, found)


@allow("edit_deployments")
@require_POST
def archive(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """Put it away, or with `back` bring it back."""
    found = get_object_or_404(Deployment, pk=deployment_id)
    act = services.unarchive if request.POST.get("back") else services.archive
    try:
        found = act(actor_of(request), found, reason=request.POST.get("reason", ""))
    except Refused as refused:
        return _one(request, found, error_of(refused))
    put = "archived" if found.archived_at else "back"
    messages.success(request, f"{found.name} is {put}. Nothing was started or stopped.")
    return redirect("/deployments" if found.archived_at else found.get_absolute_url())


@allow("edit_deployments")
@require_POST
def take_over(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """What was adopted is ours to stop and launch from now on; nothing happens on the node by this."""
    found = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    try:
        services.take_over(
            actor_of(request), found, reason=request.POST.get("reason", ""), disable=bool(request.POST.get("disable"))
        )
    except Refused as refused:
        return _one(request, found, error_of(refused))
    messages.success(request, f"{found.name} is ours from now on. What was found runs on until a relaunch or a stop.")
    return redirect(found.get_absolute_url())


@allow("edit_deployments")
@require_POST
def policy(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """What a robot does when it is lost."""
    found = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    try:
        services.set_policy(
            actor_of(request),
            found,
            policy=request.POST.get("policy", ""),
            limit=forms.identity(request.POST.get("limit", "")),
            backoff_s=forms.identity(request.POST.get("backoff_s", "")),
            reason=request.POST.get("reason", ""),
        )
    except Refused as refused:
        return _one(request, found, error_of(refused))
    messages.success(request, f"When {found.name} is lost: {dict(POLICIES)[request.POST['policy']]}.")
    return redirect(f"{found.get_absolute_url()}#policy")


def _one(request: HttpRequest, found: Deployment, error: Error | None = None) -> HttpResponse:
    row = row_of(found)
    active = at_work(found).first()
    last_good = found.runs.filter(state="succeeded", story__in=BROUGHT_UP).order_by("-pk").first()
    states = queries.service_states(found)
    context = {
        "row": row,
        "deployment": found,
        "error": error,
        "spec": row.spec,
        "active": active,
        "last_good": last_good,
        "explained": explained(found.reason),
        "ranks": _rank_rows(found, states),
        "services": [one | {"reached": _reached(found, one)} for one in states],
        "proofs": _proofs(last_good),
        "found": _found_rows(found),
        "found_notes": list(dict.fromkeys(note for one in found.found for note in one.get("notes", ()))),
        "flags": flags_of(found),
        "smoke": (last_good.outcome.get("smoke") if last_good else None) or {},
        "tests": latest(found),
        "may_run": found.ranks.exists() or found.reason == "cleanup_incomplete",
        "left": found.state == Deployment.State.FAILED and not found.ranks.exists(),
        "curl": _curl(row),
        "previous": restoring.cleared(row.spec.get("nodes", [])),
        "consents": found.consents.order_by("node", "kind", "name"),
        "go_back_to": runs.to_go_back_to(found),
        "fatal": fatal.of_deployment(found),
        "policies": POLICIES,
        "next_at": parse_datetime(found.relaunching.get("next_at") or ""),
    }
    if request.headers.get("HX-Request"):
        return render(request, "pages/deployment_live.html", context)
    shown = last_good if last_good is not None and found.ranks.exists() else None
    return render(
        request,
        "pages/deployment.html",
        context
        | (log_context(shown) if shown else {})
        | {
            "revisions": _revisions(found),
            "runs": found.runs.order_by("-pk")[:20],
            "runs_count": found.runs.count(),
            "history": Entry.objects.filter(object_type="deployment", object_id=str(found.pk)).order_by("-id")[:25],
            "fields": [
                (field, value)
                for field in (*forms.MAIN, *forms.FURTHER)
                if (value := forms.shown(row.spec).get(field.name))
            ],
        },
        status=error.status if error else 200,
    )


def _rank_rows(deployment: Deployment, states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ranks, each with its own state where the deployment has several services."""
    labels = {row["service"]: (row["label"], row["state"]) for row in states}
    rows = []
    for rank in deployment.ranks.select_related("node", "revision"):
        label, state = labels.get(rank.service, ("", deployment.state))
        rows.append({"rank": rank, "label": label, "state": rank_state(state)})
    return rows


def _reached(deployment: Deployment, row: dict[str, Any]) -> Reached | None:
    return endpoint(deployment, row["service"]) if row["state"] in ("serving", "degraded") else None


def _proofs(run: Run | None) -> list[dict[str, Any]]:
    """What the first real request to each further service showed."""
    rows = queries.service_steps(run) if run else []
    return [row for row in rows if row["service"] and row["proof"]]


def _found_rows(deployment: Deployment) -> list[dict[str, Any]]:
    """What was there before us, with how it comes back by itself."""
    rows = []
    for one in deployment.found:
        policy = one.get("restart_policy") or ""
        comes = [f"Docker restarts it: {policy}"] if policy not in ("", "no") else []
        comes += [f"kept by {' and '.join(one['units'])}"] if one.get("units") else []
        rows.append({**one, "comes_back": "; ".join(comes) or "nothing"})
    return rows


def _curl(row: Row) -> str:
    """A first question to the API; empty while nothing answers."""
    if row.reached is None:
        return ""
    model = row.spec.get("served_model_name") or row.spec.get("model", "")
    kind = row.spec.get("kind") or "chat"
    asked: dict[str, dict[str, Any]] = {
        "chat": {"max_tokens": 512, "messages": [{"role": "user", "content": "Hello"}]},
        "embeddings": {"input": ["Hello"]},
        "rerank": {"query": "Hello", "documents": ["Good day", "Bananas"]},
    }
    body = {"model": model} | asked.get(kind, asked["chat"])
    path = {"chat": "chat/completions", "embeddings": "embeddings", "rerank": "rerank"}.get(kind, "chat/completions")
    return f"curl {row.reached.url}/{path} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"


# The plan


def _ticks(problem: Problem, clear: Sequence[Clear]) -> dict[str, Any]:
    """What the page needs to show a consent: its items as the form sends them, and what is ticked."""
    asked = [(item["node"], item["kind"], item["name"]) for item in problem.clear]
    given = {(one.node, one.kind, one.name): one.disable for one in clear}
    units = [item for item in problem.clear if item["kind"] == "unit"]
    return {
        "items": json.dumps(list(problem.clear)),
        "ticked": bool(asked) and all(key in given for key in asked),
        "units": json.dumps(units) if units else "",
        "unit_count": len(units),
        "disabled": bool(units) and all(given.get((item["node"], "unit", item["name"])) for item in units),
    }


def problem_rows(plan: Plan, clear: Sequence[Clear]) -> list[dict[str, Any]]:
    """Failed checks first; consents that were given stay where they can be taken back."""
    rows: list[dict[str, Any]] = []
    for problem in plan.problems:
        rows.append(
            {
                "problem": problem,
                "tone": TONE_OF_SEVERITY.get(problem.severity, "off"),
                "drawing": DRAWING_OF_SEVERITY.get(problem.severity, "off"),
                "ticks": _ticks(problem, clear) if problem.clear else None,
            }
        )
    rows.sort(key=lambda row: (list(TONE_OF_SEVERITY).index(row["problem"].severity), row["ticks"] is None))
    return rows


def setting_row(one: Setting) -> dict[str, Any]:
    """A setting for the table: the option's name stands in its first column only."""
    bare = {
        key: text.removeprefix(f"{one.name} ") for key, text in (("yours", one.yours), ("effective", one.effective))
    }
    return {"name": one.name, "source": one.source, "reason": one.reason, "nodes": one.nodes, **bare}


def stage_rows(plan: Plan) -> list[dict[str, Any]]:
    """Stages in order, in each the steps by node; the commands of a step as one text with what it waits for."""
    made = []
    for number, stage in enumerate(plan.stages, 1):
        nodes: dict[str, list[dict[str, Any]]] = {}
        for step in stage.steps:
            said = "" if step.title == stage.name and not step.why else sentence_of(step)
            nodes.setdefault(step.node, []).append({"step": step, "text": _commands(step), "said": said})
        made.append({"number": number, "name": stage.name, "nodes": nodes, "where": ", ".join(nodes)})
    return made


def sentence_of(step: Step) -> str:
    """`Wait until 98 GiB are free: at most 2 min`: what a step does, and of its reason what the title does not say."""
    words = step.why[:1].lower() + step.why[1:]
    doing = step.title[:1].lower() + step.title[1:]
    for same in (doing, doing.replace("wait ", "waits ", 1)):
        words = words.removeprefix(same).lstrip(" ,:;")
    return f"{step.title}: {words}" if words else step.title


def _commands(step: Step) -> str:
    if not step.commands:
        return ""
    lines = list(step.commands)
    if step.kind in ("wait", "ready") and "at most" not in step.why:
        lines.append(f"# waits, at most {duration_words(step.within_s)}")
    lines += [f"# {secret.variable} from the secret “{secret.name}”, never shown" for secret in step.secrets]
    return "\n".join(lines)


def fingerprints(plan: Plan) -> dict[str, str]:
    """Step key -> short hash of what it does, so that a later plan can say what differs."""
    return {
        step.key: hashlib.sha256(repr((step.script, step.commands, step.kind, step.why)).encode()).hexdigest()[:10]
        for stage in plan.stages
        for step in stage.steps
    }


def plan_changes(shown: str, plan: Plan) -> list[dict[str, str]]:
    """What differs from the plan that the person saw (`shown`: its fingerprints as JSON)."""
    try:
        before = json.loads(shown) if len(shown) < 200_000 else {}
    except (ValueError, RecursionError):
        before = {}
    if not isinstance(before, dict):
        return []
    now, titles = (
        fingerprints(plan),
        {step.key: f"{step.title}, {step.node}" for stage in plan.stages for step in stage.steps},
    )
    made = [
        {"what": "new" if key not in before else "changed", "title": titles[key]}
        for key, mark in now.items()
        if before.get(key) != mark
    ]
    return made + [{"what": "gone", "title": storable(str(key)[:120])} for key in before if key not in now]


def _default_clear(deployment: Deployment, story: str) -> tuple[Clear, ...]:
    """What an editor has agreed to before stays agreed for a relaunch."""
    return services.consented(deployment) if story in ("launch", "relaunch") else ()


def _query(story: str, clear: Sequence[Clear], back: int | None) -> str:
    items = [{"node": one.node, "kind": one.kind, "name": one.name} for one in clear]
    off = [item for item, one in zip(items, clear, strict=True) if one.disable]
    asked = {"story": story, "ticked": "1", "clear": json.dumps(items), "disable": json.dumps(off)}
    return urlencode(asked | ({"revision": str(back)} if back else {}))


def _agreed(clear: Sequence[Clear], plan: Plan) -> tuple[Clear, ...]:
    """Of the remembered consents, those that this plan asks for."""
    asked = {(item["node"], item["kind"], item["name"]) for problem in plan.problems for item in problem.clear}
    return tuple(one for one in clear if (one.node, one.kind, one.name) in asked)


def _bars(plan: Plan) -> list[dict[str, Any]]:
    return fit_bars(plan.fit) if plan.fit else []


@allow("plan")
@require_http_methods(["GET", "POST"])
def plan(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """GET shows what would run; POST runs exactly that, if it is still so. POST asks for the story's own action."""
    deployment = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    source = request.POST if request.method == "POST" else request.GET
    story = source.get("story", "launch")
    story = story if story in STORIES else "launch"
    actor = actor_of(request)
    try:
        if request.method == "GET":
            return _show(request, deployment, story, source)
        authorize(actor, STORIES[story], deployment)
        run = runs.start(
            actor,
            deployment,
            story=story,
            digest=source.get("digest", ""),
            reason=source.get("reason", ""),
            clear=forms.clearing(source),
            idempotency_key=source.get("key", ""),
            wait=source.get("wait") == "1",
            revision=_revision_asked(source),
        )
    except Refused as refused:
        return _show(request, deployment, story, source, error=error_of(refused))
    return redirect(f"/runs/{run.pk}")


def _revision_asked(source: QueryDict) -> int | None:
    """The revision that the page goes back to; None for the newest."""
    return forms.identity(source.get("revision", "")) or None


def _rebooted_since(nodes: Iterable[Node]) -> list[str]:
    """The nodes that were rebooted after their newest facts were taken: a plan of these would be refused by its preflight."""
    sheets = runs.sheets_of([node.name for node in nodes])
    return [
        node.name
        for node in nodes
        if (sheet := sheets.get(node.name)) and sheet.machine and node.boot_id and sheet.machine.boot_id != node.boot_id
    ]


def _show(
    request: HttpRequest, deployment: Deployment, story: str, source: QueryDict, error: Error | None = None
) -> HttpResponse:
    actor = actor_of(request)
    made: Plan | None = None
    clear: tuple[Clear, ...] = ()
    back = _revision_asked(source)
    try:
        clear = forms.clearing(source) if "ticked" in source else _default_clear(deployment, story)
        made = runs.preview(actor, deployment, story=story, clear=clear, revision=back)
        if "ticked" not in source and clear:
            clear = _agreed(clear, made)
            made = runs.preview(actor, deployment, story=story, clear=clear, revision=back)
    except Refused as refused:
        error = error or error_of(refused)
    held: dict[Any, list[str]] = {}
    for reservation in Reservation.objects.filter(node__name__in=made.nodes if made else ()).select_related(
        "node", "run__deployment"
    ):
        held.setdefault(reservation.run, []).append(reservation.node.name)
    rows = problem_rows(made, clear) if made else []
    needed = [row for row in rows if row["problem"].severity in ("stop", "consent")]
    nodes = Node.objects.filter(name__in=made.nodes if made else []).annotate(looked=Max("sheets__taken_at"))
    context = {
        "deployment": deployment,
        "revision": deployment.revision,
        "body": made.spec if made and made.spec else deployment.revision.body,
        "back": back,
        "go_back_to": runs.to_go_back_to(deployment) if story == "relaunch" else None,
        "last_good": Run.objects.filter(pk=made.last_good or 0).select_related("revision").first() if made else None,
        "story": story,
        "plan": made,
        "error": error,
        "clear": clear,
        "problems": [row for row in rows if row["tone"] != "ok" or row["ticks"]],
        "fine_rows": [row for row in rows if row["tone"] == "ok" and not row["ticks"]],
        "needed": len(needed),
        "fine": sum(row["tone"] == "ok" for row in rows),
        "stages": stage_rows(made) if made else [],
        "bars": _bars(made) if made else [],
        "settings": [setting_row(one) for one in made.settings] if made else [],
        "ours": sum(one.source == "ours" for one in made.settings) if made else 0,
        "steps": sum(len(stage.steps) for stage in made.stages) if made else 0,
        "trees": holding.trees(runs.sheets_of(made.nodes).values()) if made and story != "stop" else [],
        "shown": json.dumps(fingerprints(made)) if made else "",
        "reason": source.get("reason", ""),
        "held": held,
        "oldest": min((node.looked for node in nodes if node.looked), default=None),
        "rebooted": _rebooted_since(nodes),
        "query": _query(story, clear, back),
        "changes": plan_changes(source.get("shown", ""), made)
        if made and error and (error.extra or {}).get("digest")
        else [],
        "may_start": allows(actor.role, STORIES[story]),
        "may_clear": allows(actor.role, "clear"),
        "key": source.get("key") or uuid.uuid4().hex,
        "worker": runs.worker_status(),
        "verb": {"launch": "Launch", "relaunch": "Relaunch", "stop": "Stop"}[story],
    }
    piece = request.headers.get("HX-Request")
    return render(
        request, "pages/plan_body.html" if piece else "pages/plan.html", context, status=error.status if error else 200
    )


@allow("plan")
@require_GET
def plan_script(request: HttpRequest, deployment_id: int) -> HttpResponse:
    """The previewed plan as a text."""
    deployment = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    try:
        made = runs.preview(
            actor_of(request),
            deployment,
            story=request.GET.get("story", "launch"),
            clear=forms.clearing(request.GET),
            revision=_revision_asked(request.GET),
        )
    except Refused as refused:
        return HttpResponse(
            f"# {refused.detail} {refused.remedy}\n", content_type="text/plain; charset=utf-8", status=refused.status
        )
    return scripts.response(made, deployment.name)


@allow("plan")
@require_GET
def export(request: HttpRequest, deployment_id: int, form: str) -> HttpResponse:
    """What a launch would run, for use without sparkweb."""
    deployment = get_object_or_404(Deployment, pk=deployment_id, archived_at=None)
    try:
        made = exports.of_plan(
            runs.preview(actor_of(request), deployment, story="launch", clear=forms.clearing(request.GET)), form
        )
    except Refused as refused:
        messages.error(request, f"{refused.detail} {refused.remedy}")
        return redirect(f"/deployments/{deployment.pk}/plan?story=launch")
    return files.download(made, f"{deployment.name}-{form}")


urlpatterns = [
    path("deployments", deployments, name="deployments"),
    path("deployments/new", new, name="deployment-new"),
    path("deployments/<int:deployment_id>", deployment, name="deployment"),
    path("deployments/<int:deployment_id>/archive", archive, name="deployment-archive"),
    path("deployments/<int:deployment_id>/take-over", take_over, name="deployment-take-over"),
    path("deployments/<int:deployment_id>/policy", policy, name="deployment-policy"),
    path("deployments/<int:deployment_id>/change", change, name="deployment-change"),
    path("deployments/<int:deployment_id>/plan", plan, name="deployment-plan"),
    path("deployments/<int:deployment_id>/plan.txt", plan_script, name="deployment-script"),
    path("deployments/<int:deployment_id>/export/<str:form>", export, name="deployment-export"),
]
