"""The description is sound, and docs/api.md speaks of every operation with bodies that it accepts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.api import problems, schemas
from apps.api.v1 import api
from apps.diagnosis.reasons import REASONS
from tests.api.conftest import Program
from tests.api.test_problems import is_problem

DOCS = Path(__file__).parents[2] / "docs" / "api.md"
METHODS = {"get", "post", "delete"}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/v1/")))  # type: ignore[no-any-return]


def inside(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from inside(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from inside(inner)


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, one) for path, all_ in schema["paths"].items() for method, one in all_.items()]


@pytest.mark.django_db
def test_it_is_served_to_those_who_may_look(program: Any) -> None:
    answer = program("viewer").get("openapi.json")
    assert answer.status == 200 and answer.body["openapi"].startswith("3.1")
    assert answer.body["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    is_problem(Program().get("openapi.json"), 401, "not_signed_in")
    is_problem(program("viewer").get("docs"), 404)


def test_every_reference_resolves(schema: dict[str, Any]) -> None:
    for part in inside(schema):
        reference = part.get("$ref")
        if isinstance(reference, str):
            place: Any = schema
            for step in reference.removeprefix("#/").split("/"):
                place = place[step]


def test_operations_are_told_apart_and_described(schema: dict[str, Any]) -> None:
    found = operations(schema)
    assert len({one["operationId"] for _, _, one in found}) == len(found) >= 28
    for method, path, one in found:
        assert method in METHODS
        assert one["description"].strip(), path
        named = {parameter["name"] for parameter in one.get("parameters", []) if parameter["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), path
        for status in ("401", "403", "422"):
            assert list(one["responses"][status]["content"]) == [problems.CONTENT_TYPE]
        good = [status for status in one["responses"] if status.startswith("2")]
        assert len(good) == 1, path
        assert good == ["204"] or "schema" in one["responses"][good[0]]["content"]["application/json"], path


def test_parameters_with_a_default_may_be_left_out(schema: dict[str, Any]) -> None:
    required = {
        (path, parameter["name"])
        for _, path, one in operations(schema)
        for parameter in one.get("parameters", [])
        if parameter["in"] != "path" and parameter["required"]
    }
    assert required == {("/api/v1/runs/{run_id}/search", "text")}


def test_every_start_takes_an_idempotency_key(schema: dict[str, Any]) -> None:
    for path in (
        "nodes",
        "nodes/{node_id}/probe",
        "nodes/{node_id}/scan",
        "nodes/{node_id}/unlock",
        "nodes/provision/start",
        "nodes/restore/start",
        "nodes/previous/start",
        *(f"deployments/{{deployment_id}}/{it}" for it in ("launch", "relaunch", "stop")),
    ):
        parameters = schema["paths"][f"/api/v1/{path}"]["post"]["parameters"]
        assert ("header", "Idempotency-Key") in {(one["in"], one["name"]) for one in parameters}, path


def test_the_spec_names_no_defaults(schema: dict[str, Any]) -> None:
    fields = schema["components"]["schemas"]["SpecBody"]["properties"]
    assert len(fields) > 20 and not any("default" in field for field in fields.values())


# The documentation


def examples() -> list[tuple[str, str, str]]:
    """(method, path without query, body) of each `api …` line."""
    found = []
    for line in DOCS.read_text().splitlines():
        if line.startswith("api "):
            words = shlex.split(line)
            method = words[words.index("-X") + 1] if "-X" in words else "GET"
            body = words[words.index("-d") + 1] if "-d" in words else ""
            address = next(word for word in words if word.startswith("$SPARKWEB"))
            found.append((method, address.removeprefix("$SPARKWEB").partition("?")[0], body))
    return found


def operation_of(schema: dict[str, Any], method: str, address: str) -> tuple[str, dict[str, Any]] | None:
    for path, all_ in schema["paths"].items():
        pattern = re.sub(r"{\w+}", "[^/]+", path)
        if re.fullmatch(pattern, f"/api/v1{address}") and method.lower() in all_:
            return path, all_[method.lower()]
    return None


@pytest.mark.parametrize("example", examples(), ids=lambda example: " ".join(example[:2]))
def test_each_example_is_an_operation_that_takes_its_body(
    schema: dict[str, Any], example: tuple[str, str, str]
) -> None:
    method, address, body = example
    found = operation_of(schema, method, address)
    assert found is not None, f"{method} {address} is in no path"
    if body:
        reference = json.dumps(found[1]["requestBody"]["content"]["application/json"]["schema"])
        name = re.search(r"schemas/(\w+)", reference)
        assert name is not None
        getattr(schemas, name[1]).model_validate(json.loads(body))


def test_every_operation_has_an_example(schema: dict[str, Any]) -> None:
    shown = set()
    for method, address, _ in examples():
        found = operation_of(schema, method, address)
        shown.add((method, found[0] if found else ""))
    assert {(method.upper(), path) for method, path, _ in operations(schema)} <= shown


def test_every_reason_of_the_request_is_documented() -> None:
    text = DOCS.read_text()
    for reason in problems.TITLES:
        assert reason in REASONS or f"`{reason}`" in text, reason
