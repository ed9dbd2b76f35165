"""A fetch through the product: API, worker, SSH, a pretend node whose curl asks the test's own hub."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from apps.audit.models import Entry
from apps.diagnosis.refusal import Refused
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.lab import Lab
from apps.pages.fetching import transfer
from apps.runs import fetching, services
from apps.runs.models import Run
from tests.fetching.conftest import FILES, REPO
from tests.fetching.hub import Hub
from tests.openssh import openssh
from tests.provision.conftest import enrolled, text_of
from tests.runs.conftest import ADMIN, ended, worker

__all__ = ["openssh", "worker"]
pytestmark = pytest.mark.django_db(transaction=True)
NODE = "spark-1a32"
LARGE = "model-00001-of-00002.safetensors"


@pytest.fixture
def spark(worker: Any, settings: Any, tmp_path: Path, hub: Hub) -> Any:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    settings.SLICE_S = 3.0
    with Lab.start(tmp_path / "lab", factor=100.0, shards=3) as lab:
        key = inventory.make_credential(ADMIN, name="lab")
        lab.authorize(key.public_key)
        node = enrolled(lab, key, NODE)
        lab.fault(NODE, "hub", hub.address)
        yield lab, node


@pytest.mark.skip(reason="not seen to end on a pretend node yet; the next test plays the same through OpenSSH")
def test_fetched_cut_joined_and_done(spark: Any, hub: Hub) -> None:
    lab, node = spark
    play(node, lab.root(NODE) / "home/aurora/.cache/huggingface/hub", hub)


def test_the_same_through_an_openssh_server(worker: Any, openssh: Any, hub: Hub, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    server = openssh.start("spark-1")
    key = inventory.make_credential(ADMIN, name="sparks", private_key=server.private_key)
    node = services.enrol(
        ADMIN,
        name="spark-1",
        address="127.0.0.1",
        port=server.port,
        user=server.endpoint().user,
        credential=key,
        jump=None,
    )
    node = inventory.confirm_host_key(ADMIN, node, sha256=node.host_keys.get(type="ssh-ed25519").sha256)
    cache = tmp_path / "cache"
    play(node, cache, hub, cache=str(cache), endpoint=hub.address, tool="curl", keep_free_gib=0)


def play(node: Node, place: Path, hub: Hub, **wish: Any) -> None:
    """Refused without a token, begun, joined, cancelled in its middle, and done by a second one that moves no byte again."""

    def begun(**changes: Any) -> Run:
        return fetching.start(ADMIN, node, {"repo": REPO, **wish, **changes})

    hub.token = "hf_opensesame123"
    model = hub.add(REPO, dict(FILES), gated=True)
    failed = ended(begun(), 60)
    assert (failed.state, failed.reason) == ("failed", "hub_auth"), text_of(failed)
    with pytest.raises(Refused) as none:
        begun(token="hub")
    assert (none.value.reason, none.value.field) == ("secret_missing", "token")
    inventory.keep_secret(ADMIN, name="hub", value=hub.token)

    hub.rate = 60_000
    run = begun(token="hub")
    assert begun(token="hub").pk == run.pk
    until = time.monotonic() + 60
    while time.monotonic() < until and hub.sent[LARGE] < 60_000:
        time.sleep(0.1)
    while time.monotonic() < until and (transfer(run) is None or not transfer(run).current):
        time.sleep(0.1)
    shown = transfer(run)
    assert shown is not None and shown.files == len(FILES) and 0 < shown.done < shown.total
    assert {one["path"] for one in shown.current} & {LARGE}
    services.cancel(ADMIN, run)
    run = ended(run, 60)
    assert run.state == "cancelled", run.evidence
    home = place / "models--acme--tiny-1b"
    assert not (home / "snapshots").exists()
    kept = sum(path.stat().st_size for path in (home / "blobs").iterdir())
    assert kept > 60_000

    hub.rate = 0
    hub.sent.clear()
    run = ended(begun(token="hub"), 90)
    assert run.state == "succeeded", (run.reason, run.evidence, text_of(run)[-3000:])
    assert sum(hub.sent.values()) == sum(len(data) for data in FILES.values()) - kept
    snapshot = home / "snapshots" / model.commit
    assert all((snapshot / name).read_bytes() == data for name, data in FILES.items())
    assert (home / "sparkweb" / f"{model.commit}.json").is_file()
    assert (home / "refs/main").read_text() == model.commit
    assert hub.leaked == []
    assert hub.token not in text_of(run)
    entries = Entry.objects.filter(action="node:fetch", outcome="requested")
    assert [one.after.get("joined") for one in entries.order_by("id")].count(None) == entries.count() - 1
