"""The whole probe over real SSH on the pretend Sparks of the lab, whose tools were written from the real tools' formats."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from apps.diagnosis.findings import findings
from apps.diagnosis.findings.links import rails_to
from apps.facts import probe
from apps.facts.sheet import Evidence, Sheet
from apps.facts.values import RailPing, Starts

lab = pytest.importorskip("apps.lab")
NONCE = "n0nce4thelab"


@pytest.fixture(scope="module", params=["mount", "rewrite"])
def sheets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sheet]]:
    """By mount namespace and by rewritten paths; the second leads only a named list of paths into the node."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh client")
    folder = tmp_path_factory.mktemp("lab")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    try:
        running = lab.Lab.start(folder / "lab", redirect=request.param)
    except lab.LabError as error:
        if request.param == "mount":
            pytest.skip(f"no mount namespaces here: {error}")
        raise
    with running:
        running.authorize((folder / "key.pub").read_text().strip())
        first = {name: asked(name, node.port, folder / "key") for name, node in running.nodes.items()}
        yield {
            name: replace(sheet, rails=pinged(sheet, first, running.nodes[name].port, folder / "key"))
            for name, sheet in first.items()
        }


def pinged(sheet: Sheet, every: dict[str, Sheet], port: int, key: Path) -> tuple[RailPing, ...] | None:
    """What the second probe finds, which knows the peers from the first."""
    assert sheet.rails is None
    peers = "\n".join(map(" ".join, rails_to(sheet, list(every.values()))))
    return probe.sheet_from(sheet.node, 1.0, sections(("rails",), port, key, peers=peers)).rails


def asked(name: str, port: int, key: Path) -> Sheet:
    found = sections(probe.PROBE, port, key)
    assert set(found) == set(probe.PROBE)
    return probe.sheet_from(name, 1.0, found)


def sections(facts: tuple[str, ...], port: int, key: Path, **extra: str) -> dict[str, Evidence]:
    options = [
        "-F",
        "none",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "LogLevel=ERROR",
    ]
    text = probe.script(facts, nonce=NONCE, extra=extra)
    done = subprocess.run(
        ["ssh", *options, "-i", str(key), "-p", str(port), "aurora@127.0.0.1", "/bin/sh -s"],
        input=text.encode(), capture_output=True, timeout=90, check=True,
    )  # fmt: skip
    return probe.read(NONCE, done.stdout)


def test_what_the_story_finds(sheets: dict[str, Sheet]) -> None:
    head, second = sheets["spark-1a32"], sheets["spark-5be3"]
    assert head.machine is not None and head.memory is not None and head.gpus is not None and head.docker is not None
    assert (head.machine.hostname, head.machine.arch, head.machine.kernel) == (
        "spark-1a32",
        "aarch64",
        "6.14.0-1015-nvidia",
    )
    assert head.machine.boot_id != second.machine.boot_id  # type: ignore[union-attr]
    assert head.gpus.gpus[0].unified and head.gpus.driver == "580.95.05" and head.gpus.cuda == "13.0"
    assert {each.container for each in head.gpus.processes} == {"vllm_node", "vllm_embeddings", "reranker"}
    assert round((head.memory.total_bytes or 0) / 1024**3) in {119, 120}
    assert 103 <= (head.memory.used_bytes or 0) / 1024**3 <= 105
    assert second.containers == () and second.internet is False
    assert sorted(each.state or "" for each in second.fabric or ()) == ["ACTIVE", "ACTIVE", "DOWN", "DOWN"]


def test_who_would_bring_the_containers_back(sheets: dict[str, Sheet], request: pytest.FixtureRequest) -> None:
    starts = {unit.name: unit.containers for unit in sheets["spark-1a32"].units or () if unit.name.startswith("vllm-")}
    if "rewrite" in request.node.name and starts["vllm-cluster.service"] == ():
        starts["vllm-cluster.service"] = (
            "vllm_node",
        )  # its script lies under /opt, which is not led into the node there
    assert starts == {
        "vllm-cluster.service": ("vllm_node",),
        "vllm-embeddings.service": ("vllm_embeddings",),
        "vllm-proxy.service": (),
        "vllm-reranker.service": ("reranker",),
    }
    assert {unit.enabled for unit in sheets["spark-1a32"].units or () if unit.name in starts} == {"enabled"}


def test_addresses_and_their_parts(sheets: dict[str, Sheet]) -> None:
    roles = {each.name: (each.role, [address.ip for address in each.addresses if address.family == "inet"])
             for each in sheets["spark-1a32"].interfaces or () if each.addresses}  # fmt: skip
    assert roles["enP7s7"] == ("management", ["10.1.230.180"])
    assert roles["enp1s0f0np0"] == ("fabric", ["192.168.200.12"])


def test_the_model_is_whole_and_the_image_says_what_is_inside(sheets: dict[str, Sheet]) -> None:
    for sheet in sheets.values():
        (model,) = [each for each in sheet.models or () if each.path.endswith("/Qwen3.5-122B-A10B-FP8")]
        assert (model.shards, model.shards_expected, model.complete) == (39, 39, True)
        assert model.config is not None
        image = next(each for each in sheet.images or () if (each.ref or "").startswith("hellohal2064/"))
        assert image.arch == "arm64"
    inside = {each.where: each.versions for each in sheets["spark-1a32"].software or ()}
    assert inside["container:vllm_node"]["vllm"].startswith("0.14.0rc2")


def test_the_sheets_survive_json(sheets: dict[str, Sheet]) -> None:
    for sheet in sheets.values():
        assert Sheet.from_json(json.loads(json.dumps(sheet.to_json()))) == sheet


def test_who_runs_engines_and_what_lies_ready_to_start_more(sheets: dict[str, Sheet]) -> None:
    head, second = sheets["spark-1a32"], sheets["spark-5be3"]
    kept = {(one.starts.engine, one.container) for one in head.processes or () if one.starts.model}
    assert kept == {("vllm", "vllm_node"), ("vllm", "vllm_embeddings"), ("vllm", "reranker")}
    assert sum(one.gpu_bytes or 0 for one in head.processes or ()) > 90 << 30
    assert second.processes == () and head.user_units == ()
    (kit,) = [one for one in head.checkouts or () if one.path.endswith("/spark-vllm-docker")]
    assert (kit.remote, kit.branch) == ("https://github.com/eugr/spark-vllm-docker.git", "main")
    assert kit.commit is not None and len(kit.commit) == 40
    (script,) = [one for one in head.launchers or () if one.path.endswith("/serve-glm.sh")]
    assert script.checkout == kit.path
    assert script.starts[0] == Starts("vllm", "/models/GLM-4.7-Flash", port=8000, image="vllm-node")


def test_the_login_and_the_clock(sheets: dict[str, Sheet]) -> None:
    for sheet in sheets.values():
        assert sheet.ssh_server is not None and sheet.time_sync is not None and sheet.gpus is not None
        assert (sheet.ssh_server.source, sheet.ssh_server.max_sessions) == ("sshd -T", 10)
        assert sheet.ssh_server.tcp_forwarding == "yes"
        assert (sheet.time_sync.synchronized, sheet.time_sync.service) == (True, "systemd-timesyncd")
        assert sheet.gpus.gpus[0].uuid


def test_full_frames_on_both_rails_once_the_peers_are_known(sheets: dict[str, Sheet]) -> None:
    for sheet in sheets.values():
        found = {(one.interface, one.result, one.frame_bytes) for one in sheet.rails or ()}
        assert found == {("enp1s0f0np0", "ok", 9000), ("enP2p1s0f0np0", "ok", 9000)}


def test_nothing_of_it_is_found_wrong(sheets: dict[str, Sheet]) -> None:
    names = {one.name for one in findings(sheets)}
    assert not names & {
        "engine_process",
        "user_units_restart",
        "gpu_missing",
        "gpu_errors",
        "mig_on",
        "ssh_forwarding_off",
        "clock_unsynchronized",
    }
    assert {"units_restart", "launchers_found"} <= names
