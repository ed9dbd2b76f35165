"""Heads of the chain, noted outside of the database: what was noted can't be cut off or rewritten unseen any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.utils import timezone

from apps.audit.models import Entry

FILE = "audit-anchors.jsonl"  # in VAR


def note(path: Path) -> None:
    """Append the newest entry's number and hash to the file, which is best kept on another machine; once is enough."""
    head = Entry.objects.order_by("-id").first()
    if head is None or _last(path) == head.hash:
        return
    line = json.dumps({"seq": head.id, "hash": head.hash, "noted": timezone.now().isoformat(timespec="seconds")})
    with path.open("a", encoding="ascii") as file:
        file.write(line + "\n")


def _last(path: Path) -> str:
    """The hash that was noted last; "" where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 400))
            return str(json.loads(file.read().splitlines()[-1])["hash"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return ""


def set_aside(path: Path) -> None:
    """After a restore the trail ends where the backup did: what was noted since is kept under another name."""
    if path.exists():
        path.rename(path.with_name(f"{path.stem}-until-{timezone.now():%Y%m%dT%H%M%S}{path.suffix}"))


def contradiction(path: Path) -> dict[str, Any] | None:
    """The first noted head that the database no longer has: `{"broken": seq, "why": …}`; None when all are there."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    for number, line in enumerate(lines, 1):
        try:
            noted = json.loads(line)
            seq, digest, moment = int(noted["seq"]), str(noted["hash"]), str(noted["noted"])
        except (ValueError, KeyError, TypeError):
            return {"broken": None, "why": f"line {number} of {path.name} can't be read: the noted heads were edited"}
        there = Entry.objects.filter(pk=seq).values_list("hash", flat=True).first()
        if there is None:
            return {"broken": seq, "why": f"entry {seq} was there on {moment} and is missing: the end was cut off"}
        if there != digest:
            return {"broken": seq, "why": f"entry {seq} has another hash than on {moment}: the trail was rewritten"}
    return None
