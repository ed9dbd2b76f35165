"""Who has a port, where this user may not see: what real nodes showed and pretend ones had hidden."""

from __future__ import annotations

from dataclasses import replace

from apps.facts.sheet import Sheet
from apps.facts.values import Container, Listener, Unit
from apps.plan.step import Problem
from apps.plan.stories import launch
from tests.plan.sheets import GIVEN, pair, qwen35

PORT = Listener("0.0.0.0", 30000)  # root's: neither process nor program is shown to another user
UNITS = (
    Unit(
        "vllm-cluster.service", active="active", containers=("vllm_node",), exec_start="/usr/bin/docker run vllm_node"
    ),
    Unit("vllm-proxy.service", active="active", exec_start="/usr/bin/python3 /opt/vllm/proxy.py --listen 8080"),
)


def busy(*containers: Container) -> Problem:
    made = pair(busy=False)
    head: Sheet = replace(made["spark-1a32"], containers=containers, units=UNITS, listeners=(PORT,))
    plan = launch(qwen35(), {**made, "spark-1a32": head}, given=GIVEN)
    return next(problem for problem in plan.problems if problem.name == "port_busy")


def test_the_container_that_was_told_to_listen_there_is_asked_for_with_its_unit() -> None:
    found = busy(Container("vllm_node", state="running", command="vllm serve /models/x --port 30000", network="host"))
    assert found.severity == "consent"
    assert [(item["kind"], item["name"]) for item in found.clear] == [
        ("unit", "vllm-cluster.service"),
        ("container", "vllm_node"),
    ]
    found = busy(Container("web", state="running", ports=("0.0.0.0:30000->80/tcp",)))
    assert [(item["kind"], item["name"]) for item in found.clear] == [("container", "web")]


def test_a_unit_that_has_nothing_to_do_with_the_port_is_not_asked_for() -> None:
    """No memory is short, so nothing is in the way: then a proxy of another stack is not either."""
    others = (
        Container("a", state="running", command="serve --port 13000 --seed 300001 x30000"),
        Container("b", state="exited", command="serve --port 30000"),
    )
    found = busy(*others)
    assert (found.severity, found.clear) == ("stop", ())
    both = (Container("a", state="running", command="--port 30000"), Container("b", state="running", command="=30000"))
    assert busy(*both).severity == "stop"
