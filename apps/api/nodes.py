"""Nodes: register, confirm the host key, probe, look, remove."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Query, Router, Status

from apps.api.finding import by_id, by_reference, page
from apps.api.schemas import (
    LIMIT,
    AdoptBody,
    After,
    ConfirmBody,
    FetchBody,
    GapOut,
    Holder,
    HostKeyOut,
    IdempotencyKey,
    Limit,
    MarkOut,
    Named,
    NodeBody,
    NodeHistory,
    NodeOut,
    Nodes,
    NodeWithSheet,
    PointOut,
    RepinBody,
    ServesHere,
    ServesOut,
    Started,
    UnlockBody,
    Word,
)
from apps.inventory import services
from apps.inventory.models import Credential, Node
from apps.people.access import actor_of, allow
from apps.runs import fetching, foreign
from apps.runs import services as runs
from apps.watch import history

router = Router(tags=["nodes"])
MOST_HOPS = 8
_FIRST = ("ssh-ed25519",)  # the type that people compare first


def _rows() -> QuerySet[Node]:
    return Node.objects.select_related("credential", "jump", "reservation", "sighting").prefetch_related("host_keys")


def _host_keys(node: Node) -> list[HostKeyOut]:
    """Of the node's own door, then of each jump host's on the way, the nearest to the node first."""
    made: list[HostKeyOut] = []
    hop: Node | None = node
    for _ in range(MOST_HOPS):
        if hop is None:
            break
        for key in sorted(hop.host_keys.all(), key=lambda key: (key.type not in _FIRST, key.type, key.pk)):
            made.append(
                HostKeyOut(
                    hop=hop.name,
                    type=key.type,
                    sha256=key.sha256,
                    state=key.state,
                    confirmed_at=key.confirmed_at,
                    confirmed_by=key.confirmed_by or None,
                )
            )
        hop = hop.jump
    return made


def _fields(node: Node) -> dict[str, Any]:
    held = getattr(node, "reservation", None)
    return {
        "id": node.pk,
        "name": node.name,
        "address": node.address,
        "port": node.port,
        "user": node.user,
        "credential": Named(id=node.credential_id, name=node.credential.name),
        "jump": Named(id=node.jump.pk, name=node.jump.name) if node.jump else None,
        "state": node.state,
        "host_keys": _host_keys(node),
        "boot_id": node.boot_id or None,
        "last_seen_at": node.last_seen_at,
        "unreachable_since": node.unreachable_since,
        "unreachable_reason": node.unreachable_reason or None,
        "unreachable_evidence": node.unreachable_evidence or None,
        "unreachable_hop": node.unreachable_hop or None,
        "reserved_by": Holder(run=held.run_id, since=held.since) if held else None,
        "created_at": node.created_at,
    }


def _whole(node: Node, *, evidence: bool = False) -> NodeWithSheet:
    sheet = services.latest_sheet(node)
    sighting = getattr(node, "sighting", None)
    body = sheet.to_json() if sheet else None
    if body is not None and not evidence:
        del body["evidence"]
    return NodeWithSheet(
        **_fields(node),
        sheet=body,
        sheet_taken_at=datetime.fromtimestamp(sheet.taken_at, UTC) if sheet else None,
        sighting=sighting.body if sighting else None,
        sighted_at=sighting.at if sighting else None,
    )


@router.get("nodes", response=Nodes)
@allow("view")
def list_nodes(request: HttpRequest, name: Word = "", after: After = None, limit: Limit = LIMIT) -> Nodes:
    """All nodes, the oldest first; `name` is the exact name of one."""
    rows = _rows().filter(name=name) if name else _rows()
    found, following = page(rows, after=after, limit=limit)
    return Nodes(nodes=[NodeOut(**_fields(one)) for one in found], next=following)


@router.post("nodes", response={201: NodeOut})
@allow("edit_nodes")
def add_node(request: HttpRequest, body: NodeBody, idempotency_key: IdempotencyKey = None) -> Status[NodeOut]:
    """Register a node. A worker asks its door for host keys (up to 40 s); compare `host_keys` and confirm one."""
    credential = by_reference(Credential.objects.all(), body.credential, field="credential")
    jump = None if body.jump is None else by_reference(Node.objects.all(), body.jump, field="jump")
    made = runs.enrol(
        actor_of(request),
        name=body.name,
        address=body.address,
        port=body.port,
        user=body.user,
        credential=credential,
        jump=jump,
        idempotency_key=idempotency_key or "",
    )
    return Status(201, NodeOut(**_fields(by_id(_rows(), made.pk))))


@router.get("nodes/{int:node_id}", response=NodeWithSheet)
@allow("view")
def get_node(
    request: HttpRequest,
    node_id: int,
    evidence: Annotated[bool, Query(description="with the raw output of each section of the probe")] = False,
) -> NodeWithSheet:
    """A node with the facts of its last probe."""
    return _whole(by_id(_rows(), node_id), evidence=evidence)


@router.get("nodes/{int:node_id}/history", response=NodeHistory)
@allow("view")
def get_history(request: HttpRequest, node_id: int, span: Literal["hour", "day", "month"] = "hour") -> NodeHistory:
    """Memory, temperature, power and load of a node as the watch saw them, and what happened to it."""
    node = by_id(Node.objects.all(), node_id)
    points = history.points(node, span)
    return NodeHistory(
        span=span,
        step_s=history.SPANS[span][0],
        points=[
            PointOut(
                at=one.at,
                used_bytes=one.used_bytes,
                total_bytes=one.total_bytes,
                temp_c=one.temp_c,
                power_w=one.power_w,
                busy_pct=one.busy_pct,
            )
            for one in points
        ],
        gaps=[
            GapOut(start=datetime.fromtimestamp(gap.start, UTC), end=datetime.fromtimestamp(gap.end, UTC))
            for gap in (
                *history.gaps(points, span, settings.WATCH_PERIOD_S),
                *history.last_gap(points, span, settings.WATCH_PERIOD_S, time.time()),
            )
        ],
        marks=[MarkOut(at=one.at, kind=one.kind, text=one.text) for one in history.marks(node, span)],
    )


@router.delete("nodes/{int:node_id}", response={204: None})
@allow("edit_nodes")
def remove_node(request: HttpRequest, node_id: int, reason: Word = "") -> Status[None]:
    """Forget a node that nothing refers to. Nothing is changed on it."""
    services.remove_node(actor_of(request), by_id(Node.objects.all(), node_id), reason=reason)
    return Status(204, None)


@router.post("nodes/{int:node_id}/confirm", response=NodeWithSheet)
@allow("edit_host_keys")
def confirm_host_key(request: HttpRequest, node_id: int, body: ConfirmBody) -> NodeWithSheet:
    """Pin the key with this fingerprint. Nothing is done on a node before."""
    services.confirm_host_key(actor_of(request), by_id(Node.objects.all(), node_id), sha256=body.sha256)
    return _whole(by_id(_rows(), node_id))


@router.post("nodes/{int:node_id}/repin", response=NodeWithSheet)
@allow("edit_host_keys")
def replace_host_key(request: HttpRequest, node_id: int, body: RepinBody) -> NodeWithSheet:
    """Trust another key than before, with a reason. POST …/scan first, so that the new key is known."""
    services.repin_host_key(
        actor_of(request), by_id(Node.objects.all(), node_id), sha256=body.sha256, reason=body.reason
    )
    return _whole(by_id(_rows(), node_id))


@router.post("nodes/{int:node_id}/scan", response={202: Started})
@allow("edit_host_keys")
def scan_node(request: HttpRequest, node_id: int, idempotency_key: IdempotencyKey = None) -> Status[Started]:
    """Ask the node's door again which host keys it shows; nothing is trusted by it."""
    node = by_id(Node.objects.all(), node_id)
    return Status(202, Started(run=runs.rescan(actor_of(request), node, idempotency_key=idempotency_key or "").pk))


@router.post("nodes/{int:node_id}/unlock", response={202: Started})
@allow("clear")
def unlock_node(
    request: HttpRequest, node_id: int, body: UnlockBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Remove the locks that other installations of sparkweb left on the node; one that lives keeps its own, and the run fails."""
    node = by_id(Node.objects.all(), node_id)
    run = foreign.unlock(actor_of(request), node, reason=body.reason, idempotency_key=idempotency_key or "")
    return Status(202, Started(run=run.pk))


@router.post("nodes/{int:node_id}/models", response={202: Started})
@allow("provision")
def fetch_model(
    request: HttpRequest, node_id: int, body: FetchBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Fetch a model revision from a hub into the node's cache, or take it in from a folder there. A second request for the same
    bytes gets the run that brings them."""
    node = by_id(Node.objects.all(), node_id)
    run = fetching.start(
        actor_of(request),
        node,
        body.model_dump(exclude={"reason"}),
        reason=body.reason,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))


@router.post("nodes/{int:node_id}/probe", response={202: Started})
@allow("probe")
def probe_node(request: HttpRequest, node_id: int, idempotency_key: IdempotencyKey = None) -> Status[Started]:
    """Take a fresh sheet of the node."""
    node = by_id(Node.objects.all(), node_id)
    run = runs.probe(actor_of(request), [node], idempotency_key=idempotency_key or "")
    return Status(202, Started(run=run.pk))


@router.get("nodes/{int:node_id}/serves", response=ServesHere)
@allow("view")
def what_serves(request: HttpRequest, node_id: int) -> ServesHere:
    """Containers and units that serve a model there and are not ours, by the newest sheet: what can be adopted."""
    node = by_id(Node.objects.all(), node_id)
    return ServesHere(
        serves=[
            ServesOut(
                kind=one.kind,
                name=one.name,
                serves=one.body["kind"],
                model=one.body.get("served_model_name") or one.body["model"],
                port=one.port,
                restart_policy=one.restart_policy or None,
                units=list(one.units),
                notes=list(one.notes),
            )
            for one in runs.adoptable(node)
        ]
    )


@router.post("nodes/{int:node_id}/adopt", response={202: Started})
@allow("edit_deployments")
def adopt_what_serves(
    request: HttpRequest, node_id: int, body: AdoptBody, idempotency_key: IdempotencyKey = None
) -> Status[Started]:
    """Make a deployment of what serves there: it is watched and its log followed, and nothing of it is changed until somebody takes
    it over."""
    node = by_id(Node.objects.all(), node_id)
    things = [(one.kind, one.name) for one in body.things]
    run = runs.adopt(
        actor_of(request),
        node,
        name=body.name,
        things=things,
        reason=body.reason,
        idempotency_key=idempotency_key or "",
    )
    return Status(202, Started(run=run.pk))
