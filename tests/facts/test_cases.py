"""The handed cases: the input's bytes through `parse`, compared with the values that a correct product must conclude.

Each expected value has to be found in our answer; ours may say more. Where a case names or nests a thing differently
than we do, the function beside it says how (docs/formats.md lists the aliases).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.facts import parsing

CASES = Path(__file__).resolve().parent.parent / "cases"


def parse(fact: str, path: Path) -> Any:
    out = io.StringIO()
    assert parsing.main([fact, str(path)], io.BytesIO(), out) == 0
    return json.loads(out.getvalue())


def merged(answers: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for answer in answers:
        told |= {name: value for name, value in answer.items() if value is not None}
    return told


def same(answer: Any) -> Any:
    return answer


def only(name: str) -> Callable[[Any], Any]:
    return lambda answer: answer[name]


TABLE: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("001-gb10-smi-idle-desktop", "gpu", same),
    ("003-gb10-query-gpu-csv-na", "gpu", lambda told: {"rows": [row for each in told for row in each["rows"]]}),
    ("005-smi-610-header-kmd-umd", "gpu", same),
    ("008-h200x8-smi-half-busy", "gpu", same),
    ("009-mig-a100-two-instances", "gpu", same),
    ("011-nvml-driver-library-mismatch", "gpu", same),
    ("016-smi-tool-driver-skew-wsl", "gpu", same),
    ("017-gb10-meminfo-model-loaded", "memory", same),
    ("019-free-df-german-locale", "memory", same),
    ("022-kernel-oom-killed-helper", "memory", merged),
    ("024-df-disk-almost-full-hf-cache", "memory", merged),
    ("024-df-disk-almost-full-hf-cache", "disk", merged),
    ("025-systemd-oomd-and-swap", "memory", merged),
    ("026-docker-ps-json-29", "docker", only("containers")),
    ("026-docker-ps-json-29", "containers", only("containers")),
    ("029-docker-images-json-legacy", "docker", only("images")),
    ("032-docker-image-needs-newer-driver", "docker", same),
    ("036-systemctl-list-units-failed-marker", "systemd", lambda told: {"first": told[0], "second": told[1]}),
    (
        "039-ibdev2netdev-spark-one-cable",
        "network",
        # "Match by name, not by line order": compared as sets.
        lambda told: {node: {key: set(each[key]) for key in ("up", "netdev")} for node, each in told.items()},
    ),
    ("041-ibstat-spark-four-devices", "network", only("hcas")),
    ("041-ibstat-spark-four-devices", "fabric", only("hcas")),
    ("043-ip-j-addr-fabric-link-local-only", "network", same),
    ("045-twins-in-same-subnet", "network", same),
    ("046-ethtool-speed-variants", "network", same),
    ("046-ethtool-speed-variants", "ethtool", same),
    ("047-no-ib-tools-installed", "network", only("hcas")),
    (
        "050-ip-j-addr-noise-pick-fabric",
        "network",
        lambda told: told | {"fabric": [each["if"] for each in told["fabric"]], "mgmt": told["mgmt_candidates"]},
    ),
    ("051-ray-status-two-sparks-serving", "ray", same),
    ("053-ray-status-idle-section-kuberay", "ray", same),
]


def missing(expected: Any, told: Any, at: str = "") -> list[str]:
    """Where `told` doesn't say what is expected."""
    if isinstance(told, set):
        return [] if set(expected) == told else [f"{at}: {told} is not {expected}"]
    if isinstance(expected, dict):
        if not isinstance(told, dict):
            return [f"{at}: {told!r} is no object"]
        return [
            gap for key, value in expected.items() for gap in missing(value, told.get(key, "nothing"), f"{at}.{key}")
        ]
    if isinstance(expected, list):
        plain = all(not isinstance(each, dict) for each in expected)
        if not isinstance(told, list) or len(expected) > len(told) or (plain and len(expected) != len(told)):
            if not (plain and isinstance(told, list) and at.endswith(".warn") and set(expected) <= set(told)):
                return [f"{at}: {told!r} is not {expected!r}"]
            return []
        return [
            gap
            for n, (one, other) in enumerate(zip(expected, told, strict=False))
            for gap in missing(one, other, f"{at}[{n}]")
        ]
    return (
        []
        if (expected == told and type(expected) is not bool) or expected is told
        else [f"{at}: {told!r} is not {expected!r}"]
    )


@pytest.mark.parametrize(("case", "fact", "adapted"), TABLE, ids=[f"{case}-{fact}" for case, fact, _ in TABLE])
def test_case(case: str, fact: str, adapted: Callable[[Any], Any]) -> None:
    expected = json.loads((CASES / case / "expected.json").read_text())
    source = next(path for path in sorted((CASES / case).glob("input*"), key=lambda path: len(path.name)))
    assert missing(expected, adapted(parse(fact, source))) == []


def test_every_case_of_these_kinds_that_has_expected_values_is_in_the_table() -> None:
    ours = {
        path.parent.name
        for path in CASES.glob("*/expected.json")
        if any(
            f"- kind: {kind}\n" in (path.parent / "case.md").read_text()
            for kind in ("gpu", "memory", "docker", "systemd", "network")
        )
    }
    assert ours == {case for case, fact, _ in TABLE if fact != "ray"}


def test_three_nodes_without_a_usable_gpu_have_three_explanations() -> None:
    told = parse("gpu", CASES / "013-smi-no-driver-three-ways" / "input.json")
    assert [each["problem"] for each in told] == ["driver_not_running", "no_gpu", "no_driver"]
    assert all(each["evidence"] and each["gpus"] == [] for each in told)


def test_exit_137_alone_does_not_blame_memory() -> None:
    told = parse("docker", CASES / "031-docker-inspect-exit-137" / "input.json")["containers"]
    assert [each["ended_by"] for each in told] == ["killed", "memory_limit", "segmentation_fault"]
    assert told[0]["ran_s"] < 5 < told[1]["ran_s"]


def test_a_forbidden_socket_a_stopped_daemon_and_no_docker_differ() -> None:
    told = parse("docker", CASES / "034-docker-socket-permission" / "input.json")
    assert [each["problem"] for each in told] == ["docker_denied", "docker_denied", "docker_down", "docker_missing"]


def test_no_systemd_is_a_value() -> None:
    told = parse("systemd", CASES / "038-systemctl-not-systemd" / "input.json")
    assert (told["systemd"], told["problem"], told["units"]) == (False, "no_systemd", [])


def test_a_cluster_that_is_not_there_and_one_that_was_not_joined() -> None:
    told = parse("ray", CASES / "055-ray-status-no-cluster" / "input.json")
    assert [each["problem"] for each in told] == ["no_ray_cluster", "ray_local_instance"]


def test_a_field_that_the_driver_does_not_know_is_no_missing_gpu() -> None:
    told = parse("gpu", CASES / "003-gb10-query-gpu-csv-na" / "input.txt")
    assert told[2]["problem"] == "bad_query_field"


def test_the_default_route_names_the_management_interface() -> None:
    assert parse("network", CASES / "045-twins-in-same-subnet" / "input-route.txt") == {
        "default": ["enP7s7"],
        "subnet": "10.0.1.0/24",
        "problem": "twins_same_subnet",
        "warn": ["same_subnet_twins"],
    }


def test_expected_inodes_and_largest_folder() -> None:
    told = merged(parse("disk", CASES / "024-df-disk-almost-full-hf-cache" / "input.txt"))
    assert told["inodes_used_pct"] == {"/": 3}
    assert told["folders"][0]["path"].endswith("models--meta-llama--Llama-3.1-70B-Instruct")
    assert told["folders"][0]["bytes"] == 132 * 1024**3
