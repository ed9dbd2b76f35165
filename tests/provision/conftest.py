"""Two pretend Sparks of which the second is as it comes out of its box, and a worker that lives in the test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.lab import Lab
from apps.runs import lines, provisioning, services
from apps.runs.models import Run
from tests.runs.conftest import ADMIN, OPERATOR, ended, worker

__all__ = ["ADMIN", "HEAD", "OPERATOR", "SECOND", "SUDO", "ended", "worker"]
HEAD, SECOND = "spark-1a32", "spark-5be3"
SUDO, LOGIN = "sesame opens", "once only"
CHANGED = ("etc", "var", "home/aurora/.ssh", "home/aurora/.cache", "models")


@dataclass
class Pair:
    lab: Lab
    head: Node
    second: Node
    nodes: tuple[str, ...] = (HEAD, SECOND)
    passwords: dict[str, str] = field(default_factory=lambda: {f"once:sudo:{SECOND}": SUDO})

    def bare(self, owner: str = "", **changes: str) -> None:
        self.lab.bare(SECOND, owner=owner, **{"sudo": SUDO, "login": LOGIN, **changes})
        self.probe()

    def probe(self) -> None:
        """Until every question was answered: a machine that all share may be too busy for one of them."""
        for _ in range(6):
            run = ended(services.probe(OPERATOR, [self.head, self.second]))
            assert run.state == "succeeded", (run.reason, run.evidence)
            if self.known:
                return

    @property
    def known(self) -> bool:
        sheets = services.sheets_of(self.nodes).values()
        return not any(part.timed_out for sheet in sheets for part in sheet.evidence.values())

    def sheet(self) -> Sheet:
        """Of the second node, with all that can be known."""
        if not self.known:
            self.probe()
        made = inventory.latest_sheet(self.second)
        assert made is not None
        return made

    def wish(self, **changes: Any) -> dict[str, Any]:
        return {"nodes": list(self.nodes), "revert_s": 20, **changes}

    def start(self, actor: Any = ADMIN, *, passwords: dict[str, str] | None = None, **changes: Any) -> Run:
        wish = self.wish(**changes)
        made = provisioning.preview(wish)
        return provisioning.start(
            actor,
            wish,
            digest=made.plan.digest,
            reason="a new Spark",
            passwords=self.passwords if passwords is None else passwords,
        )

    def done(self, seconds: float = 90.0, **changes: Any) -> Run:
        run = ended(self.start(**changes), seconds)
        assert run.state == "succeeded", (run.reason, run.evidence, text_of(run)[-3000:])
        return run

    def restored(self, **changes: Any) -> Run:
        made = provisioning.preview_restore(self.nodes)
        run = provisioning.start_restore(
            ADMIN, self.nodes, digest=made.plan.digest, reason="as it was", passwords=self.passwords, **changes
        )
        return ended(run, 90)

    def files(self, node: str = SECOND) -> dict[str, str]:
        """Every file that a provision run could touch, by its content."""
        root, found = self.lab.root(node), {}
        for place in CHANGED:
            for path in sorted((root / place).rglob("*")):
                name = str(path.relative_to(root))
                if path.is_dir() and not path.is_symlink():
                    found[name] = "folder"
                elif path.is_file() and path.stat().st_size < 1 << 20:
                    found[name] = f"{path.stat().st_mode & 0o777:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        return found


def text_of(run: Run) -> str:
    return "\n".join(f"{line['node']} {line['step']} {line['text']}" for line in lines.lines(run, limit=5000)["lines"])


def enrolled(lab: Lab, key: Any, name: str) -> Node:
    known = lab.nodes[name]
    node = services.enrol(
        ADMIN, name=name, address="127.0.0.1", port=known.port, user="aurora", credential=key, jump=None
    )
    return inventory.confirm_host_key(ADMIN, node, sha256=known.host_keys[0]["sha256"])


@pytest.fixture
def pair(worker: Any, settings: Any, tmp_path: Path) -> Any:
    settings.SLICE_S = 3.0
    with Lab.start(tmp_path / "lab", factor=100.0, shards=7) as lab:
        key = inventory.make_credential(ADMIN, name="lab")
        lab.authorize(key.public_key)
        yield Pair(lab, enrolled(lab, key, HEAD), enrolled(lab, key, SECOND))
