"""Figures and files that nobody should have: a verdict in words, in reasonable time, never an exception."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apps.facts.values import Memory
from apps.plan import kvcache, stories
from apps.plan.checks import settings
from apps.plan.fit_together import fit_all
from apps.plan.spec import MOST_NODES, MOST_SERVICES, Spec, validate
from tests.plan.sheets import GIVEN, pair, qwen35

MANY = ("9" * 16, "9" * 400, "9" * 5000, "0", "-1", "1e9", "nan", "{}")


@pytest.mark.parametrize("value", MANY)
@pytest.mark.parametrize("flag", ["--data-parallel-size", "--pipeline-parallel-size", "--kv-cache-memory-bytes"])
def test_absurd_numbers_of_options(flag: str, value: str) -> None:
    spec = qwen35(model="Qwen/Qwen3-8B", model_path="", arguments=(flag, value))
    assert fit_all(spec, pair(busy=False), GIVEN).sentence
    assert stories.launch(spec, pair(busy=False), given=GIVEN).fit is not None


@pytest.mark.parametrize("total", [0, -1, 1, 10**30, None])
def test_absurd_memory(total: int | None) -> None:
    sheets = {name: replace(sheet, memory=Memory(total, 1, 0, 0)) for name, sheet in pair(busy=False).items()}
    for engine in ("vllm", "sglang", "llamacpp", "command"):
        found = fit_all(qwen35(model="Qwen/Qwen3-8B", model_path="", engine=engine), sheets, GIVEN)
        assert found.verdict in ("unknown", "does_not_fit", "fits", "fits_after_clearing") and found.sentence


@pytest.mark.parametrize("size", [0, -1, 3, 1 << 70])
def test_absurd_tensor_parallel(size: int) -> None:
    spec = qwen35(tensor_parallel=size)
    assert fit_all(spec, pair(busy=False), GIVEN).sentence
    assert bool(validate(spec)) == (size != 3)
    problems = stories.launch(spec, pair(busy=False), given=GIVEN).problems
    assert {"bad_args", "tp_mismatch"} & {one.name for one in problems if one.severity == "stop"}


@pytest.mark.parametrize(
    "changed",
    [
        {"num_attention_heads": (1 << 39) + 1},
        {"num_attention_heads": 10**30 + 1, "num_key_value_heads": 10**30},
        {"layer_types": 5},
        {"layer_types": {"a": 1}},
        {"block_configs": [{"attention": {"n_heads_in_group": 1}}], "head_dim": "x"},
        {"attn_type_list": [0, 1], "head_dim": ["x"]},
        {"text_config": {"num_hidden_layers": "x"}},
        {"hidden_size": {"a": [[[]]]}},
    ],
    ids=str,
)
def test_a_config_that_is_garbage(changed: dict[str, Any]) -> None:
    """Also on the node itself, where the checks of the settings read it: a number of heads is no reason to count to it."""
    sheets = pair(busy=False)
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, **changed}
    whole = {
        name: replace(sheet, models=tuple(replace(one, config=config) for one in sheet.models or ()))
        for name, sheet in sheets.items()
    }
    spec = qwen35()
    assert fit_all(spec, whole, GIVEN).sentence
    assert list(settings.check(spec, list(whole.values())))
    assert isinstance(kvcache.is_hybrid_gdn(config), bool)
    kvcache.cache({**config, "num_attention_heads": 2})


def test_too_many_nodes_and_services_are_refused() -> None:
    nodes = tuple(f"n{number}" for number in range(MOST_NODES + 1))
    spec = qwen35(nodes=nodes, tensor_parallel=len(nodes))
    assert [one.field for one in validate(spec)] == ["nodes"]
    alone = qwen35(nodes=("spark-1a32",), cluster="single", tensor_parallel=1, container="")
    parts = tuple(replace(alone, service=f"s{number}", port=31000 + number) for number in range(MOST_SERVICES))
    assert [one.field for one in validate(replace(alone, services=parts))] == ["services"]
    assert not validate(replace(alone, services=parts[:-1]))


def test_services_within_services_are_not_followed() -> None:
    deep: dict[str, Any] = {"model": "a/b", "model_path": ""}
    for _ in range(2000):
        deep = {"model": "a/b", "model_path": "", "services": [deep]}
    with pytest.raises(ValueError, match="too deeply"):
        Spec.from_json({**deep, "name": "a", "nodes": ["n"]})
