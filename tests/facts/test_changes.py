"""What changed between two sheets, one case a kind; what is not known is no change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.facts.changes import changes
from apps.facts.sheet import Sheet
from apps.facts.values import Address, Docker, Gpus, Listener, Software
from tests.plan import sheets as made

GIB = 1 << 30
HEAD = made.head()


def said(after: Sheet, before: Sheet = HEAD) -> list[str]:
    return [change.sentence for change in changes(before, after)]


def other(name: str, **values: Any) -> Sheet:
    """The head with another value inside of one of its facts."""
    return replace(HEAD, **{name: replace(getattr(HEAD, name), **values)})


def first(name: str, **values: Any) -> Sheet:
    """The head with another first item of one of its lists."""
    one, *rest = getattr(HEAD, name)
    return replace(HEAD, **{name: (replace(one, **values), *rest)})


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (other("machine", boot_id="another"), "it was rebooted"),
        (other("machine", kernel="7.0.0"), "kernel is 7.0.0, was 6.14.0-1015-nvidia"),
        (other("memory", available_bytes=115 * GIB), "99.3 GiB less in use"),
        (other("gpus", driver="590.1"), "driver is 590.1, was 580.95.05"),
        (replace(HEAD, gpus=Gpus("580.95.05", "13.0", problem="gpu_lost")), "the GPU can't be used: gpu lost"),
        (
            first("disks", available_bytes=100 * GIB),
            "2973.4 GiB less free on /",
        ),
        (replace(HEAD, docker=Docker(True, "28.3.3", problem="docker_down")), "Docker: docker down, was: answers"),
        (other("docker", server_version="29.0"), "Docker is 29.0, was 28.3.3"),
        (replace(HEAD, containers=HEAD.containers[1:]), "container vllm_node is gone"),
        (first("containers", state="exited"), "container vllm_node is exited, was running"),
        (first("containers", id="another"), "container vllm_node was made anew"),
        (first("containers", restarts=4), "the restart count of container vllm_node is 4, was 0"),
        (first("containers", started_at="2026-08-01T00:00:00Z"), "container vllm_node was started again"),
        (first("images", id="sha256:other"), f"image {made.IMAGE}:latest is another one"),
        (replace(HEAD, images=()), "image vllm-node:latest is gone"),
        (first("units", enabled="disabled"), "unit vllm-cluster.service is disabled, was enabled"),
        (first("units", active="failed"), "unit vllm-cluster.service is failed, was active"),
        (first("interfaces", mtu=9000), "the MTU of enP7s7 is 9000, was 1500"),
        (first("interfaces", up=False), "enP7s7 is down, was up"),
        (first("interfaces", addresses=(Address("10.9.9.9", 24),)), "enP7s7 has 10.9.9.9/24, had 10.1.230.180/24"),
        (first("fabric", state="DOWN"), "rocep1s0f0 is DOWN, was ACTIVE"),
        (first("fabric", gid_index=5), "the GID index of rocep1s0f0 is 5, was 3"),
        (replace(HEAD, listeners=(*HEAD.listeners, Listener("::", 30000, 1, "vllm"))), "port 30000 is open (vllm)"),
        (replace(HEAD, listeners=HEAD.listeners[:-1]), "port 9000 is free again (python3)"),
        (first("models", complete=False, shards=38), f"model {made.MODEL_PATH} is incomplete, was complete"),
        (replace(HEAD, models=()), f"model {made.MODEL_PATH} is gone"),
        (
            replace(HEAD, software=(Software(HEAD.software[0].where, {"vllm": "0.18.0"}),)),
            f"vllm in {made.IMAGE} is 0.18.0, was 0.17.1rc1",
        ),
        (replace(HEAD, internet=False), "it has no internet any more"),
        (other("privileges", sudo="password"), "sudo is password, was all"),
        (replace(HEAD, gpus=None), "gpus can no longer be read"),
    ],
)
def test_one_change(after: Sheet, sentence: str) -> None:
    assert sentence in said(after)


def test_nothing_changed() -> None:
    assert said(replace(HEAD, taken_at=HEAD.taken_at + 60)) == []


def test_small_moves_of_memory_are_none() -> None:
    assert said(other("memory", available_bytes=HEAD.memory.available_bytes + GIB)) == []


def test_a_reboot_into_the_old_stack() -> None:
    """The story's step 10, seen from the sheets."""
    before = made.head(busy=False)
    assert said(replace(made.head(), machine=replace(HEAD.machine, boot_id="next")), before)[:4] == [
        "it was rebooted",
        "98.1 GiB more in use",
        "container vllm_node is new (running)",
        "container vllm_embeddings is new (running)",
    ]


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from([each.name for each in fields(Sheet) if each.default is None])))
def test_what_is_not_known_is_no_change(names: set[str]) -> None:
    less = replace(HEAD, **dict.fromkeys(names))
    assert all("read" in sentence for sentence in said(less))
    assert all("read" in sentence for sentence in said(HEAD, less))
