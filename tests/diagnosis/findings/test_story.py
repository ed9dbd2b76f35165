"""The story's two Sparks give the story's findings, word by word; any other sheet gives no exception."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.diagnosis.findings import SEVERITIES, TABLE, findings
from apps.facts.sheet import Sheet
from apps.facts.values import Image, Software
from tests.plan import sheets as made

OLD = Software("image:vllm-node", {"vllm": "0.14.0rc2.dev262", "torch": "2.9.1+cu130"}, "12.1a", "sha256:" + "a" * 64)


def test_the_story() -> None:
    head = replace(made.head(), software=(*(made.head().software or ()), OLD))
    found = findings({"spark-1a32": head, "spark-5be3": made.second()})
    assert [(one.severity, one.name, one.sentence) for one in found] == [
        (
            "warn",
            "memory_held",
            "98.1 GiB of 119.7 GiB on spark-1a32 are held by vllm_node, vllm_embeddings and reranker",
        ),
        (
            "warn",
            "units_restart",
            "vllm-cluster.service, vllm-embeddings.service, vllm-proxy.service and vllm-reranker.service on spark-1a32 "
            "start vllm_node, vllm_embeddings and reranker again",
        ),
        (
            "warn",
            "exposed",
            "Port 8000 (vllm_node) and port 9000 (vllm-proxy.service) of spark-1a32 answer on all interfaces, and no key "
            "was seen",
        ),
        ("note", "no_internet", "spark-5be3 has no internet"),
        ("note", "fabric_port_unused", "roceP2p1s0f1 and rocep1s0f1 on spark-1a32 have no link"),
        ("note", "fabric_port_unused", "roceP2p1s0f1 and rocep1s0f1 on spark-5be3 have no link"),
    ]
    held, units = found[0], found[1]
    assert held.meaning == (
        "Stopping frees: vllm_node 80.0 GiB, vllm_embeddings 9.6 GiB and reranker 8.5 GiB. A launch that needs the "
        "memory asks for consent first."
    )
    assert held.values["frees_bytes"]["vllm_node"] == 80 << 30
    assert units.meaning == (
        "systemd starts what it keeps again when that is stopped alone, and they do so at every boot."
    )


def test_the_story_with_the_old_image_in_the_recipe() -> None:
    head = replace(made.head(), software=(OLD,), images=(Image("vllm-node:latest", OLD.image_id, None, "arm64"),))
    spec = made.qwen35(image="vllm-node").to_json()
    names = {one.name: one for one in findings({"spark-1a32": head, "spark-5be3": made.second()}, spec=spec)}
    assert names["ray_missing"].severity == "bad"
    assert names["image_too_old"].severity == "warn"
    assert names["image_too_old"].remedy == "Use an image with vLLM 0.17 or newer."
    assert "qwen3_5_moe" in names["image_too_old"].meaning


WORDS = st.sampled_from(
    [
        "",
        "vllm",
        "0.0.0.0",
        "running",
        "restarting",
        "ACTIVE",
        "DOWN",
        "fabric",
        "inet",
        "192.168.200.12",
        "169.254.1.1",
        "fe80::1",
        "rocep1s0f0",
        "roceP2p1s0f0",
        "enp1s0f0np0",
        "failed",
        "active",
        "enabled",
        "password",
        "oomd",
        "/",
        "/models",
        "NVIDIA GB10",
        "image:a",
        "venv:/opt/v",
        "12.1a",
        "aarch64",
        "amd64",
        "cuda>=13.1",
        "0.14",
        "x" * 40,
        "\ud800\0",
    ]
)


def values(kind: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Anything that the type allows, None most of all; few of it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(part for part in parts if part is not type(None))
        return st.one_of(st.none(), values(inner, depth))
    if origin is tuple:
        return st.lists(values(parts[0], depth + 1), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(WORDS, st.one_of(WORDS) if parts[1] is str else values(parts[1], depth + 1), max_size=2)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{each.name: values(hints[each.name], depth + 1) for each in dataclasses.fields(kind)})
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.sampled_from([0, 1, 24, 33, 1500, 8000, 8265, 1 << 30, 1 << 37, -1])
    if kind is float:
        return st.sampled_from([0.0, 1.0, 40.0, 200.0, 1e9, -1e12])
    return WORDS if kind is str else st.one_of(st.none(), st.integers(0, 3), WORDS)


SHEETS = values(Sheet)
MIXED = st.builds(
    lambda base, other, names: replace(base, **{name: getattr(other, name) for name in names}),
    st.sampled_from([made.head(), made.second(), made.plain()]),
    SHEETS,
    st.sets(st.sampled_from([each.name for each in dataclasses.fields(Sheet) if each.name != "node"]), max_size=6),
)
SPECS = st.one_of(
    st.none(),
    st.just(made.qwen35().to_json()),
    st.dictionaries(
        st.sampled_from(["image", "model_path", "runtime", "cluster", "nodes", "executable"]),
        st.one_of(WORDS, st.none(), st.lists(WORDS, max_size=2), st.integers()),
    ),
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(SHEETS, MIXED), max_size=3), SPECS)
def test_any_sheets_give_findings_and_no_exception(sheets: list[Sheet], spec: Any) -> None:
    found = findings({f"{place}{sheet.node}": sheet for place, sheet in enumerate(sheets)}, spec=spec)
    for one in found:
        assert one.name in TABLE
        assert one.severity in SEVERITIES
        assert one.nodes
        assert one.sentence
        assert "None" not in one.sentence
    assert [SEVERITIES.index(one.severity) for one in found] == sorted(SEVERITIES.index(one.severity) for one in found)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.sampled_from([each.name for each in dataclasses.fields(Sheet) if each.default is None])))
def test_less_known_never_says_more_but_that_it_is_unknown(names: set[str]) -> None:
    whole = {one.name for one in findings(made.pair())}
    less = {node: replace(sheet, **dict.fromkeys(names)) for node, sheet in made.pair().items()}
    assert {one.name for one in findings(less)} - whole <= {"unreadable"}
