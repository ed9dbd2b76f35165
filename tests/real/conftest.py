"""Two real nodes for the tests marked `real`; one pair for all of them, wiped between tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from apps.deployments import services as deployments
from apps.deployments.models import Deployment
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.runs import lines, services
from apps.runs.models import Run
from scripts import real_engine, real_nodes
from tests.real import stack
from tests.runs.conftest import ADMIN, OPERATOR, ended, worker

__all__ = ["ADMIN", "HEAD", "OPERATOR", "SECOND", "ended", "worker"]
HEAD, SECOND = real_nodes.HEAD, real_nodes.SECOND
PORT = 30000
# The lightest start of vLLM on a CPU; the platform plugin and the environment are in the image.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CGRAPH_get_timeout": "300",
}
ARGUMENTS = ("--enforce-eager", "--kv-cache-memory-bytes", "33554432", "--max-num-seqs", "4")


# Takes minutes of its own: only make lab-full runs it.
full = pytest.mark.skipif(not os.environ.get("SPARKWEB_REAL_FULL"), reason="real nodes: run by make lab-full")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Outside `make lab-test` these tests are named as not run, with what is missing where anything is."""
    if os.environ.get("SPARKWEB_REAL"):
        return
    lacks = "; ".join(real_nodes.missing(real_nodes.folder_from(os.environ)))
    reason = f"real nodes: {lacks}" if lacks else "real nodes: run by make lab-test"
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def nodes() -> Iterator[real_nodes.Nodes]:
    folder = os.environ["SPARKWEB_REAL"]
    engine = real_engine.folder_from({"SPARKWEB_CACHE": os.path.dirname(folder)})
    made = real_nodes.Nodes(Path(folder), engine=engine)
    if made.running():  # by hand, with scripts/real_nodes.py start
        yield made
        return
    with made:
        yield made


@dataclass
class Cluster:
    """The nodes as the product knows them, and how it is told what to do."""

    real: real_nodes.Nodes
    head: Node
    second: Node
    arguments = ARGUMENTS
    environment = ENVIRONMENT

    def deployment(self, name: str = "tiny", **changes: object) -> Deployment:
        body = {
            "model": "lab/tiny-qwen3",
            "model_path": real_nodes.MODEL_INSIDE,
            "image": real_nodes.ENGINE_IMAGE,
            "served_model_name": "tiny-qwen3",
            "port": PORT,
            "cluster": "ray",
            "tensor_parallel": 2,
            "max_model_len": 512,
            "arguments": list(ARGUMENTS),
            "environment": sorted(ENVIRONMENT.items()),
            "os_floor_gib": 0.5,
            **changes,
        }
        return deployments.create(ADMIN, name=name, body=body, nodes=[HEAD, SECOND])

    def probe(self) -> Run:
        return ended(services.probe(OPERATOR, [self.head, self.second]))

    def known(self) -> None:
        """Probes until both answered every question: a machine that all share may be too busy for one of them."""
        for _ in range(6):
            run = self.probe()
            assert run.state == "succeeded", (run.reason, run.evidence, text_of(run))
            sheets = services.sheets_of([HEAD, SECOND]).values()
            if not any(part.timed_out for sheet in sheets for part in sheet.evidence.values()):
                return

    def clears(self, deployment: Deployment, *, story: str = "launch", disable: bool = False) -> tuple:
        plan = services.preview(ADMIN, deployment, story=story)
        items = [item for problem in plan.problems if problem.severity == "consent" for item in problem.clear]
        return services.clear_from([{**item, "disable": disable and item["kind"] == "unit"} for item in items])

    def start(self, deployment: Deployment, *, story: str = "launch", clear: tuple = (), actor=ADMIN) -> Run:
        plan = services.preview(actor, deployment, story=story, clear=clear)
        return services.start(actor, deployment, story=story, digest=plan.digest, reason="a test", clear=clear)

    def launched(self, deployment: Deployment, *, story: str = "launch", clear: tuple = ()) -> Run:
        run = ended(self.start(deployment, story=story, clear=clear), 300)
        assert (run.state, run.reason) == ("succeeded", None), (run.reason, run.evidence, text_of(run)[-6000:])
        return run

    def wipe(self) -> None:
        """Nothing of a test is left on the nodes."""
        for name in (HEAD, SECOND):
            self.real.inside(name, "sh", "-c", WIPE + stack.WIPE + REST, check=False)


WIPE = """
iptables -F INPUT; iptables -F OUTPUT; rm -f /etc/sparklab/nvidia-smi.problem; pkill -CONT -x sshd
systemctl is-active -q docker || systemctl start docker
"""
REST = """
docker ps -aq | xargs -r docker rm -f
rm -rf /home/spark/.sparkweb /tmp/ray
"""


def text_of(run: Run) -> str:
    return "\n".join(f"{line['node']} {line['step']} {line['text']}" for line in lines.lines(run, limit=5000)["lines"])


def waited(said, seconds: float, every: float = 1.0):
    """The first true answer of `said`, else a failure with its last answer."""
    until, answer = time.monotonic() + seconds, None
    while time.monotonic() < until:
        answer = said()
        if answer:
            return answer
        time.sleep(every)
    raise AssertionError(f"still {answer!r} after {seconds:.0f} s")


def enrol(real: real_nodes.Nodes) -> Cluster:
    """Both nodes with a key of the product's own, each host key compared with the node's."""
    key = inventory.make_credential(ADMIN, name="real")
    real.authorize(key.public_key)
    made: list[Node] = []
    for node in (real.head, real.second):
        row = services.enrol(
            ADMIN, name=node.name, address=node.address, port=node.port, user=node.user, credential=key,
            jump=made[0] if made else None,
        )  # fmt: skip
        offered = {found.sha256 for found in row.host_keys.all()}
        known = {found.sha256 for found in node.host_keys}
        assert offered and offered <= known, (offered, known)
        made.append(inventory.confirm_host_key(ADMIN, row, sha256=sorted(offered)[0]))
    return Cluster(real, *made)


@pytest.fixture
def cluster(worker, settings, nodes) -> Iterator[Cluster]:
    settings.SLICE_S, settings.LEASE_S = 3.0, 20.0
    made = enrol(nodes)
    made.wipe()
    made.known()
    yield made
    made.wipe()
