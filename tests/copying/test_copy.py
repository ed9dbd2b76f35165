"""A copy, a verification and a removal as runs, between two pretend nodes: real rsync over real ssh, real files."""

from __future__ import annotations

import re

import pytest

from apps.runs import copying
from apps.runs.models import Run
from tests.copying.conftest import ADMIN, Cluster, ended

HEAD, SECOND = "spark-1a32", "spark-5be3"
pytestmark = pytest.mark.django_db(transaction=True)


def said(run: Run) -> str:
    """All output of a run, and how its steps ended."""
    made = ""
    for step in run.steps.all():
        for stream in step.streams.all():
            made += "".join(bytes(chunk.data).decode(errors="replace") for chunk in stream.chunks.order_by("seq"))
        made += f"[{step.key} {step.state} {step.reason} {step.evidence}]\n"
    return made


def states(path: str) -> dict[str, str]:
    found = next((one for one in copying.table()[1] if one.path == path), None)
    return {node: held.state for node, held in found.held.items()} if found else {}


def test_copied_verified_found_corrupt_repaired_and_removed(cluster: Cluster, tiny: str) -> None:
    if cluster.lab.redirect != "mount":
        pytest.skip("nodes need mount namespaces for real ssh")
    run = ended(copying.start(ADMIN, "copy", tiny, [SECOND]))
    assert run.state == "succeeded", said(run)
    assert "6291479 of 6291479 bytes went to" in said(run)
    assert states(tiny) == {HEAD: "unverified", SECOND: "complete"}
    root = cluster.lab.root(SECOND)
    copied = root / tiny.lstrip("/")
    assert len(list(copied.iterdir())) == 4 and not (root / "home/aurora/.local/state/sparkweb/copy").exists()
    assert "sparkweb-copy" not in (root / "home/aurora/.ssh/authorized_keys").read_text()
    with (copied / "model-00002-of-00003.safetensors").open("r+b") as file:
        file.seek(700_000)
        file.write(b"bitrot")
    run = ended(copying.start(ADMIN, "verify", tiny, [SECOND]))
    assert (run.state, run.reason) == ("failed", "manifest_mismatch"), said(run)
    assert states(tiny)[SECOND] == "corrupt"
    run = ended(copying.start(ADMIN, "copy", tiny, [SECOND]))
    assert run.state == "succeeded" and states(tiny)[SECOND] == "complete", said(run)
    moved = [int(found) for found in re.findall(r"(\d+) of \d+ bytes went to", said(run))]
    assert 0 < sum(moved) <= 2 << 20, moved  # of that file alone
    run = ended(copying.start(ADMIN, "remove", tiny, [SECOND], confirm=tiny.rsplit("/", 1)[-1]))
    assert run.state == "succeeded", said(run)
    assert not copied.exists() and states(tiny) == {HEAD: "unverified"}
