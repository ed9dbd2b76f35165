"""The last good launch as it was stored, and what a new plan tells the engine otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.plan.step import Difference, Setting

# What a plan takes from the node each time, by the name under which the engine is told.
ADDRESS = "the address by which the other nodes reach it is another"
MEETING = "the head's address on the fabric is another"
INTERFACE = "the interface that has this address has another name"
DERIVED = {
    "VLLM_HOST_IP": ADDRESS,
    "--master-addr": MEETING,
    "--dist-init-addr": MEETING,
    "NCCL_SOCKET_IFNAME": INTERFACE,
    "GLOO_SOCKET_IFNAME": INTERFACE,
    "TP_SOCKET_IFNAME": INTERFACE,
    "NCCL_IB_HCA": "the active RDMA ports of the cable are others",
    "NCCL_IB_GID_INDEX": "the node's GID tables name another index for these ports",
}
OURS = "sparkweb passes it otherwise than it did then"
APART = ("name", "services", "on_rank_lost", "service")  # of a spec: never changes, or compared by itself


@dataclass(frozen=True)
class Recorded:
    """`plan`: the stored plan as JSON, of the run that reached serving with this revision."""

    run: int
    revision: int
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plan.get("spec") or {}
        return found

    def image_ids(self, reference: str) -> dict[str, str]:
        """Node -> id of the image that this reference named there."""
        return {
            node: str(files["image_id"])
            for node, files in self._files()
            if files.get("image_id") and reference in (files.get("image"), files.get("image_said"))
        }

    def weights(self, path: str) -> dict[str, int]:
        """Node -> bytes of the weights at this path."""
        return {
            node: int(files["weights_bytes"])
            for node, files in self._files()
            if files.get("model_path") == path and files.get("weights_bytes")
        }

    def _files(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for stage in self.plan.get("stages") or ():
            for step in stage["steps"]:
                gate = step.get("gate") or {}
                if gate.get("name") == "preflight":
                    yield from ((str(step["node"]), one) for one in (gate, *gate.get("further", ())))


def of_spec(last: Recorded, spec: Mapping[str, Any], revision: int) -> list[Difference]:
    """Fields that another revision changed, of the main service and of further ones by their names."""
    then, now = (
        {one.get("service", ""): one for one in (body, *body.get("services", ()))} for body in (last.spec, spec)
    )
    found = []
    for service in dict.fromkeys([*then, *now]):
        was, will = then.get(service, {}), now.get(service, {})
        found += [
            Difference(
                name=name,
                before=_text(was.get(name)),
                after=_text(will.get(name)),
                reason=f"revision {revision} says so" if revision != last.revision else "it was taken from the node",
                kind="revision",
                service=service,
            )
            for name in dict.fromkeys([*was, *will])
            if name not in APART and _text(was.get(name)) != _text(will.get(name))
        ]
    return found


def of_settings(
    last: Recorded, settings: Sequence[Setting], nodes: Sequence[str], *, because: str = ""
) -> list[Difference]:
    """Options and variables of the engine that are otherwise, each with why; what is alike on all nodes once. Nothing where the
    last launch stored none. `because`: what a difference follows from that is not taken from the node."""
    before = [Setting(**{**one, "nodes": tuple(one["nodes"])}) for one in last.plan.get("settings") or ()]
    if not before or not settings:
        return []
    then, now = (_by_node(rows, nodes) for rows in (before, settings))
    found = []
    for name in dict.fromkeys([*then, *now]):
        was, will = then.get(name, {}), now.get(name, {})
        away = {
            node: (was.get(node, ""), will.get(node, "")) for node in nodes if was.get(node, "") != will.get(node, "")
        }
        if len(away) == len(nodes) > 1 and len(set(away.values())) == 1:
            away = {"": next(iter(away.values()))}
        found += [_of_setting(name, node, *values, because=because) for node, values in away.items()]
    return found


def _of_setting(name: str, node: str, before: str, after: str, *, because: str) -> Difference:
    service, _, bare = name.rpartition(": ")
    if bare in DERIVED:
        return Difference(bare, before, after, DERIVED[bare], node, "node", service)
    return Difference(bare, before, after, because or OURS, node, "revision" if because else "ours", service)


def _by_node(settings: Sequence[Setting], nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Name -> node -> what is passed there; an option that is passed twice with both values."""
    made: dict[str, dict[str, str]] = {}
    for one in settings:
        values = made.setdefault(one.name, {})
        text = one.effective.removeprefix(f"{one.name.rpartition(': ')[2]} ")
        for node in one.nodes or nodes:
            values[node] = f"{values[node]} {text}" if values.get(node) else text
    return made


def _text(value: Any) -> str:
    """A field as a person reads it."""
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, list):
        return ", ".join("=".join(map(str, one)) if isinstance(one, list) else _text(one) for one in value)
    if isinstance(value, dict):
        return " ".join(str(one) for one in value.values() if one not in (None, ""))
    return str(value)
