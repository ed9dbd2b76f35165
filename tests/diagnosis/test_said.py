"""What programs say, one sample each in `said/*.txt`: `=== NAME {what must be recognised}`, then the output itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apps.diagnosis.explaining import as_json, explain_all
from apps.diagnosis.reasons import reason

_HEAD = re.compile(r"^=== (?P<name>\S+) (?P<wanted>\{.*\})\n", re.MULTILINE)


def _samples() -> list[Any]:
    found = []
    for path in sorted((Path(__file__).parent / "said").glob("*.txt")):
        text = path.read_text()
        heads = list(_HEAD.finditer(text))
        ends = [head.start() for head in heads[1:]] + [len(text)]
        for head, end in zip(heads, ends, strict=True):
            found.append(
                pytest.param(json.loads(head["wanted"]), text[head.end() : end], id=f"{path.stem}-{head['name']}")
            )
    return found


SAMPLES = _samples()
CARRIERS = {
    "docker logs -t": "2026-09-12T08:00:01.123456789Z {}",
    "compose": "vllm-1  | {}",
    "journald": "Sep 12 08:00:01 spark-a vllm[1234]: {}",
    "kubectl": "[pod/vllm-0/engine] {}",
}


def _told(text: str) -> dict[str, Any]:
    (reading,) = explain_all(text.encode())
    return as_json(reading)


@pytest.mark.parametrize(("wanted", "text"), SAMPLES)
def test_what_it_means(wanted: dict[str, Any], text: str) -> None:
    told = _told(text)
    failure = told["failure"] or {}
    assert (told["kind"], failure.get("reason")) == (wanted["kind"], wanted["reason"])
    assert told["ready"] is wanted.get("ready", False)
    assert {warning["name"] for warning in told["warnings"]} == set(wanted.get("warnings", ()))
    if failure:
        assert (failure["line_number"], failure["rank"]) == (wanted["line"], wanted.get("rank"))
        assert told["facts"]["cause"] == wanted["cause"]
        assert reason(wanted["cause"]).name == wanted["reason"]


@pytest.mark.parametrize(("wanted", "text"), SAMPLES)
def test_line_ends_and_colours_change_nothing(wanted: dict[str, Any], text: str) -> None:
    before = _told(text)
    assert _told(text.replace("\n", "\r\n")) == before
    if not text.lstrip().startswith(("{", "[", "data:", "HTTP/", ":")):
        coloured = "".join(f"\x1b[0;36m{line}\x1b[0m\n" for line in text.splitlines())
        assert _told(coloured)["failure"] == before["failure"]


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize(
    ("wanted", "text"), [sample for sample in SAMPLES if (sample.id or "").startswith(("vllm", "sglang"))]
)
def test_what_carried_a_log_is_no_part_of_it(wanted: dict[str, Any], text: str, carrier: str) -> None:
    carried = _told("".join(carrier.format(line) + "\n" for line in text.splitlines()))
    failure = carried["failure"] or {}
    assert (carried["kind"], failure.get("reason")) == (wanted["kind"], wanted["reason"])
    if failure:
        assert (failure["line_number"], failure["rank"]) == (wanted["line"], wanted.get("rank"))


def test_a_command_is_told_without_its_secrets() -> None:
    (reading,) = explain_all(
        json.dumps({"command": "vllm serve m --api-key not-to-be-seen", "rc": 1, "stdout": "", "stderr": "x"}).encode()
    )
    assert "not-to-be-seen" not in json.dumps(as_json(reading))


def test_numbers_count_outputs_and_names_tell_nodes_apart() -> None:
    one, two = "# 1\nKilled\n", "# 2\nINFO:     Application startup complete.\n"
    assert [reading.ready for reading in explain_all((one + two).encode())] == [False, True]
    named = "# spark-a\nINFO:     Application startup complete.\n# spark-b\nbash: line 1: docker: command not found\n"
    told = _told(named)
    assert told["failure"]["reason"] == "docker_missing" and {"spark-a", "spark-b"} <= set(told["facts"])
