"""Copy a model folder to other nodes, verify it, remove it. Copies hold no node: what serves there goes on serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.facts.sheet import Sheet
from apps.facts.values import ModelFolder
from apps.inventory import services as inventory
from apps.inventory.models import HostKey, Node
from apps.plan import stories
from apps.plan.copying.scripts import repo_of
from apps.plan.copying.wish import MOST_TARGETS, BadPath, Place, Wish, check_path, revision_of
from apps.plan.fabric import Fabric, fabric_address
from apps.plan.step import Plan
from apps.runs import services
from apps.runs.models import ACTIVE, Reservation, Run

STORIES = ("copy", "verify", "remove")


@dataclass(frozen=True)
class Held:
    """One model folder on one node."""

    node: str
    state: str  # complete, partial, unverified, corrupt
    bytes: int | None
    folder: ModelFolder
    verdict: str = ""  # what was seen last: verified, copied
    run: int | None = None  # that saw it


@dataclass(frozen=True)
class Model:
    """A model folder by its path, wherever it lies."""

    path: str
    name: str
    revision: str
    bytes: int | None
    held: dict[str, Held] = field(default_factory=dict)
    used_by: tuple[str, ...] = ()  # deployments that name it

    @property
    def deletable(self) -> bool:
        return not self.used_by


def table() -> tuple[list[str], list[Model]]:
    """Nodes, and the model folders that their newest sheets name."""
    names = list(Node.objects.order_by("name").values_list("name", flat=True))
    sheets = services.sheets_of(names)
    seen = _seen()
    found: dict[str, dict[str, Held]] = {}
    for node, sheet in sheets.items():
        for folder in sheet.models or ():
            verdict, run = seen.get((node, folder.path), ("", None))
            found.setdefault(folder.path, {})[node] = Held(
                node, _state(folder, verdict), folder.bytes, folder, verdict, run
            )
    users = _users()
    made = [
        Model(
            path=path,
            name=repo_of(path) or path.rsplit("/", 1)[-1],
            revision=revision_of(path),
            bytes=max((one.bytes or 0 for one in held.values()), default=None),
            held=held,
            used_by=tuple(users.get(path, ())),
        )
        for path, held in found.items()
    ]
    return names, sorted(made, key=lambda one: (one.name.lower(), one.path))


def _state(folder: ModelFolder, verdict: str) -> str:
    if folder.complete is False:
        return "partial"
    if verdict == "corrupt":
        return "corrupt"
    return "complete" if verdict in ("verified", "copied") else "unverified"


def _seen() -> dict[tuple[str, str], tuple[str, int]]:
    """(node, path) -> what the newest run that read the files there came to."""
    made: dict[tuple[str, str], tuple[str, int]] = {}
    for run in Run.objects.filter(story__in=STORIES).prefetch_related("steps__node").order_by("pk")[:2000]:
        path = str(run.parameters.get("path", ""))
        for step in run.steps.all():
            kind = step.key.split(".")[1] if step.key.startswith("copy.") else ""
            place = (step.node_name, path)
            if kind == "publish" and step.state == "succeeded":
                made[place] = ("copied", run.pk)
            elif kind == "verify" and step.state == "succeeded":
                made[place] = ("verified", run.pk)
            elif kind == "verify" and step.reason == "manifest_mismatch" and "differ" in step.evidence:
                made[place] = ("corrupt", run.pk)
            elif kind == "remove" and step.state == "succeeded":
                made.pop(place, None)
    return made


def _users() -> dict[str, list[str]]:
    """Path -> names of the deployments whose newest revision names it."""
    made: dict[str, list[str]] = {}
    for deployment in Deployment.objects.all():
        newest = deployment.revisions.order_by("-number").first()
        if newest is None:
            continue
        spec = newest.spec
        for one in (spec, *getattr(spec, "services", ())):
            path = str(getattr(one, "model_path", "") or "")
            if path:
                made.setdefault(path.rstrip("/"), []).append(deployment.name)
    return made


# What would run


def preview(story: str, path: str, nodes: Sequence[str], *, source: str = "") -> Plan:
    """What would run now; changes nothing. Raises Refused naming the field."""
    names = _checked(path, nodes, story)
    if story == "copy":
        return stories.distribute(_wish(path, source, names))
    if story == "verify":
        return stories.verify(path, names)
    return stories.remove(path, names)


def _checked(path: str, nodes: Sequence[str], story: str) -> list[str]:
    if story not in STORIES:
        raise Refused("bad_input", f"There is no story {story!r}.", field="story", remedy=f"Use {', '.join(STORIES)}.")
    try:
        check_path(path)
    except BadPath:
        raise Refused(
            "bad_input", "This path names no model folder.", field="path", remedy="Copy it from the table of models."
        ) from None
    names = list(dict.fromkeys(nodes))
    if not names or len(names) > MOST_TARGETS:
        raise Refused("bad_input", f"Choose between 1 and {MOST_TARGETS} nodes.", field="nodes", remedy="Tick some.")
    for place, name in enumerate(names):
        _node(name, f"nodes[{place}]")
    if story != "copy":
        sheets = services.sheets_of(names)
        for place, name in enumerate(names):
            if not _has(sheets.get(name), path):
                raise Refused(
                    "model_path_missing", f"{name} has no model at {path}.", field=f"nodes[{place}]", status=409,
                    remedy="Probe it, or leave it out.",
                )  # fmt: skip
    if story == "remove" and (users := _users().get(path)):
        raise Refused(
            "bad_input", f"{', '.join(users)} uses {path}.", field="path", status=409,
            remedy="Remove the deployment first, or give it another model.",
        )  # fmt: skip
    return names


def _node(name: str, field: str) -> Node:
    node = Node.objects.filter(name=name).select_related("credential").first()
    if node is None:
        raise Refused("not_found", f"There is no node {name!r}.", field=field, status=404, remedy="Add it first.")
    inventory.endpoint(node)  # Refused for an unconfirmed or stopped one
    return node


def _has(sheet: Sheet | None, path: str) -> ModelFolder | None:
    return next((one for one in (sheet.models or ()) if one.path == path), None) if sheet else None


def _wish(path: str, source: str, targets: Sequence[str]) -> Wish:
    """The source is the first node that has all of it, unless it is named."""
    everyone = list(Node.objects.order_by("name").values_list("name", flat=True))
    sheets = services.sheets_of(everyone)
    whole = [one for one in everyone if (found := _has(sheets.get(one), path)) and found.complete is not False]
    source = source or next((one for one in whole if one not in targets), "")
    if source not in whole:
        raise Refused(
            "model_path_missing", f"No node to copy from has all of {path}.", field="source", status=409,
            remedy="Fetch it onto one node first, or probe the node that has it.",
        )  # fmt: skip
    names = [name for name in targets if name != source]
    if not names:
        raise Refused("bad_input", f"{source} is where it is copied from.", field="nodes", remedy="Choose other nodes.")
    chain = [source, *names]
    for name in chain:
        if name not in sheets:
            raise Refused(
                "no_sheet", f"{name} was not probed yet.", field="nodes", status=409, remedy="Probe it first."
            )
    _node(source, "source")
    places = [_place(name, [sheets[other] for other in chain if other != name], sheets[name]) for name in chain]
    return Wish(path, places[0], tuple(places[1:]))


def _place(name: str, others: Sequence[Sheet], sheet: Sheet) -> Place:
    node = Node.objects.get(name=name)
    pinned = HostKey.objects.filter(node=node, state=HostKey.State.PINNED).order_by("type")
    keys = tuple(f"{one.type} {one.base64}" for one in pinned)
    found = fabric_address(sheet, others)
    if isinstance(found, Fabric):
        return Place(name, node.user, found.address, 22, keys)
    if node.jump is not None:
        raise Refused(
            "fabric_down", f"{name} shares no fabric subnet with the others.", field="nodes", status=409, remedy=found.remedy,
            evidence=found.evidence,
        )  # fmt: skip
    return Place(name, node.user, node.address, node.port, keys, fabric=False)


# Start


def start(
    actor: Actor,
    story: str,
    path: str,
    nodes: Sequence[str],
    *,
    source: str = "",
    reason: str = "",
    confirm: str = "",
    digest: str = "",
    idempotency_key: str = "",
) -> Run:
    """A run, or the one that does the same already; with `digest` only if the plan is still that one. A removal needs the folder's
    name in `confirm`. Raises Refused."""
    reason = reason.strip()
    if len(reason) > services.LONGEST_REASON:
        raise Refused(
            "bad_input", f"The reason is longer than {services.LONGEST_REASON} characters.", field="reason", remedy="Shorten it."
        )  # fmt: skip
    asked = {"path": path, "nodes": sorted(set(nodes)), "source": source}

    def known() -> Run | None:
        run = services.same_request(actor, idempotency_key, story=story, reason=reason)
        if run is not None and run.parameters.get("asked") != asked:
            raise services._reused(run)
        return run

    return services.once(
        known, lambda: _start(actor, story, path, nodes, source, reason, confirm, digest, idempotency_key, asked)
    )


@transaction.atomic
def _start(
    actor: Actor,
    story: str,
    path: str,
    nodes: Sequence[str],
    source: str,
    reason: str,
    confirm: str,
    digest: str,
    idempotency_key: str,
    asked: dict[str, Any],
) -> Run:
    list(Node.objects.select_for_update().order_by("pk"))  # of two that come at once the second sees the first's run
    joined = _running(story, path, nodes)
    if joined is None:
        plan = preview(story, path, nodes, source=source)
        if digest and plan.digest != digest:
            raise Refused(
                "plan_changed", "What would run is not what was previewed any more.", status=409, field="digest",
                remedy="Look at the new plan and start again.", extra={"digest": plan.digest},
            )  # fmt: skip
        if story == "remove" and confirm != path.rsplit("/", 1)[-1]:
            raise Refused(
                "bad_input", "The name of the folder is not right.", field="confirm",
                remedy=f"Type {path.rsplit('/', 1)[-1]} to remove it.",
            )  # fmt: skip
        _free(story, plan)
        run = services.planned_run(
            actor, plan, why=reason, idempotency_key=idempotency_key, parameters={"path": path, "asked": asked}
        )
        services.wake(run.pk)
    else:
        run = joined
    names = ", ".join(nodes)
    record(
        actor,
        f"model:{story}",
        object_type="run",
        object_id=str(run.pk),
        object_name=f"{path.rsplit('/', 1)[-1]} on {names}"[:200],
        outcome="requested",
        reason=reason,
        run=run.pk,
        after={"path": path, "nodes": list(nodes), "source": source} | ({"joined": run.pk} if joined else {}),
    )
    return run


def _running(story: str, path: str, nodes: Sequence[str]) -> Run | None:
    """A run that does the same, or more of it, now."""
    for run in Run.objects.filter(story=story, state__in=ACTIVE, cancel_asked_at=None).order_by("pk"):
        if run.parameters.get("path") == path and set(nodes) <= set(run.parameters["asked"]["nodes"]):
            return run
    return None


def _free(story: str, plan: Plan) -> None:
    """Two copies of one node at a time would take each other's key away."""
    for run in Run.objects.filter(story__in=STORIES, state__in=ACTIVE):
        both = set(run.plan.get("nodes", ())) & set(plan.nodes)
        if both:
            raise Refused(
                "node_reserved", f"Run {run.pk} works on {', '.join(sorted(both))}.", status=409, field="nodes",
                remedy="Wait for it, or cancel it.", extra={"run": run.pk},
            )  # fmt: skip
    held = Reservation.objects.filter(node__name__in=plan.nodes).select_related("node").first()
    if story == "remove" and held is not None:
        raise Refused(
            "node_reserved", f"Run {held.run_id} holds {held.node.name}.", status=409, field="nodes", remedy="Wait for it.",
            extra={"run": held.run_id},
        )  # fmt: skip
