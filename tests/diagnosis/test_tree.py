"""Who holds what: unit, container, process as one tree, and what nobody can see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.diagnosis.findings import findings
from apps.diagnosis.findings.holders import holders, survivors, units_behind
from apps.diagnosis.findings.tree import Owned, tree
from apps.facts.values import Container, EngineProcess, Gpu, GpuProcess, Gpus, Listener, Memory, Starts, Unit
from tests.plan.sheets import pair

EMPTY = replace(
    pair(busy=False)["spark-1a32"], units=(), containers=(), listeners=(), processes=(), gpus=Gpus(gpus=(Gpu(0, unified=True),)),
    memory=Memory(total_bytes=119 << 30, available_bytes=113 << 30),
)  # fmt: skip
VLLM = Starts(engine="vllm")


def shown(found: tuple[Owned, ...]) -> list[str]:
    return [f"{'  ' * depth}{one.kind} {one.name}" for root in found for depth, one in root.rows()]


def test_a_unit_a_container_and_its_process_are_one_branch() -> None:
    sheet = replace(
        EMPTY,
        units=(Unit("vllm.service", active="active", enabled="enabled", containers=("a", "b")),),
        containers=(
            Container("a", state="running", pid=10, ports=("0.0.0.0:8000->8000/tcp",), memory_bytes=70 << 30),
            Container("b", state="running", pid=20, memory_bytes=5 << 30),
        ),
        processes=(
            EngineProcess(
                11, VLLM, 10, "root", "/usr/bin/python3 -m vllm serve", container="a", resident_bytes=2 << 30
            ),
        ),
        gpus=replace(EMPTY.gpus, processes=(GpuProcess(11, "python3", 60 << 10, gpu=0, container="a"),)),  # type: ignore[type-var]
    )
    found = tree(sheet)
    assert shown(found) == ["unit vllm.service", "  container a", "    process -m vllm 11", "  container b"]
    unit = found[0]
    assert (unit.bytes, unit.ports, unit.gpus) == (75 << 30, (8000,), (0,)), "what stopping it frees"
    assert "at each boot" in unit.returns and "starts its containers again" in unit.returns
    assert unit.below[0].below[0].started == "user root"


def test_what_has_no_unit_is_told_by_what_brings_it_back() -> None:
    sheet = replace(
        EMPTY,
        containers=(
            Container("web", state="running", compose_project="chat", memory_bytes=3 << 30),
            Container("db", state="running", compose_project="chat", memory_bytes=1 << 30),
            Container("lone", state="running", restart_policy="always", memory_bytes=2 << 30),
            Container("gone", state="exited", memory_bytes=9 << 30),
        ),
        processes=(EngineProcess(5, VLLM, 1, "ana", "vllm serve m", resident_bytes=8 << 30, ports=(9000,)),),
    )
    found = {(one.kind, one.name): one for one in tree(sheet)}
    assert set(found) == {("project", "chat"), ("container", "lone"), ("user", "ana")}
    assert found["project", "chat"].bytes == 4 << 30 and len(found["project", "chat"].below) == 2
    assert found["container", "lone"].returns == "Docker restarts it (always)"
    assert found["user", "ana"].returns == "nothing starts it again" and found["user", "ana"].ports == (9000,)


def test_a_job_of_ours_is_called_ours() -> None:
    sheet = replace(EMPTY, processes=(EngineProcess(5, VLLM, 1, "aurora", "vllm serve m", run="12"),))
    assert tree(sheet)[0].below[0].started == "run 12 of sparkweb"


def test_what_cannot_be_seen_is_said() -> None:
    sheet = replace(
        EMPTY,
        listeners=(Listener("0.0.0.0", 8000), Listener("0.0.0.0", 22)),
        memory=Memory(total_bytes=119 << 30, available_bytes=63 << 30),
    )
    (one,) = tree(sheet)
    assert (one.kind, one.bytes, one.ports) == ("unseen", 50 << 30, (8000,)) and "may not see" in one.started
    assert tree(EMPTY) == ()


def test_the_spark_of_the_story() -> None:
    rows = shown(tree(pair()["spark-1a32"]))
    assert [row for row in rows if row.startswith("unit ")] and "  container vllm_node" in rows, rows


@pytest.mark.timeout(30)
def test_a_thousand_of_everything_is_no_page_that_hangs() -> None:
    many = range(1000)
    sheet = replace(
        EMPTY,
        units=tuple(Unit(f"u{n}.service", active="active", enabled="enabled", containers=(f"c{n}",)) for n in many),
        containers=tuple(Container(f"c{n}", state="running", pid=10 + n, memory_bytes=2 << 30) for n in many),
        processes=tuple(
            EngineProcess(9000 + n, VLLM, 1, "root", "vllm", container=f"c{n}", resident_bytes=2 << 30) for n in many
        ),
        listeners=tuple(Listener("0.0.0.0", 2000 + n, 9000 + n) for n in many),
        gpus=replace(EMPTY.gpus, processes=tuple(GpuProcess(9000 + n, "vllm", 10, gpu=0) for n in many)),  # type: ignore[type-var]
    )
    found = tree(sheet)
    assert len(found) == 1000 and all(one.kind == "unit" and one.below[0].below for one in found)
    assert {port for one in found for port in one.ports} == set(range(2000, 3000))
    assert len(units_behind(sheet, holders(sheet, 0))) == 1000
    first = survivors(sheet)[0]
    assert "unit u" in first and first.endswith(" 2.0 GiB"), first
    assert findings({sheet.node: sheet})


def test_a_process_without_a_word_of_its_command_survives_too() -> None:
    sheet = replace(EMPTY, processes=(EngineProcess(5, VLLM, 1, "ana", " ", resident_bytes=8 << 30),))
    assert survivors(sheet) == ("vllm (process 5) 8.0 GiB",)
    assert tree(sheet)[0].below[0].name == "vllm 5"


def test_a_container_of_two_units_has_the_first() -> None:
    units = (Unit("a.service", active="active", pid=77), Unit("b.service", active="active", containers=("x",)))
    box = Container("x", state="running", pid=77, memory_bytes=2 << 30)
    assert shown(tree(replace(EMPTY, units=units, containers=(box,)))) == ["unit a.service", "  container x"]
    assert shown(tree(replace(EMPTY, units=units[::-1], containers=(box,)))) == ["unit b.service", "  container x"]
