"""The Node page's groups of facts: of a recorded Spark, of a sheet that holds everything, and of one that holds nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.facts import probe
from apps.facts.sheet import Evidence, Sheet
from apps.facts.values import (
    Checkout,
    EngineProcess,
    Gpu,
    GpuError,
    Gpus,
    Launcher,
    MemoryOwner,
    MigInstance,
    Privileges,
    RailPing,
    SshServer,
    Starts,
    TimeSync,
    Unit,
)
from apps.pages.facts import Group, groups
from apps.pages.words import coded
from bench.replay import ANSWER, NONCE
from tests.plan import sheets as made


def named(sheet: Sheet) -> dict[str, Group]:
    return {group.name: group for group in groups(sheet)}


def words(group: Group) -> str:
    cells = [cell for row in (*group.pairs, *group.table) for cell in row]
    return " | ".join(map(str, cells))


def test_a_recorded_spark_shows_every_section_somewhere() -> None:
    sheet = probe.sheet_from("spark-1a32", 1.0, probe.read(NONCE.decode(), ANSWER.read_bytes()))
    found = named(sheet)
    assert {name for group in found.values() for name, _ in group.evidence} == set(sheet.evidence)
    assert "None" not in " ".join(map(words, found.values()))
    assert not any(group.missing for group in found.values())
    assert ("Management", "enP7s7 10.1.230.180") in found["Network and fabric"].pairs
    assert ("TCP forwarding", "yes") in found["Login and limits"].pairs
    assert "starts vllm: model /models/GLM-4.7-Flash, image vllm-node" in words(found["Launch scripts and checkouts"])
    assert "vllm_node" in words(found["Engines and GPU processes"])
    assert "arm64" in words(found["Images"])
    owners = {row[0]: row[1] for row in found["Listening ports"].table}
    assert owners[8000] == "container vllm_node" and owners[22] == "unknown"  # only root sees foreign owners


def test_what_only_other_machines_have() -> None:
    mig = Gpu(0, "NVIDIA H200", memory_total_mib=143771, mig="Enabled", instances=(MigInstance(1, profile="3g.71gb"),))
    sheet = replace(
        made.plain(),
        gpus=Gpus("580", gpus=(mig,)),
        gpu_errors=(GpuError(79, "0000:01:00", 2),),
        processes=(
            EngineProcess(
                4242,
                Starts("vllm", "a/b", port=8000),
                user="bob",
                venv="/opt/v",
                started_unix_s=made.TAKEN_AT - 3 * 86400,
            ),
        ),
        user_units=(Unit("llama.service", active="active", sub="running", enabled="enabled"),),
        launchers=(Launcher("/home/bob/run.sh", (Starts("sglang", "a/b"),)),),
        checkouts=(Checkout("/home/bob/kit", None, "main", "f" * 40, changed=1),),
        owners=(MemoryOwner("user-1000.slice", 5 << 30, 1 << 30),),
        time_sync=TimeSync(True, True, "chrony", "Europe/Berlin"),
        privileges=Privileges(
            "some", linger=False, lingering=("eve",), remove_ipc=True, memlock_bytes=-1, open_files=1024
        ),
        ssh_server=SshServer("9.6p1", 10, 10, 100, "no", source="files", conditional=True),
        rails=(RailPing("eth1", "10.0.0.2", 9000, "too_long"),),
    )
    found = named(sheet)
    assert ("MIG of GPU 0", "3g.71gb unknown of unknown MiB") in found["GPU"].pairs
    assert ("Xid 79", "2 times, GPU 0000:01:00") in found["GPU"].pairs
    row = next(row for row in found["Engines and GPU processes"].table if row[0] == 4242)
    assert row[1:4] == ("vllm: model a/b, port 8000 from /opt/v", "bob", "3 days") and row[-1] == "nothing"
    assert found["The user's own units"].table == (("llama.service", "active (running)", "enabled", ""),)
    assert "main ffffffffffff, 1 changed file" in words(found["Launch scripts and checkouts"])
    assert ("user-1000.slice", "5.0 GiB", "1.0 GiB") in found["Memory"].table
    assert dict(found["Machine"].pairs)["Clock"].endswith("synchronized by chrony, Europe/Berlin")
    login = dict(found["Login and limits"].pairs)
    assert (login["Lingering"], login["RemoveIPC"], login["Locked memory"]) == ("off; others: eve", "yes", "unlimited")
    assert login["Limits said by"] == "files, with Match blocks"
    assert ("eth1 to 10.0.0.2", "full frames do not arrive") in found["Network and fabric"].pairs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("`kill 4242` ends it.", "<code>kill 4242</code> ends it."),
        ("Run `a <b>` or `c`", "Run <code>a &lt;b&gt;</code> or <code>c</code>"),
        ("No half ` of a <pair>", "No half ` of a &lt;pair&gt;"),
        ("", ""),
    ],
)
def test_commands_in_a_remedy_are_set_as_code(text: str, shown: str) -> None:
    assert coded(text) == shown


def test_nothing_known_says_so_for_each_group() -> None:
    found = groups(Sheet("node", 1.0, evidence={"user-units": Evidence("", "no bus", 1)}))
    assert {group.missing for group in found} == {"could not be read", "not asked by this probe"}
    assert not any("None" in words(group) for group in found)
