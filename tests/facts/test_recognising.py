"""The command behind a pasted text, by the handed cases, by neighbours of them, and never for what is a log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.facts.recognising import recognised

CASES = Path(__file__).resolve().parent.parent / "cases"
EXPECTED = {
    "001": ["gpu"],
    "003": ["gpu-query", "gpu-query", None],
    "005": ["gpu"],
    "008": ["gpu"],
    "009": ["gpu"],
    "011": ["gpu"],
    "013": ["gpu"],
    "016": ["gpu"],
    "017": ["memory"],
    "019": ["memory"],
    "024": ["disk", "disk", "disk"],
    "025": ["memory", "killed"],
    "026": ["containers"],
    "029": ["images"],
    "034": ["docker"],
    "036": ["units", "units"],
    "038": ["systemd"],
    "039": ["fabric-tools"],
    "041": ["fabric-tools"],
    "043": ["network"],
    "046": ["ethtool"],
    "050": ["network"],
    "051": ["ray"],
    "053": ["ray"],
}
LOGS = [
    case.name[:3]
    for case in sorted(CASES.iterdir())
    if re.search(r"vllm|sglang|rsync|hf-|docker-pull|api-", case.name) and case.name[:3] not in EXPECTED
]


def parts(case: str) -> list[str]:
    folder = next(CASES.glob(f"{case}-*"))
    text = next(iter(sorted(folder.glob("input.*")))).read_text(errors="replace")
    return [part for part in re.split(r"^---8<---.*\n?", text, flags=re.MULTILINE) if part.strip()]


@pytest.mark.parametrize("case", EXPECTED)
def test_the_handed_cases(case: str) -> None:
    found = [recognised(part) for part in parts(case)]
    assert [one.fact if one else None for one in found] == EXPECTED[case]


@pytest.mark.parametrize("case", LOGS)
def test_a_log_is_no_fact(case: str) -> None:
    assert [recognised(part) for part in parts(case)] == [None] * len(parts(case))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (
            "              total        used        free      shared  buff/cache   available\nMem:  125 33 1 1 90 91\n",
            "memory",
        ),
        ("LISTEN 0 128 0.0.0.0:22 0.0.0.0:*\n", "listeners"),
        ("tcp6       0      0 :::8000       :::*     LISTEN      812/python3\n", "listeners"),
        ("default via 10.0.0.1 dev eth0 proto dhcp metric 100\n", "network"),
        ("2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0\n", "network"),
        ("Dateisystem     Größe Benutzt Verf. Verw% Eingehängt auf\n/dev/sda1 98G 93G 5G 95% /\n", "disk"),
        ('[{"Id": "a", "RepoTags": ["x:1"], "Architecture": "arm64", "RootFS": {}}]', "image-details"),
        ('[{"Id": "a", "Name": "/v", "State": {"Running": true}, "HostConfig": {}}]', "container-details"),
        ("UNIT FILE STATE PRESET\nvllm.service enabled enabled\n", "unit-files"),
        ("link rocep1s0f0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0\n", "fabric-tools"),
        ("bash: nvidia-smi: command not found\n", "gpu"),
        ("0, NVIDIA GB10, [N/A], [N/A], 3 %, 44\n", "gpu-query"),
        ("GPU 0: NVIDIA GB10 (UUID: GPU-7542f839)\n", "gpu-list"),
        ("port 22\nmaxsessions 10\nmaxstartups 10:30:100\n", "sshd"),
        ("Time zone: Etc/UTC (UTC, +0000)\nSystem clock synchronized: yes\n", "time"),
        ("PING 10.0.0.2 (10.0.0.2) 8972(9000) bytes of data.\n2 packets transmitted, 2 received\n", "rails"),
        ("  PID  PPID USER ELAPSED RSS COMMAND\n 1 0 bob 9 9 vllm serve m\n", "processes"),
        ("USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND\nbob 1 0 0 9 9 ? S 1 0:1 vllm serve m\n", "processes"),
    ],
)
def test_neighbours(text: str, fact: str) -> None:
    found = recognised(text)
    assert found is not None
    assert found.fact == fact


def test_the_facts_of_one_output_make_a_sheet() -> None:
    found = recognised("rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)\nroceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)\n")
    assert found is not None and len(found.sheets) == 1
    assert [(one.name, one.state) for one in found.sheets[0].fabric or ()] == [
        ("rocep1s0f0", "ACTIVE"),
        ("roceP2p1s0f0", "DOWN"),
    ]


@given(st.text())
def test_any_text(text: str) -> None:
    recognised(text)
    recognised(f"MemTotal: 1 kB\n{text}")
