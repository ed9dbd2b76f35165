"""What lies on a node and who left it there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from apps.facts.sheet import Sheet
from apps.facts.systemd import matters
from apps.report.known import KnownNode

MOST = 50  # of one kind
OURS = "sparkweb.deployment"  # label of our containers


def of_node(node: KnownNode) -> list[dict[str, Any]]:
    """Rows of kind, where (a path or a name), bytes, about, ours; and one with `more` where a kind has more than MOST."""
    rows: list[dict[str, Any]] = []
    home = node.sheet.machine.home if node.sheet and node.sheet.machine and node.sheet.machine.home else "~"
    for kind, found in (("job", _jobs(node, home)), ("record", _records(node, home)), *_of_sheet(node.sheet)):
        every = list(found)
        rows += [{"kind": kind, **row} for row in every[:MOST]]
        more = len(every) - MOST if kind != "job" else node.job_count - len(node.jobs)
        if more > 0:
            rows.append(_row("", about=f"and {more} more", ours=kind == "job") | {"kind": kind, "more": more})
    return rows


def _row(where: str, *, about: str = "", bytes: int | None = None, ours: bool = False) -> dict[str, Any]:
    return {"where": where, "bytes": bytes, "about": about, "ours": ours, "more": None}


def _said(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


def _jobs(node: KnownNode, home: str) -> Iterator[dict[str, Any]]:
    """Folders of jobs, each with script and log."""
    for one in node.jobs:
        where = f"{home}/.local/state/sparkweb/jobs/{one.folder}"
        yield _row(where, about=f"script and log of “{one.title}”, run {one.run}", ours=True)


def _records(node: KnownNode, home: str) -> Iterator[dict[str, Any]]:
    """Where provisioning wrote down what it changed."""
    if node.provisioned:
        runs = ", ".join(map(str, node.provisioned[:10]))
        about = f"what run{'s' if len(node.provisioned) > 1 else ''} {runs} changed here, for the way back"
        for where in ("/var/lib/sparkweb", f"{home}/.local/state/sparkweb"):
            yield _row(where, about=about, ours=True)


def _of_sheet(sheet: Sheet | None) -> Iterator[tuple[str, Iterable[dict[str, Any]]]]:
    if sheet is None:
        return
    yield "model", (_row(one.path, about=_model(one), bytes=one.bytes) for one in sheet.models or ())
    yield (
        "image",
        (
            _row(one.ref or f"untagged {(one.id or '')[:19]}", about=_said(one.arch, one.created), bytes=one.size_bytes)
            for one in sheet.images or ()
        ),
    )
    yield (
        "container",
        (
            _row(one.name, about=_said(one.image, one.status or one.state), ours=OURS in one.labels)
            for one in sheet.containers or ()
        ),
    )
    units = [("", unit) for unit in sheet.units or ()] + [("of the user", unit) for unit in sheet.user_units or ()]
    yield (
        "unit",
        (
            _row(
                unit.fragment or unit.name,
                about=_said(unit.name if unit.fragment else "", unit.active, unit.enabled, whose),
            )
            for whose, unit in units
            if matters(unit)
        ),
    )
    yield (
        "script",
        (
            _row(one.path, about=_said("starts " + _started(one.starts) if one.starts else "", one.checkout))
            for one in sheet.launchers or ()
        ),
    )
    yield (
        "boot job",
        (_row(one.where, about=one.command) for one in sheet.boot_jobs or () if one.starts),
    )
    yield (
        "checkout",
        (
            _row(
                one.path,
                about=_said(
                    one.remote,
                    one.branch,
                    one.commit and one.commit[:12],
                    f"{one.changed} files changed and not committed" if one.changed else "",
                ),
            )
            for one in sheet.checkouts or ()
        ),
    )
    yield (
        "environment",
        (
            _row(
                one.where.partition(":")[2],
                about=", ".join(f"{name} {version}" for name, version in sorted(one.versions.items())),
            )
            for one in sheet.software or ()
            if one.where.startswith(("venv:", "user:"))
        ),
    )


def _model(one: Any) -> str:
    if one.complete is False:
        return _said(one.name, f"unfinished: {one.shards or 0} of {one.shards_expected or 'unknown'} weight files")
    return _said(one.name, f"{one.shards} weight files" if one.shards else "")


def _started(starts: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(filter(None, (one.model or one.image or one.engine for one in starts))))
