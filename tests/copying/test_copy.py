"""Copies between pretend nodes: real rsync over real ssh, real files."""

from __future__ import annotations

import pytest

from apps.runs import copying
from tests.copying.conftest import ADMIN, ended

HEAD, SECOND = "spark-1a32", "spark-5be3"
pytestmark = pytest.mark.django_db(transaction=True)


def said(run):
    out = []
    for step in run.steps.all():
        for chunk in (
            [c for s in step.streams.all() for c in s.chunks.order_by("seq")] if hasattr(step, "streams") else []
        ):
            out.append(bytes(chunk.data).decode(errors="replace"))
        out.append(f"[{step.key} {step.state} {step.reason} {step.evidence}]\n")
    return "".join(out)


def test_a_symlink_farm_arrives_whole(cluster, tiny):
    run = ended(copying.start(ADMIN, "copy", tiny, [SECOND]))
    print(said(run))
    assert run.state == "succeeded"
