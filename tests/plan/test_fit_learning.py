"""It learns: what launches said corrects the next prediction, with its error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.plan.fit import fit
from apps.plan.measured import Correction, Measured, correction, shape_of
from apps.plan.step import Fit, Plan
from tests.plan.sheets import GIVEN, pair, qwen35

GIB = 1 << 30


def predicted(found: Fit) -> Measured:
    """A launch that said exactly what was predicted."""
    said = found.predicted
    return Measured(
        said["model"],
        said["engine"],
        said["shape"],
        said["claim"],
        said["weights"],
        said["cache"],
        said["tokens"],
        said["weights"],
        said["cache"],
        said["tokens"],
    )


def test_the_next_prediction_is_what_the_launch_said() -> None:
    """Weights 3 % larger, 6 GiB for graphs instead of 4, and 5 % fewer tokens a byte: the next bar shows exactly that."""
    first = fit(qwen35(), pair(busy=False), GIVEN)
    one = predicted(first)
    assert one.claim and one.predicted_weights and one.predicted_tokens and one.predicted_cache
    weights = int(one.predicted_weights * 1.03)
    cache = one.claim - weights - 6 * GIB
    tokens = int(one.predicted_tokens * cache / one.predicted_cache * 0.95)
    said = replace(one, weights=weights, cache=cache, tokens=tokens)
    again = fit(qwen35(), pair(busy=False), replace(GIVEN, measured=(said,)))
    segments = dict(again.bars[0].segments)
    assert segments["weights"] == pytest.approx(weights, abs=2) and segments["graphs"] == 6 * GIB
    assert segments["kv"] + segments["state"] == pytest.approx(cache, abs=2)
    assert again.kv_tokens == pytest.approx(tokens, rel=1e-4)
    assert any(
        "Corrected by 1 launch that said what they took: weights +3.0 %, 6.0 GiB" in one for one in again.remarks
    )
    assert not any("is assumed" in one for one in again.remarks)
    assert again.predicted == {**first.predicted, "shown_weights": again.predicted["shown_weights"], "shown_cache": again.predicted["shown_cache"], "shown_tokens": again.predicted["shown_tokens"]}, "stored uncorrected, or it would correct itself"  # fmt: skip


def test_launches_that_agree_say_how_well() -> None:
    one = replace(predicted(fit(qwen35(), pair(busy=False), GIVEN)))
    assert one.claim and one.predicted_weights
    samples = []
    for share in (1.0, 1.02, 1.01):
        weights = int(one.predicted_weights * share)
        samples.append(replace(one, weights=weights, cache=one.claim - weights - 5 * GIB))
    made = correction(samples, model=one.model, engine="vllm", shape=one.shape)
    assert made.launches == 3 and made.weights == pytest.approx(1.01) and made.runtime == 5 * GIB
    assert made.error == pytest.approx(0.01 * one.predicted_weights / (samples[1].cache or 1), rel=0.05)
    assert "these agree within 1.4 %" in made.sentence, made.sentence


def test_only_what_is_comparable_counts() -> None:
    shape = shape_of(tensor=2, pipeline=1, cache_type="", length=131072)
    base = Measured("m", "vllm", shape, 100 * GIB, 50 * GIB, 40 * GIB, 1000, 51 * GIB, 43 * GIB, 2000)
    asked = {"model": "m", "engine": "vllm", "shape": shape}
    assert correction([base], **asked).tokens == pytest.approx(2000 / 43 / (1000 / 40))
    other = correction([replace(base, shape="tp4")], **asked)
    assert other.weights == pytest.approx(1.02) and other.tokens == 1.0, "tokens of another shape say nothing"
    for stranger in (replace(base, model="n"), replace(base, engine="sglang"), replace(base, weights=None)):
        assert correction([stranger], **asked) == Correction()
    assert correction([replace(base, weights=5 * GIB)], **asked) == Correction(), "a tenth is something else"
    assert correction([replace(base, cache=60 * GIB)], **asked).runtime is None, "more than the claim"
    assert correction([], **asked).sentence == ""


def test_a_stored_plan_keeps_all_of_it() -> None:
    found = fit(qwen35(), pair(busy=False), GIVEN)
    plan = Plan("launch", 7, 3, ("spark-1a32",), (), fit=found)
    assert Plan.from_json(plan.to_json()).fit == found
    older = plan.to_json()
    for name in ("remarks", "sequences", "length", "predicted"):
        del older["fit"][name]
    for bar in older["fit"]["bars"]:
        del bar["gpu"], bar["gpus"]
    kept = Plan.from_json(older).fit
    assert kept and kept.sentence == found.sentence and kept.bars == found.bars, "plans of earlier runs are read"
