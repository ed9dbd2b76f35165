"""Memory and names that others have, and the verdict on memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from apps.diagnosis.findings.holders import NOTABLE_BYTES, Holder, holders, is_ours
from apps.diagnosis.reasons import REASONS
from apps.facts.sheet import Sheet
from apps.plan import together
from apps.plan.checks import others, ports, way
from apps.plan.engines.site import container_name
from apps.plan.fit import GIB, SLACK_BYTES, claim_bytes, load_of, room_of
from apps.plan.fit_together import fit_all
from apps.plan.found import is_known, made_anew
from apps.plan.spec import Clear, Given, Spec
from apps.plan.step import Problem


def check(spec: Spec, sheets: Sequence[Sheet], given: Given) -> Iterator[Problem]:
    """Memory, names, ports; the verdict on memory last."""
    for sheet in sheets:
        found, theirs = way.in_the_way(spec, sheet, sheets, given), others.of_holders(sheet, given)
        strangers = [one for one in found if (one.kind, one.name) not in theirs]
        held = ports.of_others(spec, sheet, given)
        yield from others.check(spec, sheet, found, held, given, partial(ports.instead, spec, sheet, given))
        if strangers:
            yield from _memory(sheet, strangers, given)
        elif not found:
            yield from _tenants(sheet, given)
        for one in together.on(spec, sheet.node):
            yield from _name(one, sheet, given)
        yield from ports.check(spec, sheet, way.items_for(sheet, strangers) if strangers else (), held, given)
        yield from _consents(sheet, given)
    if len(sheets) == len(spec.nodes):
        yield from _fits(spec, {sheet.node: sheet for sheet in sheets}, given)


def _memory(sheet: Sheet, found: Sequence[Holder], given: Given) -> Iterator[Problem]:
    items = way.items_for(sheet, found)
    units = [item for item in items if item.kind == "unit"]
    about = "About " if any(one.estimated for one in found) else ""
    who = ", ".join(one.name if one.kind != "process" else f"process {one.name}" for one in found)
    restart = ""
    if units:
        restart = (
            "1 unit restarts them. Stop the unit first, then remove the containers. "
            if len(units) == 1
            else f"{len(units)} units restart them. Stop the units first, then remove the containers. "
        )
    yield way.consent(
        "memory_held",
        f"{about}{sum(one.bytes for one in found) / GIB:.1f} GiB of {sheet.node} is held by {who}",
        sheet,
        items,
        given,
        meaning=(restart + _afterwards(sheet, items)).strip(),
        remedy="Allow them to be stopped" + ("; disabling the units is asked separately." if units else "."),
        evidence=", ".join(
            f"{one.name} {'about ' if one.estimated else ''}{one.bytes / GIB:.1f} GiB" if one.bytes else f"{one.name} ?"
            for one in found
        ),
    )


def _afterwards(sheet: Sheet, items: Sequence[Clear]) -> str:
    """How it comes back: sparkweb does not start it again."""
    units = [item.name for item in items if item.kind == "unit"]
    kept = [item.name for item in items if item.kind == "container" and not made_anew(sheet, item.name)]
    loose = [item.name for item in items if item.kind == "process"]
    said = []
    if units:
        said.append(f"Starting the unit{'s' if len(units) > 1 else ''} again brings them back.")
    if kept:
        said.append(f"{', '.join(kept)} {'is' if len(kept) == 1 else 'are'} stopped, not removed.")
    if loose:
        said.append(f"Nothing starts process {', '.join(loose)} again.")
    return " ".join(said)


def _consents(sheet: Sheet, given: Given) -> Iterator[Problem]:
    """Consents that can't be carried out: gone meanwhile, or no right to."""
    mine = [one for one in given.clear if one.node == sheet.node]
    gone = [f"{one.kind} {one.name}" for one in mine if not is_known(sheet, one)]
    if gone:
        yield Problem(
            "clear_gone",
            "fine",
            f"Nothing is cleared for {', '.join(gone)} on {sheet.node}: not there (any more)",
            sheet.node,
        )
    rights, root = sheet.privileges, bool(sheet.machine and sheet.machine.uid == 0)
    units = [one.name for one in mine if one.kind == "unit" and is_known(sheet, one)]
    if units and not root and rights and rights.sudo in ("none", "password"):
        known = REASONS["sudo_denied"]
        yield Problem(
            "sudo_denied",
            "stop",
            f"Units of {sheet.node} can't be stopped without a password",
            sheet.node,
            known.sentence,
            known.remedy,
            f"sudo -n systemctl stop {' '.join(units)}",
        )


def _tenants(sheet: Sheet, given: Given) -> Iterator[Problem]:
    """Others that may stay."""
    staying = [one for one in holders(sheet, given.deployment) if not one.own and one.bytes >= NOTABLE_BYTES]
    theirs = others.of_holders(sheet, given)
    if staying:
        who = ", ".join(
            f"{theirs[one.kind, one.name].name} ({one.name}, {one.bytes / GIB:.1f} GiB)"
            if (one.kind, one.name) in theirs
            else f"{one.name} ({one.bytes / GIB:.1f} GiB)"
            for one in staying
        )
        yield Problem("tenants", "fine", f"There is room beside {who} on {sheet.node}", sheet.node)
    else:
        yield Problem("nobody_else", "fine", f"Nobody else holds memory on {sheet.node}", sheet.node)


def _name(spec: Spec, sheet: Sheet, given: Given) -> Iterator[Problem]:
    """A container of another owner under the name that a rank will have."""
    if spec.runtime != "docker" or sheet.node not in spec.nodes:
        return
    name = container_name(spec, spec.nodes.index(sheet.node))
    found = next((one for one in sheet.containers or () if one.name == name), None)
    if found is None or (given.deployment and is_ours(found, given.deployment)):
        yield Problem("name_free", "fine", f"The name {name} is free on {sheet.node}", sheet.node)
        return
    if others.of_container(found, sheet.node, given):
        return  # told as that deployment's
    other = found.labels.get("sparkweb.deployment")
    whose = f"deployment {other}, which this sparkweb does not know" if other else "somebody else"
    yield Problem(
        "foreign_container",
        "stop",
        f"A container called {name} on {sheet.node} belongs to {whose}",
        sheet.node,
        "It is not removed, because this deployment did not start it.",
        "Choose another container name, or rename or remove it by hand.",
        f"{found.image} {found.status or found.state}",
    )


def _fits(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Iterator[Problem]:
    verdict = fit_all(spec, sheets, given)
    if verdict.verdict == "does_not_fit":
        best = " and ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:g}"
            for name, value in verdict.largest.items()
        )
        yield Problem(
            "does_not_fit",
            "stop",
            verdict.sentence,
            meaning="The engine would end with out of memory, or freeze the node.",
            remedy=f"The largest setting that fits: {best}."
            if best
            else "Use more nodes, a smaller model or fewer bits.",
            change=verdict.largest,
        )
    elif verdict.verdict == "unknown":
        yield Problem(
            "fit_unknown",
            "warn",
            verdict.sentence,
            meaning="It may fit or not; the launch will show it.",
            remedy="Watch the first launch: the engine says how large its KV cache is."
            if load_of(spec, list(sheets.values())).weights
            else "Set the model path and probe again.",
        )
    else:
        yield Problem("fits", "fine", verdict.sentence)
        yield from _knife_edge(spec, sheets, given)


def _knife_edge(spec: Spec, sheets: Mapping[str, Sheet], given: Given) -> Iterator[Problem]:
    for node in spec.nodes:
        room, claim = room_of(spec, sheets[node], given), claim_bytes(spec, sheets[node])
        if room and claim and room.after < claim <= room.after + SLACK_BYTES:
            yield Problem(
                "free_below_requested",
                "warn",
                f"{node} will have {room.after / GIB:.2f} GiB free, and the engine wants {claim / GIB:.2f}",
                node,
                "Free memory moves by about a GiB on its own; the engine refuses to start below its share.",
                f"Lower gpu_memory_utilization to {int(room.after / room.total * 100) / 100:g} to be safe.",
            )
