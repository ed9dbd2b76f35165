"""Two real nodes for the tests marked `real`, one pair for all of them, and the product beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import real_engine, real_nodes
from tests.browser.conftest import browser
from tests.real import stack
from tests.real.product import HEAD, SECOND, Product

__all__ = ["browser"]
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


WIPE = """
iptables -F INPUT; iptables -F OUTPUT; rm -f /etc/sparklab/nvidia-smi.problem; pkill -CONT -x sshd
systemctl is-active -q docker || systemctl start docker.socket docker.service
"""
REST = """
docker ps -aq | xargs -r docker rm -f
rm -rf /home/spark/.sparkweb /tmp/ray
"""


def wipe(nodes: real_nodes.Nodes) -> None:
    """Nothing of a test is left on the nodes."""
    for name in (HEAD, SECOND):
        nodes.inside(name, "sh", "-c", WIPE + stack.WIPE + REST, check=False)


@pytest.fixture
def clean(nodes: real_nodes.Nodes) -> Iterator[real_nodes.Nodes]:
    """Both nodes, with nothing on them before and after."""
    wipe(nodes)
    yield nodes
    wipe(nodes)


@pytest.fixture(scope="module")
def enrolled(nodes: real_nodes.Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A running product that knows both nodes."""
    wipe(nodes)
    made = Product(tmp_path_factory.mktemp("product"), nodes)
    try:
        made.start()
        made.enrol()
        yield made
    finally:
        made.end()


@pytest.fixture
def product(enrolled: Product, clean: real_nodes.Nodes) -> Product:
    """The product, with clean nodes and fresh facts of them."""
    enrolled.know()
    return enrolled
