"""Fetch a model revision into the cache of one node: find the commit, bring its files, then show them as a whole."""

from __future__ import annotations

from apps.plan.fetching import scripts
from apps.plan.fetching.wish import Wish
from apps.plan.step import Plan, Stage, Step
from apps.shell import Secret, Shell

RESOLVE_WITHIN_S = 1800.0  # a hub that asks us to slow down is waited for
FETCH_WITHIN_S = 172_800.0  # two days; a job is ended after twice that
PUBLISH_WITHIN_S = 3600.0  # the disk writes back what it still holds


def fetch(wish: Wish) -> Plan:
    """From a hub, or out of a folder of the node (`wish.folder`). Nothing is seen under its final name before it is whole."""
    show = Stage("Show", "verifying", (_publish(wish),))
    if wish.folder:
        brought: tuple[Stage, ...] = (Stage("Take the files in", "fetching", (_adopt(wish),)),)
    else:
        brought = (Stage("Ask the hub", "preflight", (_resolve(wish),)), Stage("Fetch", "fetching", (_files(wish),)))
    return Plan("fetch", 0, 0, (wish.node,), (*brought, show))


def _first(wish: Wish) -> str:
    """The key of the step that says which commit it is."""
    return f"fetch.{'adopt' if wish.folder else 'resolve'}.{wish.node}"


def _step(
    wish: Wish, key: str, title: str, script: Shell, *, shown: tuple[str, ...], why: str, within_s: float
) -> Step:
    takes = {} if key == _first(wish) else {"takes": {scripts.COMMIT_VARIABLE: _first(wish)}}
    asks = key != f"fetch.publish.{wish.node}" and not wish.folder
    secrets = (Secret(scripts.TOKEN_VARIABLE, wish.token),) if wish.token and asks else ()
    follows = "fetch" if key == f"fetch.files.{wish.node}" else ""
    return Step(
        key=key,
        node=wish.node,
        title=title,
        kind="job",
        script=script.text,
        commands=shown,
        why=why,
        gate=takes,
        within_s=within_s,
        secrets=secrets,
        follows=follows,
    )


def _resolve(wish: Wish) -> Step:
    of = f"{wish.endpoint}/api/models/{wish.repo}"
    return _step(
        wish,
        _first(wish),
        f"Find the commit of {wish.repo} at {wish.revision} and its files",
        scripts.resolve(wish),
        shown=(f"GET {of}/revision/{wish.revision}", f"GET {of}/tree/COMMIT?recursive=true", "df -Pk CACHE"),
        why=f"a branch moves, a commit does not; {wish.keep_free_gib} GiB of the disk stay free",
        within_s=RESOLVE_WITHIN_S,
    )


def _files(wish: Wish) -> Step:
    by_hf = (
        f"hf download {wish.repo} --revision COMMIT --cache-dir STAGING FILE …  # where hf or huggingface_hub is found"
    )
    by_curl = f"curl -L -C BYTES -o blobs/ETAG.incomplete {wish.endpoint}/{wish.repo}/resolve/COMMIT/FILE  # {wish.streams} at a time"
    shown = {"auto": (by_hf, by_curl), "hf": (by_hf, by_curl), "curl": (by_curl,)}[wish.tool]
    return _step(
        wish,
        f"fetch.files.{wish.node}",
        f"Fetch the files of {wish.repo}",
        scripts.fetch(wish),
        shown=(*shown, "sha256sum FILE"),
        why="goes on where an earlier fetch was cut; each file takes its name once its hash is right",
        within_s=FETCH_WITHIN_S,
    )


def _adopt(wish: Wish) -> Step:
    return _step(
        wish,
        _first(wish),
        f"Take {wish.folder} in as {wish.repo}",
        scripts.adopt(wish),
        shown=(
            f"sha256sum {wish.folder}/…",
            f"ln {wish.folder}/… CACHE/blobs/SHA256  # copied where it can't be linked",
        ),
        why="linked where the disk is the same; the folder stays as it is",
        within_s=FETCH_WITHIN_S,
    )


def _publish(wish: Wish) -> Step:
    home = f"{wish.cache or 'CACHE'}/{wish.folder_name}"
    return _step(
        wish,
        f"fetch.publish.{wish.node}",
        f"Show {wish.repo} in the cache",
        scripts.publish(wish),
        shown=("sync", f"mv STAGING {home}/snapshots/COMMIT", f"mv MANIFEST {home}/sparkweb/COMMIT.json"),
        why="the snapshot appears as a whole, then the manifest that says complete",
        within_s=PUBLISH_WITHIN_S,
    )
