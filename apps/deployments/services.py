"""What people do to deployments: make one from a recipe, give it a new revision, archive it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments.models import Consent, Deployment, Revision
from apps.deployments.queries import clearing_of, others
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan import adopting
from apps.plan.adopting import Found
from apps.plan.allocating import filled
from apps.plan.spec import Clear, Other, Spec, validate
from apps.recipes import services as recipes
from apps.recipes.models import RecipeVersion

NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
ON_RANK_LOST = ("stop", "report")
POLICIES = ("manual", "once", "always")  # what a robot does when a deployment is lost
MOST_TRIES, LEAST_BACKOFF_S, MOST_BACKOFF_S = 20, 10, 24 * 3600
State = Deployment.State
RESTING = (State.DRAFT, State.STOPPED, State.FAILED, State.LOST)  # it holds nothing, or nothing that we know of


def spec_from(*, name: str, body: Mapping[str, Any], nodes: Sequence[str], on_rank_lost: str = "stop") -> Spec:
    """A valid Spec. Raises Refused for the first field that is wrong."""
    if not NAME.fullmatch(name):
        raise Refused(
            "bad_input",
            f"{name!r} is no deployment name.",
            field="name",
            remedy="Use 1 to 63 small letters, digits, dots or dashes, e.g. qwen3.5-122b.",
        )
    if on_rank_lost not in ON_RANK_LOST:
        raise Refused(
            "bad_input", f"on_rank_lost is {on_rank_lost!r}.", field="on_rank_lost", remedy="Use stop or report."
        )
    known = {node.name: node for node in Node.objects.filter(name__in=list(nodes))}
    for wanted in nodes:
        if wanted not in known:
            raise Refused(
                "bad_input", f"There is no node called {wanted}.", field="nodes", remedy="Add it under Nodes first."
            )
    try:
        spec = Spec.from_json({**body, "name": name, "nodes": list(nodes), "on_rank_lost": on_rank_lost})
    except (TypeError, ValueError) as problem:
        raise Refused(
            "bad_input",
            f"The specification can't be read: {problem}.",
            field="spec",
            remedy="Use the fields of the recipe; see docs/recipes.md.",
        ) from None
    for error in validate(spec):
        raise Refused("bad_input", error.message, field=error.field, remedy=error.remedy)
    return spec


def _filled(name: str, body: Mapping[str, Any], nodes: Sequence[str], found: Sequence[Other]) -> Mapping[str, Any]:
    """The body with what it leaves open, from what the nodes have and what other deployments take of them."""
    rows = Node.objects.filter(name__in=list(nodes))
    sheets = {node.name: sheet for node in rows if (sheet := inventory.latest_sheet(node)) is not None}
    return filled(body, name=name, nodes=nodes, sheets=sheets, others=found)


def _hold(nodes: Sequence[str]) -> None:
    """Let nobody else choose ports, or adopt something, on these nodes until this transaction ends. Call it first."""
    list(Node.objects.select_for_update(of=("self",)).filter(name__in=list(nodes)).order_by("pk").values_list("pk"))


@transaction.atomic
def create(
    actor: Actor,
    *,
    name: str,
    body: Mapping[str, Any],
    nodes: Sequence[str],
    recipe_version: RecipeVersion | None = None,
    on_rank_lost: str = "stop",
    reason: str = "",
) -> Deployment:
    """Make a deployment with its first revision. Nothing runs yet."""
    name = name.strip()
    if recipe_version is not None:
        recipes.check_deployable(recipe_version)
    _hold(nodes)
    body = _filled(name, body, nodes, others(None, nodes))
    spec = spec_from(name=name, body=body, nodes=nodes, on_rank_lost=on_rank_lost)
    try:
        with transaction.atomic():
            made = Deployment.objects.create(
                name=name, recipe_version=recipe_version, on_rank_lost=on_rank_lost, created_by=actor.name
            )
    except IntegrityError:
        archived = Deployment.objects.filter(name=name).exclude(archived_at=None).exists()
        raise Refused(
            "bad_input",
            f"{'An archived deployment' if archived else 'A deployment'} called {name} exists.",
            field="name",
            remedy="Choose another name, or bring it back from the archive." if archived else "Choose another name.",
        ) from None
    Revision.objects.create(deployment=made, number=1, body=spec.to_json(), created_by=actor.name, reason=reason)
    if recipe_version is not None:
        recipes.mark_used(recipe_version)
    record(
        actor,
        "deployment:created",
        object_type="deployment",
        object_id=str(made.pk),
        object_name=name,
        reason=reason,
        after=spec.to_json(),
    )
    ring_on_commit("fleet", 0)
    return made


@transaction.atomic
def revise(
    actor: Actor, deployment: Deployment, *, body: Mapping[str, Any], nodes: Sequence[str], reason: str
) -> Revision:
    """Add a revision. What runs keeps running; the next launch uses it. Further services move along where nodes are replaced."""
    _hold(nodes)
    deployment = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    before = deployment.revision
    not_adopted(deployment)
    body = {**body, "services": _moved(body.get("services"), before.spec.nodes, nodes)}
    body = _filled(deployment.name, body, nodes, others(deployment, nodes))
    spec = spec_from(name=deployment.name, body=body, nodes=nodes, on_rank_lost=deployment.on_rank_lost)
    if spec == before.spec:
        return before
    made = Revision.objects.create(
        deployment=deployment, number=before.number + 1, body=spec.to_json(), created_by=actor.name, reason=reason
    )
    record(
        actor,
        "deployment:revised",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        reason=reason,
        before=before.body,
        after=made.body,
    )
    ring_on_commit("deployment", deployment.pk, deployment.version)
    return made


@transaction.atomic
def go_back(actor: Actor, deployment: Deployment, to: Revision, *, reason: str) -> Revision:
    """A new revision that says what an earlier one said, so that the newest is always what is wanted. The trail names it."""
    before = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk).revision
    not_adopted(deployment)
    why = f"Back to revision {to.number}. {reason}".strip()[:2000]
    made = Revision.objects.create(
        deployment=deployment, number=before.number + 1, body=to.body, created_by=actor.name, reason=why
    )
    record(
        actor,
        "deployment:revised",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        reason=why,
        before=before.body,
        after=made.body,
    )
    ring_on_commit("deployment", deployment.pk, deployment.version)
    return made


@transaction.atomic
def set_policy(
    actor: Actor,
    deployment: Deployment,
    *,
    policy: str,
    limit: int | None = None,
    backoff_s: int | None = None,
    reason: str,
) -> Deployment:
    """What a robot does when it is lost. Whatever it did or gave up before counts no more. Raises Refused naming the field."""
    found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    not_adopted(found)
    limit = found.relaunch_limit if limit is None else limit
    backoff_s = found.relaunch_backoff_s if backoff_s is None else backoff_s
    _check_policy(policy, limit, backoff_s, reason.strip())
    before = policy_of(found)
    found.relaunch_policy, found.relaunch_limit, found.relaunch_backoff_s = policy, limit, backoff_s
    found.relaunch_set = {"by": actor.name, "at": timezone.now().isoformat(), "reason": reason.strip()}
    found.relaunching = {}
    found.version += 1
    found.save(
        update_fields=[
            "relaunch_policy", "relaunch_limit", "relaunch_backoff_s", "relaunch_set", "relaunching", "version",
        ]
    )  # fmt: skip
    record(
        actor,
        "deployment:policy",
        object_type="deployment",
        object_id=str(found.pk),
        object_name=found.name,
        reason=reason.strip(),
        before=before,
        after=policy_of(found),
    )
    ring_on_commit("deployment", found.pk, found.version)
    ring_on_commit("fleet", 0)
    return found


def policy_of(deployment: Deployment) -> dict[str, Any]:
    return {
        "relaunch": deployment.relaunch_policy,
        "limit": deployment.relaunch_limit,
        "backoff_s": deployment.relaunch_backoff_s,
    }


def _check_policy(policy: str, limit: int, backoff_s: int, reason: str) -> None:
    if policy not in POLICIES:
        raise Refused(
            "bad_input", f"There is no policy {policy[:20]!r}.", field="policy", remedy=f"Use {', '.join(POLICIES)}."
        )
    if not 1 <= limit <= MOST_TRIES:
        raise Refused("bad_input", "The limit is out of range.", field="limit", remedy=f"Use 1 to {MOST_TRIES} tries.")
    if not LEAST_BACKOFF_S <= backoff_s <= MOST_BACKOFF_S:
        raise Refused(
            "bad_input",
            "The wait before the second try is out of range.",
            field="backoff_s",
            remedy=f"Use {LEAST_BACKOFF_S} to {MOST_BACKOFF_S} seconds; it doubles with each try.",
        )
    if not reason:
        raise Refused(
            "bad_input", "A policy needs a reason.", field="reason", remedy="Say why; it is kept in the audit trail."
        )
    if len(reason) > 2000:
        raise Refused("bad_input", "The reason is longer than 2000 characters.", field="reason", remedy="Shorten it.")


def _moved(services: Any, before: Sequence[str], nodes: Sequence[str]) -> Any:
    """Further services on the nodes that stand now where theirs stood."""
    if not isinstance(services, list):
        return services or []
    now = dict(zip(before, nodes, strict=False))
    return [
        {**one, "nodes": [now.get(node, node) for node in one["nodes"]]}
        if isinstance(one, dict) and isinstance(one.get("nodes"), list)
        else one
        for one in services
    ]


def not_adopted(deployment: Deployment) -> None:
    """Raises Refused for one that runs as it was found."""
    if deployment.adopted:
        raise Refused(
            "in_use",
            f"{deployment.name} runs as it was found and is only watched.",
            status=409,
            remedy="Take it over first; from then on it is launched and stopped by plan.",
        )


@transaction.atomic
def archive(actor: Actor, deployment: Deployment, *, reason: str = "") -> Deployment:
    """Put away a deployment that holds nothing: it leaves the lists and the watch, its history stays. Its nodes are free to
    be removed. Raises Refused while it may hold something."""
    found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    if found.archived_at is not None:
        return found
    watched = found.adopted and found.ranks.exists()  # a job on its node follows each log
    left = f"{found.name} is watched still." if watched else _left(found)
    if left:
        raise Refused("in_use", left, status=409, remedy="Stop it first, then archive it.")
    found.ranks.all().delete()
    return _set_archived(actor, found, archived=True, reason=reason)


def _left(deployment: Deployment) -> str:
    """What it may still hold; empty when nothing."""
    if deployment.state not in RESTING:
        return f"{deployment.name} is {deployment.state}."
    left_behind = deployment.reason == "cleanup_incomplete"
    if deployment.state in (State.DRAFT, State.STOPPED) and not left_behind:
        return ""
    if (
        left_behind and deployment.state != State.STOPPED
    ):  # a cancel gave up on a node: its newest sheet says what is there
        return f"The last stop of {deployment.name} did not end everything."
    for node in Node.objects.filter(name__in=deployment.revision.body["nodes"]).order_by("name"):
        for one in inventory.part_of_sheet(node, "containers").containers or ():
            if one.state == "running" and one.labels.get("sparkweb.deployment") == str(deployment.pk):
                return f"Container {one.name} of {deployment.name} runs on {node.name}."
    return ""


@transaction.atomic
def unarchive(actor: Actor, deployment: Deployment, *, reason: str = "") -> Deployment:
    """Bring it back as it was put away. Nothing is started."""
    found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    return found if found.archived_at is None else _set_archived(actor, found, archived=False, reason=reason)


def _set_archived(actor: Actor, deployment: Deployment, *, archived: bool, reason: str) -> Deployment:
    deployment.archived_at = timezone.now() if archived else None
    deployment.version += 1
    deployment.save(update_fields=["archived_at", "version"])
    record(
        actor,
        "deployment:archived" if archived else "deployment:unarchived",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        reason=reason.strip(),
    )
    ring_on_commit("deployment", deployment.pk, deployment.version)
    ring_on_commit("fleet", 0)
    return deployment


def forget_found(deployment: Deployment, story: str) -> None:
    """What was found is gone once a launch or a stop by plan of what was taken over went well: it was cleared there."""
    if story in ("launch", "relaunch", "stop") and deployment.taken_over_at is not None and deployment.found:
        Deployment.objects.filter(pk=deployment.pk).update(found=[])


@transaction.atomic
def adopt(actor: Actor, *, name: str, found: Sequence[Found], reason: str = "") -> Deployment:
    """Make a deployment of what serves on a node and is not ours: a service each. It is watched and never changed until somebody
    takes it over. Raises Refused."""
    if not found:
        raise Refused("bad_input", "Nothing was chosen.", field="things", remedy="Choose at least one.")
    _hold([one.node for one in found])
    for one in found:
        holder = _adopted_by(one)
        if holder is not None:
            raise Refused(
                "in_use", f"{one.name} on {one.node} belongs to {holder.name} already.", field="things", status=409,
                remedy="Open that deployment.", extra={"deployment": holder.pk},
            )  # fmt: skip
    try:
        body = adopting.together(found)
    except ValueError as problem:
        raise Refused(
            "bad_input", f"{problem}.".capitalize(), field="things", remedy="Adopt each node's by itself."
        ) from None
    made = create(actor, name=name, body=body, nodes=[found[0].node], on_rank_lost="report", reason=reason)
    ordered = adopting.in_order(found)
    made.found = [
        {
            "node": one.node,
            "kind": one.kind,
            "name": one.name,
            "service": service,
            "restart_policy": one.restart_policy or None,
            "units": list(one.units),
            "answers": one.answers_as,
            "notes": list(one.notes),
        }
        for one, service in zip(ordered, adopting.services_of(ordered), strict=True)
    ]
    made.save(update_fields=["found"])
    return made


def _adopted_by(found: Found) -> Deployment | None:
    rows = Deployment.objects.filter(archived_at=None).exclude(found=[])
    same = (found.node, found.kind, found.name)
    return next((row for row in rows if same in [(one["node"], one["kind"], one["name"]) for one in row.found]), None)


@transaction.atomic
def take_over(actor: Actor, deployment: Deployment, *, reason: str, disable: bool = False) -> Deployment:
    """What was found is ours from now on: a stop stops it, and a launch clears it and starts ours in its place. Nothing happens on
    the node now. `disable`: its units shall not start at boot any more, once they are stopped. Raises Refused."""
    found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    reason = reason.strip()
    if not found.adopted:
        raise Refused(
            "bad_input", f"{found.name} was not adopted, or somebody took it over.", status=409, remedy="Open it."
        )
    if not reason:
        raise Refused(
            "bad_input", "Taking over needs a reason.", field="reason", remedy="Say why; it is kept in the audit trail."
        )
    found.taken_over_at = timezone.now()
    found.version += 1
    found.save(update_fields=["taken_over_at", "version"])
    clear = clearing_of(found, disable=disable)
    remember_consents(actor, found, clear, reason=reason)
    record(
        actor,
        "deployment:taken_over",
        object_type="deployment",
        object_id=str(found.pk),
        object_name=found.name,
        reason=reason,
        after={
            "clear": [f"{one.kind} {one.name} on {one.node}{' and disable' if one.disable else ''}" for one in clear]
        },
    )
    ring_on_commit("deployment", found.pk, found.version)
    ring_on_commit("fleet", 0)
    return found


def remember_consents(actor: Actor, deployment: Deployment, clear: Sequence[Clear], *, reason: str) -> None:
    """An editor's consent, so that a later relaunch by an operator may clear exactly the same again.

    Not for a process: its number may be another program's by then.
    """
    for item in clear:
        if item.kind == "process":
            continue
        Consent.objects.update_or_create(
            deployment=deployment,
            node=item.node,
            kind=item.kind,
            name=item.name,
            defaults={"disable": item.disable, "given_by": actor.name, "given_at": timezone.now(), "reason": reason},
        )


def consented(deployment: Deployment) -> tuple[Clear, ...]:
    """What an editor agreed to, on the nodes that the deployment has now. A process number is nothing to agree to for later."""
    kept = deployment.consents.filter(node__in=deployment.revision.spec.nodes).exclude(kind="process")
    return tuple(Clear(c.node, c.kind, c.name, c.disable) for c in kept.order_by("node", "kind", "name"))
