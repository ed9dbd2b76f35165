"""The examples of docs/recipes.md are read as it says; its table has every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apps.recipes.formats import bodies
from apps.recipes.formats.imported import taken
from apps.recipes.formats.recognise import FAMILIES, read

TEXT = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
EXAMPLES = re.findall(
    r"<!-- reads as ([a-z ]+), (\d+) nodes?(?:, waits: ([a-z, ]+))? -->\n```\w+\n(.*?)```", TEXT, re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_each_example_is_read_as_it_says(example: tuple[str, str, str, str]) -> None:
    family, nodes, waits, text = example
    found = read(text)
    assert (found.family, found.world_size) == (family, int(nodes))
    assert sorted({one.kind for one in found.held}) == sorted(filter(None, waits.split(", ")))
    assert bodies.errors(taken(found.body, found.held), found.world_size) == []


def test_every_family_has_one_and_every_field_is_named() -> None:
    assert {example[0] for example in EXAMPLES} == set(FAMILIES)
    table = TEXT.partition("| field | is |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(bodies.FIELDS)
