"""Make nodes ready to serve, doing nothing where nothing is missing; every change is recorded on the node and has a way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from apps.diagnosis.findings import findings
from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.engines.site import no_sheet
from apps.plan.provision import network, offers, scripts
from apps.plan.provision.offers import NONE, PASSWORD, Here, once, rights
from apps.plan.provision.wish import BY_NAME, MENDS, OFFERS, Wish
from apps.plan.step import Plan, Problem, Stage, Step
from apps.shell import Secret

OF_FABRIC = ("fabric", "measure")


def because(sheets: Mapping[str, Sheet]) -> dict[str, dict[str, str]]:
    """Node -> offer -> the sentences of the findings that it settles."""
    made: dict[str, dict[str, list[str]]] = {node: {} for node in sheets}
    for found in findings(dict(sheets)):
        for node in found.nodes:
            if found.name in MENDS and node in made:
                made[node].setdefault(MENDS[found.name], []).append(found.sentence)
    return {node: {name: "; ".join(said) for name, said in by.items()} for node, by in made.items()}


def suggested(sheets: Mapping[str, Sheet]) -> tuple[tuple[str, str], ...]:
    """Every (node, offer) that a person would most likely want: all that is not optional."""
    return tuple(sorted((node, offer.name) for node in sheets for offer in OFFERS if not offer.optional))


def provision(wish: Wish, sheets: Mapping[str, Sheet]) -> Plan:
    """The plan of a wish. A node whose door opens only after this run (`wish.key`) gets its key and a first look; the rest
    can be planned when a sheet is there."""
    said = because({node: sheets[node] for node in wish.nodes if node in sheets})
    heres = [
        Here(node, sheets[node], wish, said[node]) for node in wish.nodes if node in sheets and node not in wish.key
    ]
    stages = [
        Stage("Let us in", "preparing", tuple(_key(node, wish) for node in wish.nodes if node in wish.key)),
        Stage("Sudo", "preparing", tuple(_sudo(heres))),
        Stage("System", "preparing", tuple(step for here in heres for step in offers.system(here))),
        *_fabric(heres),
        *_tied(heres),
        Stage(
            "Look again",
            "verifying",
            tuple(offers.look(node) for node in wish.nodes if node in wish.key or node in sheets),
        ),
    ]
    return Plan(
        story="provision",
        deployment=0,
        revision=0,
        nodes=wish.nodes,
        stages=_worth_it(tuple(stage for stage in stages if stage.steps)),
        problems=tuple(_problems(wish, sheets, heres)),
        spec={"wish": wish.to_json()},
    )


def _worth_it(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Where every step is a note there is nothing to look at again."""
    changes = any(step.kind not in ("note", "probe") for stage in stages for step in stage.steps)
    return stages if changes else tuple(stage for stage in stages if stage.name != "Look again")


def _key(node: str, wish: Wish) -> Step:
    line = dict(wish.public_keys).get(node, "")
    return Step(
        key=f"provision.key.{node}",
        node=node,
        title="Put our public key in, with the password",
        kind="key",
        script=scripts.key_script(line),
        commands=(scripts.key_shown(line),),
        why="the password opens the door this once and is forgotten; from then on the key does",
        secrets=(Secret("SPARKWEB_PASSWORD", once("login", node)),),
        undo={"node": node, "provision": "key", "values": {"line": line}},
        within_s=60.0,
    )


def _sudo(heres: Sequence[Here]) -> Iterator[Step]:
    """Asked before anything is changed anywhere: a wrong password must not leave half of a run behind."""
    for here in heres:
        if (
            any(BY_NAME[name].root for node, name in here.wish.ticks if node == here.node)
            and rights(here.sheet) != NONE
        ):
            if not _changes(here):
                continue
            yield steps.job(
                f"provision.sudo.{here.node}",
                here.node,
                "Ask sudo",
                scripts.SUDO_CHECK,
                shown=("sudo true",),
                why="before anything is changed",
                secrets=here.secrets,
            )


def _changes(here: Here) -> bool:
    """Whether any step of this node would run as root."""
    made = [*offers.system(here)]
    if here.wish.ticked(here.node, "fabric"):
        made.append(network.fabric(here))
    if here.wish.ticked(here.node, "earlyoom"):
        made.append(offers.earlyoom(here))
    return any(step.kind == "job" for step in made)


def _fabric(heres: Sequence[Here]) -> Iterator[Stage]:
    """Change everywhere, see that all answer, then keep it everywhere; so either all nodes keep the new network or none."""
    wanted = [here for here in heres if here.wish.ticked(here.node, "fabric")]
    changed = {here.node: network.fabric(here) for here in wanted}
    yield Stage("Fabric", "preparing", tuple(changed.values()))
    busy = [here for here in wanted if changed[here.node].kind == "job"]
    if busy:
        yield Stage("All answer", "preparing", tuple(network.answers(here, changed=here in busy) for here in wanted))
        yield Stage("Keep", "preparing", tuple(network.keep(here) for here in busy))
    if busy and len(wanted) > 1:
        others = {here.node: [other for other in wanted if other is not here] for here in wanted}
        yield Stage("Full packets", "verifying", tuple(network.pings(here, others[here.node]) for here in wanted))
    yield Stage("Bandwidth", "verifying", tuple(network.measuring(heres)))


def _tied(heres: Sequence[Here]) -> Iterator[Stage]:
    keys, trust, proof = network.peers(heres)
    yield Stage("Keys of the nodes", "preparing", tuple(keys))
    yield Stage("Trust", "preparing", tuple(trust))
    yield Stage("Log in", "verifying", tuple(proof))
    wanted = [here for here in heres if here.wish.ticked(here.node, "earlyoom")]
    yield Stage("Packages", "preparing", tuple(offers.earlyoom(here) for here in wanted))


def _problems(wish: Wish, sheets: Mapping[str, Sheet], heres: Sequence[Here]) -> Iterator[Problem]:
    for node in wish.nodes:
        if node not in sheets and node not in wish.key:
            yield no_sheet(node)
    yield from network.problems(heres)
    for here in heres:
        how = rights(here.sheet)
        if here.sheet.privileges is None and _changes(here):
            yield Problem(
                "unreadable", "stop", f"What this login may do on {here.node} is not known", here.node,
                "Whether sudo asks for a password decides what runs.", "Probe the node again.",
            )  # fmt: skip
        elif how == NONE:
            yield Problem(
                "sudo_denied", "warn", f"{here.user or 'This user'} may not use sudo on {here.node}", here.node,
                "Nothing that needs root is changed there; it is used as it is.",
                "Let somebody put this user into the group sudo, then probe again.",
            )  # fmt: skip
        elif how == PASSWORD and _changes(here):
            yield Problem(
                "sudo_password", "warn", f"Sudo asks for a password on {here.node}", here.node,
                "It is used for this run only and forgotten with it.", "Type it below.",
            )  # fmt: skip


def passwords(plan: Plan) -> tuple[str, ...]:
    """Names of the passwords that this plan needs, e.g. `once:sudo:spark-5be3`."""
    named = {secret.name for stage in plan.stages for step in stage.steps for secret in step.secrets}
    return tuple(sorted(name for name in named if name.startswith("once:")))
