"""Side by side: regression against the best known good, the roofline's arithmetic, plots, references and files."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from apps.benchmarks import bandwidth, compared, exporting, references, roofline
from apps.benchmarks.compared import Row
from apps.pages import plots
from apps.plan import catalogue, weights
from apps.plan.weights import Split

FIELD = {1: (26, 27, 0.48), 2: (41, 21, 0.86), 4: (71, 19, 1.48), 8: (94, 12, 2.29), 16: (144, 10, 3.20)}


def row(name: str = "1", *, faster: float = 1.0, later: float = 1.0, good: bool = False, **over: Any) -> Row:
    levels = [
        {
            "concurrency": at,
            "aggregate_tok_s": total * faster,
            "per_request_tok_s": {"p50": each * faster},
            "ttft_s": {"p50": first * later},
        }
        for at, (total, each, first) in FIELD.items()
    ]
    subject = {
        "model": "Qwen/Qwen3.5-122B-A10B-FP8",
        "engine": "vllm",
        "hardware": "2 × DGX Spark (GB10)",
        "tensor_parallel": 2,
    }
    result = {
        "source": "measured",
        "subject": subject | over.pop("subject", {}),
        "settings": {"mode": "closed", "prompt_tokens": 512, "output_tokens": 256} | over.pop("settings", {}),
        "levels": levels,
    }
    return Row(name, f"result {name}", result | over, good)


# References


def test_the_fields_rows_are_shipped_and_marked() -> None:
    first, rtx, community = references.shipped()
    assert all(one.result["source"] == "reference" and one.result["where"] for one in references.shipped())
    found = {
        level["concurrency"]: (level["aggregate_tok_s"], level["per_request_tok_s"]["p50"], level["ttft_s"]["p50"])
        for level in first.result["levels"]
    }
    assert found == FIELD
    assert rtx.result["levels"][0]["aggregate_tok_s"] == 277 and community.result["levels"][0]["aggregate_tok_s"] == 75


# The best known good


def test_slower_or_later_is_a_regression() -> None:
    good = [row("good", good=True)]
    assert not compared.judge(row("same"), good).regression
    assert not compared.judge(row("a little", faster=0.91, later=1.2), good).regression
    slower = compared.judge(row("slower", faster=0.85), good)
    assert slower.regression and {one.figure for one in slower.worse} == {"aggregate"} and len(slower.worse) == 5
    assert slower.worse[0].sentence == "22.1 instead of 26 tokens/s at 1 (15% fewer)"
    later = compared.judge(row("later", later=1.3), good)
    assert [one.figure for one in later.worse] == ["ttft"] * 5 and "30% later" in later.worse[0].sentence


def test_a_blink_later_is_none() -> None:
    good = row("good")
    for level in good.levels:
        level["ttft_s"]["p50"] = 0.05  # type: ignore[index]
    now = row("now")
    for level in now.levels:
        level["ttft_s"]["p50"] = 0.12  # type: ignore[index]
    assert not compared.judge(now, [good]).regression


@pytest.mark.parametrize(
    "over",
    [
        {"subject": {"model": "other"}},
        {"subject": {"hardware": "RTX PRO 6000"}},
        {"subject": {"engine": "sglang"}},
        {"settings": {"prompt_tokens": 2048}},
        {"settings": {"mode": "open"}},
    ],
)
def test_another_test_is_not_compared(over: dict[str, Any]) -> None:
    assert compared.judge(row("now", faster=0.1), [row("good", **over)]).against is None


def test_the_best_of_several_good_ones_counts_and_never_itself() -> None:
    better, worse = row("better", faster=1.3), row("worse", faster=0.9)
    assert compared.judge(row("now"), [worse, better]).against == better
    assert compared.judge(better, [better]).against is None


# Side by side


def test_table_and_differences() -> None:
    rows = [row("1"), Row("2", "loose", {"levels": [{"aggregate_tok_s": 277}], "subject": {"model": "x"}})]
    assert compared.concurrencies(rows) == [1, 2, 4, 8, 16]
    (_, values, loose), (_, none, alone) = compared.table(rows, "aggregate")
    assert values == [26, 41, 71, 94, 144] and loose == [] and none == [None] * 5 and alone == [277]
    assert dict(compared.differences(rows))["model"] == ["Qwen/Qwen3.5-122B-A10B-FP8", "x"]
    assert compared.differences([rows[0], row("3")]) == []


# Plots


@pytest.mark.parametrize(
    ("largest", "last", "count"),
    [(144, 150, 4), (27, 30, 4), (3.2, 4, 5), (0.05, 0.05, 6), (16, 20, 5), (0, 1, 2), (1e6, 1e6, 6)],
)
def test_axes_begin_at_zero_and_hold_everything(largest: float, last: float, count: int) -> None:
    found = plots.ticks(largest)
    assert found[0] == 0 and found[-1] >= largest and len(found) <= 7
    assert found[1] - found[0] == pytest.approx(found[-1] - found[-2])


def test_a_plot_is_linear_and_without_style() -> None:
    text = plots.across(
        [plots.Series("<b>", ((1, 10), (2, 20), (4, 40)), 0), plots.Series("none", (), 1)],
        label="a & b",
        x_name="concurrency",
        y_name="tokens/s",
    )
    assert "style=" not in text and "<b>:" not in text and "&lt;b&gt;" in text
    line = text.split('class="plot-line" d="M')[1].split('"')[0]
    points = [tuple(map(float, each.split())) for each in line.split("L")]
    (x1, y1), (x2, y2), (x4, y4) = points
    assert (x4 - x2) == pytest.approx(2 * (x2 - x1), abs=0.3) and (y2 - y4) == pytest.approx(2 * (y1 - y2), abs=0.3)
    assert plots.across([], label="", x_name="", y_name="") == ""


def test_a_thousand_series_do_not_break_the_plot() -> None:
    many = [plots.Series(f"s{at}", ((1, at), (2, at + 1)), at % plots.MOST_SERIES) for at in range(1000)]
    assert plots.across(many, label="x", x_name="x", y_name="y").count("plot-line") == 1000


# The roofline


def test_dense_arithmetic_by_hand() -> None:
    """Llama 3.1 8B in 16 bit on one GB10: all weights but the embedding, and 131,072 bytes of cache a token."""
    known = catalogue.find("meta-llama/Llama-3.1-8B-Instruct")
    assert known is not None
    found = roofline.step(roofline.Model(known.config), Split(), batch=4, context=1000)
    assert isinstance(found, roofline.Step)
    layers = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    assert found.dense == pytest.approx(2 * (layers + 128256 * 4096), rel=1e-3)
    assert found.experts == 0 and found.cache == 4 * 1000 * 131072


def test_experts_that_a_batch_touches() -> None:
    known = catalogue.find("openai/gpt-oss-120b")
    assert known is not None and weights.experts_of(known.config) == (128, 4)
    steps = [roofline.step(roofline.Model(known.config), Split(), batch=at, context=0) for at in (1, 2, 4096)]
    one, two, all_ = (each.experts for each in steps if isinstance(each, roofline.Step))
    assert one / all_ == pytest.approx(4 / 128) and two / all_ == pytest.approx(1 - (1 - 4 / 128) ** 2)


def test_the_fields_27_tokens_are_judged() -> None:
    first = references.shipped()[0].result
    known = catalogue.find(first["subject"]["model"])
    assert known is not None
    judged = roofline.judge(first, roofline.Model(known.config), Split(2), bandwidth.of(first["subject"]["hardware"]))
    assert judged.bandwidth is not None and judged.bandwidth.gb_s == 273 and judged.assumed and judged.context == 1024
    bound = judged.bounds[0]
    assert 45 < bound.per_request_tok_s < 60 and 0.4 < (bound.share or 0) < 0.6
    shares = [each.share or 0 for each in judged.bounds]
    assert shares == sorted(shares) and shares[-1] < 1


def test_tensor_parallel_halves_what_a_rank_reads() -> None:
    known = catalogue.find("Qwen/Qwen3-32B")
    assert known is not None
    one, two = (roofline.step(roofline.Model(known.config), Split(tp), batch=1, context=0) for tp in (1, 2))
    assert isinstance(one, roofline.Step) and isinstance(two, roofline.Step)
    assert two.bytes == pytest.approx(one.bytes / 2, rel=0.01)


def test_what_is_missing_is_said() -> None:
    one = row().result
    assert "bandwidth of 2 × DGX" in roofline.judge(one, roofline.Model(None), Split(), None).missing
    gb10 = bandwidth.of("GB10")
    assert "no config.json" in roofline.judge(one, roofline.Model(None), Split(), gb10).missing
    assert "no level" in roofline.judge({"levels": [{}]}, roofline.Model(None), Split(), gb10).missing


@pytest.mark.parametrize(
    ("text", "gb_s"),
    [
        ("2 × DGX Spark (GB10)", 273),
        ("NVIDIA GB10", 273),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597),
        ("RTX PRO 6000", 1792),
        ("8 × NVIDIA H200", 4800),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("GB10 and RTX PRO 6000", None),
        ("abacus", None),
        ("", None),
        (None, None),
    ],
)
def test_bandwidth_by_name(text: str | None, gb_s: float | None) -> None:
    found = bandwidth.of(text)
    assert (found.gb_s if found else None) == gb_s
    assert all(one.source for one in bandwidth.EVERY)


# Files


def test_csv_has_a_line_a_level_and_no_formulas() -> None:
    lines = list(csv.DictReader(io.StringIO(exporting.as_csv([row("1", note="=HYPERLINK(1)"), Row("2", "@x", {})]))))
    assert [line["concurrency"] for line in lines] == ["1", "2", "4", "8", "16", ""]
    assert lines[0]["ttft_s_p50"] == "0.48" and lines[0]["note"] == "'=HYPERLINK(1)" and lines[5]["name"] == "'@x"
    assert len(set(exporting.COLUMNS)) == len(exporting.COLUMNS)
