"""Written in any format and read again, a recipe is the same once everything that was held is taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.recipes.formats import bodies, compose, eugr, own, sparkrun
from apps.recipes.formats.imported import taken
from apps.recipes.formats.recognise import read
from tests.recipes import strategies as make

ENGINES = ("vllm", "sglang", "llamacpp", "command")
KNOWN = [
    engine
    for engine in ENGINES
    if not bodies.errors(
        {
            "model": "m",
            "image": "i",
            "engine": engine,
            "arguments": ["x"] if engine == "command" else [],
            "cluster": "single",
        },
        1,
    )
]
CALM = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=20).map(str.strip).filter(bool)
WRITERS = {"sparkweb": own.write, "eugr": eugr.write, "sparkrun": sparkrun.write, "compose": compose.write}
CANNOT = {"eugr": ("sglang", "llamacpp", "command"), "sparkrun": ("command",)}


def check(family: str, name: str, body: dict[str, Any], nodes: int) -> None:
    text = WRITERS[family](name=name, description="Two lines,\nas people write: them", world_size=nodes, body=body)
    found = read(text)
    assert found.family == family, text
    assert found.world_size == nodes, text
    assert bodies.normal(taken(found.body, found.held)) == bodies.normal(body), text
    assert found.name == name or family == "compose"


@pytest.mark.parametrize("engine", KNOWN)
def test_any_body(engine: str) -> None:
    @CALM
    @given(make.body_fields(engine=engine, runtime="docker").filter(make.valid), NAMES)
    def run(body: dict[str, Any], name: str) -> None:
        for family in WRITERS:
            if engine not in CANNOT.get(family, ()):
                check(family, name, body, make.nodes(body))

    run()


@CALM
@given(make.body_fields(engine="vllm", runtime="process").filter(make.valid), make.PATH)
def test_a_process_in_our_own_words(body: dict[str, Any], program: str) -> None:
    check("sparkweb", "n", {**body, "executable": program}, make.nodes(body))


@CALM
@given(
    make.body_fields(engine="vllm", runtime="docker").filter(make.valid),
    make.body_fields(engine="vllm", runtime="docker"),
)
def test_with_a_further_service(body: dict[str, Any], more: dict[str, Any]) -> None:
    part = {
        **more,
        "service": "embeddings",
        "kind": "embeddings",
        "cluster": "single",
        "container": "embed-x",
        "port": 1025,
    }
    whole = {**body, "port": 2000, "container": "main-x", "services": [part]}
    if make.valid(whole):
        for family in WRITERS:
            check(family, "n", whole, make.nodes(whole))
