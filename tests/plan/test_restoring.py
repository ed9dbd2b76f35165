"""What is put back of what was cleared, and what has changed since: each is said on the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from apps.facts.sheet import Sheet
from apps.facts.values import Container, Listener, Unit
from apps.plan.spec import Clear, Given, Other
from apps.plan.step import Plan
from apps.plan.stories import clear, restore
from tests.plan.sheets import pair, qwen35

NODE = "spark-1a32"
UNIT = Unit(
    "old.service", load="loaded", active="active", enabled="enabled", containers=("old",), exec_start="docker run --name old x", pid=50
)  # fmt: skip
OLD = Container(
    "old", id="a" * 12, image="x:1", state="running", restart_policy="no", pid=51, ports=("0.0.0.0:8000->8000/tcp",)
)
KEPT = Container("kept", id="b" * 12, image="y:1", state="running", restart_policy="unless-stopped", pid=52)
BEFORE = replace(
    pair(busy=False)[NODE],
    units=(UNIT,),
    containers=(OLD, KEPT),
    listeners=(Listener("0.0.0.0", 8000, 51, "docker-proxy"), Listener("0.0.0.0", 9000, 52, "python3")),
)
AFTER = replace(
    BEFORE,
    units=(replace(UNIT, active="inactive", enabled="disabled", pid=None),),
    containers=(replace(KEPT, state="exited", restart_policy="no", pid=None),),
    listeners=(),
)
ALL = (Clear(NODE, "unit", "old.service", True), Clear(NODE, "container", "old"), Clear(NODE, "container", "kept"))


def undo(consented: tuple[Clear, ...] = ALL) -> list[dict[str, object]]:
    made = clear((NODE,), {NODE: BEFORE}, given=Given(clear=consented))
    return [step.undo for stage in made.stages for step in stage.steps if step.undo]


def planned(sheet: Sheet, given: Given = Given(), remembered: list[dict[str, object]] | None = None) -> Plan:  # noqa: B008
    return restore(undo() if remembered is None else remembered, (NODE,), {NODE: sheet}, given=given)


def commands(plan: Plan) -> list[str]:
    return [command for stage in plan.stages for step in stage.steps for command in step.commands]


def test_everything_comes_back_as_it_was_and_is_proven() -> None:
    made = planned(AFTER)
    assert made.problems == ()
    assert commands(made) == [
        "sudo -n systemctl enable old.service",
        "docker update --restart=unless-stopped kept",
        "docker start kept",
        "sudo -n systemctl start old.service",
        "systemctl is-active old.service",
        "docker inspect --type container --format '{{.State.Status}} {{.State.ExitCode}}' kept",
    ]


def test_a_second_restore_finds_nothing_to_do() -> None:
    made = planned(BEFORE)
    assert [step.kind for stage in made.stages for step in stage.steps] == ["note"] and made.problems == ()


def test_what_was_not_enabled_is_not_enabled() -> None:
    before = replace(BEFORE, units=(replace(UNIT, enabled="disabled"),))
    made = clear((NODE,), {NODE: before}, given=Given(clear=ALL))
    remembered = [step.undo for stage in made.stages for step in stage.steps if step.undo]
    assert "systemctl enable" not in " ".join(commands(planned(AFTER, remembered=remembered)))


def changed(**changes: object) -> Callable[[Sheet], Sheet]:
    return lambda sheet: replace(sheet, **changes)  # type: ignore[arg-type]


OURS = Container("vllm-qwen35", state="running", labels={"sparkweb.deployment": "7"})
CHANGES: dict[str, tuple[Callable[[Sheet], Sheet], str, str, str]] = {
    "the unit file is gone": (changed(units=()), "unit_gone", "warn", "old.service"),
    "the unit is masked": (changed(units=(replace(UNIT, active="inactive", load="masked", enabled="masked"),)), "unit_masked", "warn", "old.service"),
    "the kept container is gone": (changed(containers=()), "container_gone", "warn", "docker start kept"),
    "its name is taken": (changed(containers=(replace(KEPT, id="c" * 12, image="z:1"),)), "container_name_taken", "warn", "docker start kept"),
    "the port is taken": (changed(listeners=(Listener("0.0.0.0", 8000, 99, "nginx"),)), "port_busy", "warn", "systemctl start old.service"),
    "the other port is taken": (changed(listeners=(Listener("0.0.0.0", 9000, None, None),)), "port_busy", "warn", "docker start kept"),
    "a stranger's deployment runs": (changed(containers=(*(AFTER.containers or ()), OURS)), "other_deployment", "stop", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_has_changed_meanwhile_is_a_problem_on_the_plan(name: str) -> None:
    change, problem, severity, left_out = CHANGES[name]
    made = planned(change(AFTER))
    assert (problem, severity) in [(one.name, one.severity) for one in made.problems], made.problems
    assert bool(made.refused) == (severity == "stop")
    assert all(one.title and one.meaning and one.remedy and one.node == NODE for one in made.problems)
    if left_out:
        assert left_out not in " ".join(commands(made)), "what can't come back is not tried"


@pytest.mark.parametrize(
    ("state", "refused"),
    [("serving", True), ("launching", True), ("stopped", False), ("failed", False), ("lost", False)],
)
def test_a_deployment_of_ours_on_the_node_is_stopped_first(state: str, refused: bool) -> None:
    made = planned(AFTER, Given(others=(Other(7, "qwen", state, qwen35()),)))
    assert [one.deployment for one in made.refused] == ([7] if refused else [])


def test_a_removed_container_whose_unit_stays_stopped_is_said_not_to_come_back() -> None:
    remembered = undo((Clear(NODE, "container", "old"),))
    assert remembered[0]["containers"][0]["removed"]  # type: ignore[index]
    made = planned(AFTER, remembered=remembered)
    assert [one.name for one in made.problems] == ["container_not_restorable"] and "old.service" in made.problems[
        0
    ].remedy


def test_what_is_remembered_does_not_change_the_digest() -> None:
    """Ports of the kernel's own choice come and go while a stack loads; the plan that was agreed to holds all the same."""
    more = replace(BEFORE, listeners=(*(BEFORE.listeners or ()), Listener("0.0.0.0", 40001, 51, "raylet")))
    one, two = (clear((NODE,), {NODE: sheet}, given=Given(clear=ALL)) for sheet in (BEFORE, more))
    assert one.stages != two.stages and one.digest == two.digest
