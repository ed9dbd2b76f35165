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
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.plan.spec import Clear, Spec, validate
from apps.recipes.models import RecipeVersion

NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
ON_RANK_LOST = ("stop", "report")
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
    """Add a revision. What runs keeps running; the next launch uses it."""
    before = deployment.revision
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
def archive(actor: Actor, deployment: Deployment, *, reason: str = "") -> Deployment:
    """Put away a deployment that holds nothing: it leaves the lists and the watch, its history stays. Its nodes are free to
    be removed. Raises Refused while it may hold something."""
    found = Deployment.objects.select_for_update(of=("self",)).get(pk=deployment.pk)
    if found.archived_at is not None:
        return found
    left = _left(found)
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
