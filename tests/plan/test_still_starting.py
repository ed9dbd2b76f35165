"""Right after a reboot the old stack is there and holds little yet: it is in the way all the same."""

from dataclasses import replace

import pytest

from apps.facts.values import Container, Machine, Unit
from apps.plan.checks.way import still_starting
from tests.plan.sheets import head

NOW = 1_796_000_000.0
ONE = Container(name="vllm_node", image="vllm-node", state="running", started_at="2026-11-30T00:43:20.346311936Z")
UNIT = Unit(name="vllm-cluster.service", active="active", containers=("vllm_node",))


def sheet(container: Container, *, unit: Unit | None = UNIT):
    base = head()
    return replace(base, machine=Machine(clock_unix_s=NOW), containers=(container,), units=(unit,) if unit else ())


@pytest.mark.parametrize(
    ("container", "unit", "starting"),
    [
        (ONE, UNIT, True),
        (replace(ONE, started_at="2026-11-26T00:43:20Z"), UNIT, False),
        (replace(ONE, labels={"sparkweb.deployment": "7"}), UNIT, False),
        (replace(ONE, name="web", image="nginx"), replace(UNIT, containers=("web",)), False),
        (ONE, None, False),
        (replace(ONE, started_at="nonsense"), UNIT, False),
        (replace(ONE, started_at=None), UNIT, False),
    ],
)
def test_who_is_still_starting(container, unit, starting):
    assert bool(still_starting(sheet(container, unit=unit))) is starting
