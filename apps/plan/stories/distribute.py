"""Model folders from node to node, verified; and their verification and removal."""

from __future__ import annotations

# ruff: noqa: E501 (commands as they are shown)
import itertools
from collections.abc import Sequence

from apps.plan.copying import scripts
from apps.plan.copying.wish import Place, Wish, check_path
from apps.plan.step import Plan, Problem, Stage, Step
from apps.shell import Shell

LONG_S = 172_800.0


def distribute(wish: Wish) -> Plan:
    """A chain: each node hands every file on as soon as it is whole, so many nodes take hardly longer than one."""
    chain = (wish.source, *wish.targets)
    hops = list(itertools.pairwise(chain))
    first = f"copy.manifest.{wish.source.node}"
    manifest = _job(
        first, wish.source.node, f"List the files of {wish.path}", scripts.manifest(wish),
        shown=(f"find -L {wish.path} -type f", "sha256sum FILE  # where the hub's cache does not name the hash"),
        why="path, size and SHA-256 of each file: what every node must have",
    )  # fmt: skip
    keys = tuple(
        _job(
            f"copy.key.{here.node}", here.node, "Make a key for this copy", scripts.key(),
            shown=("ssh-keygen -t ed25519 -f ~/.local/state/sparkweb/copy/key",), why="it lives as long as the copy",
        )
        for here, _ in hops
    )  # fmt: skip
    let_in = tuple(
        _job(
            f"copy.prepare.{to.node}", to.node, f"See what is missing, and let {here.node} in",
            scripts.let_in(wish, here.address),
            shown=("df -Pk", f'echo \'from="{here.address}",restrict,expiry-time=… ssh-ed25519 …\' >> ~/.ssh/authorized_keys'),
            why="the line is taken out when the copy ends",
            takes={"SPARKWEB_PEER": f"copy.key.{here.node}", "SPARKWEB_MANIFEST": first},
        )
        for here, to in hops
    )  # fmt: skip
    copies = tuple(
        _job(
            f"copy.files.{here.node}", here.node, f"Copy to {to.node}", scripts.copy(wish, to),
            shown=(f"rsync -rLt --partial-dir=.rsync-partial --files-from=PART {wish.path}/ {to.user}@{to.address}:STAGING/  # {wish.streams} at a time",),
            why="each file once it is whole here; a cut is gone on from; wrong ones are copied again",
            within_s=LONG_S, follows="copy",
        )
        for here, to in hops
    )  # fmt: skip
    shows = tuple(
        _job(
            f"copy.publish.{to.node}", to.node, f"Show {wish.path}", scripts.publish(wish.path),
            shown=(f"mv STAGING {wish.path}",), why="nothing is seen under its name before all of it is right", within_s=LONG_S,
        )
        for to in wish.targets
    )  # fmt: skip
    look = tuple(_look(node.node) for node in chain)
    return Plan(
        "copy", 0, 0, tuple(place.node for place in chain),
        (
            Stage("List", "preflight", (manifest,)),
            Stage("Keys", "preflight", keys),
            Stage("Room", "preflight", let_in),
            Stage("Copy", "fetching", copies),
            Stage("Show", "verifying", shows),
            Stage("Look again", "verifying", look),
        ),
        problems=tuple(_slow(to) for to in wish.targets if not to.fabric),
    )  # fmt: skip


def verify(path: str, nodes: Sequence[str]) -> Plan:
    """Read every file of a model folder and compare it with the manifest."""
    check_path(path)
    made = tuple(
        _job(
            f"copy.verify.{node}", node, f"Read {path} and compare", scripts.verify(path),
            shown=(f"sha256sum {path}/…",), why="nothing is changed but the mark that says complete", within_s=LONG_S,
        )
        for node in nodes
    )  # fmt: skip
    return Plan("verify", 0, 0, tuple(nodes), (Stage("Verify", "verifying", made),))


def remove(path: str, nodes: Sequence[str]) -> Plan:
    """Take a model folder away, with the blobs of a hub's cache that no other revision uses."""
    check_path(path)
    made = tuple(
        _job(
            f"copy.remove.{node}", node, f"Remove {path}", scripts.remove(path), shown=(f"rm -rf {path}",),
            why="blobs that another revision uses stay", within_s=3600.0,
        )
        for node in nodes
    )  # fmt: skip
    look = tuple(_look(node) for node in nodes)
    return Plan(
        "remove", 0, 0, tuple(nodes), (Stage("Remove", "clearing", made), Stage("Look again", "verifying", look))
    )


def _look(node: str) -> Step:
    return Step(
        key=f"copy.look.{node}", node=node, title=f"Ask {node} what is there", kind="probe", gate={"name": "sheet"},
        within_s=60.0, why="the table of models says what is, not what was meant",
    )  # fmt: skip


def _slow(to: Place) -> Problem:
    return Problem(
        "fabric_down", "warn", f"{to.node} is reached at {to.address}, not over the fabric", to.node,
        "No fabric subnet is shared with the node before it, so the copy goes over the management network.",
        "Give both ends addresses in one fabric subnet to copy faster.",
    )  # fmt: skip


def _job(
    key: str,
    node: str,
    title: str,
    script: Shell,
    *,
    shown: tuple[str, ...],
    why: str,
    takes: dict[str, str] | None = None,
    within_s: float = 43_200.0,
    follows: str = "",
) -> Step:
    return Step(
        key=key, node=node, title=title, kind="job", script=script.text, commands=shown, why=why,
        gate={"takes": takes} if takes else {}, within_s=within_s, follows=follows,
    )  # fmt: skip
