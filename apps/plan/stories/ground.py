"""Clear the ground of one node, with consent: units first, so that they do not bring their containers back, then
containers and processes, then wait until the memory is really free, then drop the page cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from apps.facts.sheet import Sheet
from apps.plan import steps
from apps.plan.commands import docker, node, systemd
from apps.plan.found import container_of, is_root, known, made_anew, ports_of, unit_of
from apps.plan.spec import Clear
from apps.plan.step import Step

RUNNING = ("active", "activating", "reloading")


def clearing(name: str, sheet: Sheet | None, consented: Sequence[Clear]) -> Iterator[Step]:
    """The steps that stop what was consented to on one node; nothing when nothing was."""
    mine = known(sheet, consented) if sheet else []
    units = [one for one in mine if one.kind == "unit"]
    if units:
        yield from _units(name, sheet, units)
    containers = [one.name for one in mine if one.kind == "container"]
    if containers:
        yield from _containers(name, sheet, containers)
    for one in mine:
        if one.kind == "process":
            yield steps.job(
                f"clear.process-{one.name}.{name}",
                name,
                f"End process {one.name}",
                node.end_process(int(one.name)),
                shown=(f"kill -TERM {int(one.name)}  # after 20 s: kill -KILL {int(one.name)}",),
                why="gracefully within 20 s, then by force; nothing starts it again",
            )


def _units(name: str, sheet: Sheet | None, units: Sequence[Clear]) -> Iterator[Step]:
    root = is_root(sheet)
    stopped = [one.name for one in units]
    undo: dict[str, Any] = {"node": name, "units": [_before(sheet, unit) for unit in stopped]}
    yield steps.job(
        f"clear.units.{name}",
        name,
        f"Stop {', '.join(stopped)}",
        systemd.stop(stopped, root=root),
        undo=undo,
        why="units before containers, so that systemd does not bring them back; what does not end within its unit's own limit "
        "systemd ends by force",
    )
    disabled = [one.name for one in units if one.disable]
    if disabled:
        yield steps.job(
            f"clear.disable.{name}",
            name,
            f"Disable {', '.join(disabled)}",
            systemd.disable(disabled, root=root),
            why="asked for separately: they do not come back after a reboot",
        )


def _before(sheet: Sheet | None, name: str) -> dict[str, Any]:
    unit = unit_of(sheet, name)
    return {
        "unit": name,
        "was_enabled": bool(unit and unit.enabled == "enabled"),
        "was_active": bool(unit is None or unit.active in RUNNING),
        "was": unit.enabled if unit else None,
        "state": unit.active if unit else None,
        "ports": list(ports_of(sheet, "unit", name)),
    }


def _containers(name: str, sheet: Sheet | None, containers: Sequence[str]) -> Iterator[Step]:
    removed = [one for one in containers if made_anew(sheet, one)]
    kept = [one for one in containers if one not in removed]
    if removed:
        yield steps.job(
            f"clear.containers.{name}",
            name,
            f"Remove {', '.join(removed)}",
            docker.stop_and_remove(removed),
            shown=(docker.stop(*removed).text, docker.remove(*removed).text),
            undo={"node": name, "containers": [_as_found(sheet, one, removed=True) for one in removed]},
            why="a unit makes each of them anew when it starts; gracefully within 20 s, then by force",
        )
    if kept:
        yield steps.job(
            f"clear.stop-containers.{name}",
            name,
            f"Stop {', '.join(kept)}",
            docker.stop_and_keep(kept),
            shown=(docker.remove_restart_policy(*kept).text, docker.stop(*kept).text),
            undo={"node": name, "containers": [_as_found(sheet, one, removed=False) for one in kept]},
            why="not removed: no unit would make them anew; gracefully within 20 s, then by force",
        )
    yield steps.containers_gone(f"clear.gone.{name}", name, names=containers, running_only=True)


def _as_found(sheet: Sheet | None, name: str, *, removed: bool) -> dict[str, Any]:
    found = container_of(sheet, name)
    return {
        "name": name,
        "id": found.id if found else None,
        "image": found.image if found else None,
        "restart_policy": found.restart_policy if found else None,
        "was_running": bool(found is None or found.state in ("running", "restarting")),
        "removed": removed,
        "ports": list(ports_of(sheet, "container", name)),
    }


def page_cache(name: str, sheet: Sheet | None) -> Iterator[Step]:
    """On unified memory the engine sees MemFree, so the page cache counts as taken until it is dropped."""
    if sheet is None or not (sheet.gpus and any(gpu.unified for gpu in sheet.gpus.gpus)):
        return
    root, rights = is_root(sheet), sheet.privileges
    allowed = root or rights is None or rights.sudo == "all" or rights.drop_caches is True
    key, title = f"clear.page-cache.{name}", "Drop the page cache"
    if not allowed and rights and (rights.drop_caches is False or rights.sudo in ("password", "none")):
        yield steps.note(
            key,
            name,
            title,
            why="not dropped: this user has no sudo without a password. On unified memory the engine "
            "sees MemFree, so file cache counts as taken until the kernel gives it up",
        )
        return
    yield steps.job(
        key,
        name,
        title,
        node.drop_page_cache(root=root),
        shown=(node.drop_page_cache_shown(root=root),),
        why="on unified memory the engine sees MemFree; a refusal is said and does not fail the launch",
    )


def tear_down(name: str, deployment: int, *, service: str = "", kept: Sequence[str] = ()) -> Iterator[Step]:
    """Whatever is left of one deployment on one node, or of one of its services, found by its label, but the containers of the
    services that stand (`kept`)."""
    of = f"label=sparkweb.deployment={deployment}" + (f" --filter label=sparkweb.service={service}" if service else "")
    but = f" | grep -vxF {' '.join(f'-e {one}' for one in kept)}" if kept else ""
    named = " --format '{{.Names}}'" if kept else ""
    running, there = ("", "-a") if kept else ("-q", "-aq")
    yield steps.job(
        f"clear.own.{name}",
        name,
        "Remove what is left of this deployment",
        docker.tear_down(deployment, service=service, kept=kept),
        shown=(
            f"docker stop -t 30 $({' '.join(filter(None, ('docker ps', running)))}{named} --filter {of}{but})",
            f"docker rm -f $(docker ps {there}{named} --filter {of}{but})",
        ),
        why=f"all but {' and '.join(kept)}: {'it serves' if len(kept) == 1 else 'they serve'}"
        if kept
        else "ranks never come back one by one: the whole group is started anew",
        within_s=180.0,
    )
    yield steps.containers_gone(f"clear.own-gone.{name}", name, deployment=deployment, service=service, but=kept)
