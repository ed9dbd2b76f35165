"""What may be asked for, the plan that comes of it, and the reader of its progress. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.diagnosis.fetching import Reader
from apps.plan.fetching.wish import BadWish, wish_from
from apps.plan.step import Plan
from apps.plan.stories import fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repo", ""),
        ("repo", "../etc"),
        ("repo", "a/b/c"),
        ("repo", "-x/y"),
        ("repo", "a/b; rm -rf /"),
        ("repo", "a--b/c"),
        ("repo", 7),
        ("revision", "a..b"),
        ("revision", "-x"),
        ("revision", "a b"),
        ("include", ["$(x)"]),
        ("include", ["a\nb"] * 51),
        ("exclude", [7]),
        ("cache", "relative"),
        ("cache", "/a/../b"),
        ("cache", "/a\\b"),
        ("endpoint", "ftp://x"),
        ("endpoint", "https://user:pw@x"),
        ("endpoint", "https://x:port"),
        ("endpoint", "https://x/$(y)"),
        ("token", "hf_abcdef"),
        ("token", "a b"),
        ("tool", "wget"),
        ("streams", 0),
        ("streams", "many"),
        ("keep_free_gib", -1),
        ("folder", "models"),
        ("unknown", 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadWish) as problem:
        wish_from("spark", {"repo": "acme/tiny", field: value})
    assert problem.value.field == field
    assert problem.value.remedy


def test_a_folder_needs_a_commit() -> None:
    for revision in ("", "main"):
        with pytest.raises(BadWish) as problem:
            wish_from("spark", {"repo": "acme/tiny", "folder": "/models/x", "revision": revision})
        assert problem.value.field == "revision"


def test_a_form_and_the_api_say_the_same() -> None:
    form = {"repo": " https://huggingface.co/acme/tiny ", "include": "*.json\n\n*.safetensors", "streams": "8"}
    assert wish_from("spark", form) == wish_from(
        "spark", {"repo": "acme/tiny", "include": ["*.json", "*.safetensors"], "streams": 8}
    )


def test_the_plan_asks_fetches_and_shows() -> None:
    plan = fetch(wish_from("spark", {"repo": "acme/tiny", "token": "hub", "exclude": ["it's/*"[:2]]}))
    steps = [step for stage in plan.stages for step in stage.steps]
    assert [step.key for step in steps] == ["fetch.resolve.spark", "fetch.files.spark", "fetch.publish.spark"]
    assert [[one.name for one in step.secrets] for step in steps] == [["hub"], ["hub"], []]
    assert steps[1].gate == {"takes": {"SPARKWEB_COMMIT": "fetch.resolve.spark"}}
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_folder_is_taken_in_without_a_token() -> None:
    plan = fetch(wish_from("spark", {"repo": "acme/tiny", "folder": "/models/x", "revision": COMMIT, "token": "hub"}))
    steps = [step for stage in plan.stages for step in stage.steps]
    assert [step.key for step in steps] == ["fetch.adopt.spark", "fetch.publish.spark"]
    assert not any(step.secrets for step in steps)


def test_progress_is_the_same_however_it_is_cut() -> None:
    text = (
        b"with hf\n@fetch 0 1000 0 2 0\r@fetch 250 1000 0 2 50 | 200 600 a b/model.safetensors | 50 400 c.bin\r"
        b"@fetch nonsense\rhave c.bin, 400 B\n@fetch 200 1000 1 2 0\r"
    )
    whole = Reader()
    whole.feed(text)
    for size in (1, 7, 50):
        reader = Reader()
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
        assert reader.reading() == whole.reading()
    progress = whole.reading().progress
    assert progress is not None and (progress.overall, progress.done, progress.total) == (0.25, 200, 1000)
    middle = Reader()
    middle.feed(text[: text.index(b"@fetch nonsense")])
    found = middle.reading().progress
    assert found is not None and found.detail == {
        "files_done": 0,
        "files": 2,
        "rate": 50,
        "seconds_left": 15,
        "current": [
            {"path": "a b/model.safetensors", "done": 200, "size": 600},
            {"path": "c.bin", "done": 50, "size": 400},
        ],
    }
