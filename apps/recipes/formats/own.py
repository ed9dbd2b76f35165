"""sparkweb's own YAML of a recipe: name, description, nodes and the Spec's fields. Also the part of our fields that other
formats have no words for, which they carry under a key of ours."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from apps.plan.spec import MOST_NODES
from apps.recipes.formats import bodies
from apps.recipes.formats.imported import Draft, Unreadable, taken
from apps.recipes.formats.reading import Fields
from apps.recipes.formats.screening import is_masked
from apps.recipes.formats.yaml_text import Document, dump

KEYS = ("sparkweb", "name", "description", "nodes", "spec")
FORMAT = 1


def read(document: Document, text: str) -> Draft:
    """Raises Unreadable, naming line and field."""
    fields = Fields(document)
    for key in fields.value:
        if key not in KEYS:
            raise _unknown(fields, key, KEYS)
    if fields.value.get("sparkweb", FORMAT) != FORMAT:
        raise Unreadable(
            f"sparkweb: {fields.as_text(fields.value['sparkweb'])[:40]} is no format that is known",
            f"Write sparkweb: {FORMAT}.",
            line=fields.line("sparkweb"),
            field="sparkweb",
        )
    draft = Draft("sparkweb", text)
    draft.name, draft.description = fields.text("name"), fields.text("description")
    draft.world_size = nodes_of(fields, "nodes")
    draft.body = body_of(document, fields.mapping("spec"), "spec")
    draft.lines = {
        path.removeprefix("spec."): line for path, line in document.lines.items() if path.startswith("spec.")
    }
    return draft


def nodes_of(fields: Fields, key: str) -> int:
    value = fields.value.get(key, 1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_NODES:
        raise Unreadable(
            f"{fields.at(key)} must be a number from 1 to {MOST_NODES}",
            "Write how many nodes it wants.",
            line=fields.line(key),
            field=fields.at(key),
        )
    return value


def body_of(document: Document, value: Mapping[str, Any], path: str, *, nested: bool = False) -> dict[str, Any]:
    """Spec fields as YAML has them -> as a version keeps them. Raises Unreadable for what is no field or has another shape."""
    fields = Fields(document, dict(value), path)
    made: dict[str, Any] = {}
    for key, inner in value.items():
        if key not in bodies.FIELDS or (nested and key == "services"):
            raise _unknown(fields, key, bodies.FIELDS)
        if inner is None:
            continue
        if key == "arguments":
            made[key] = [_word(fields, f"{key}[{place}]", one) for place, one in enumerate(fields.items(key))]
        elif key == "environment":
            made[key] = [list(pair) for pair in _pairs(fields, key)]
        elif key == "secrets":
            made[key] = [{"variable": variable, "name": name} for variable, name in _secrets(fields, key)]
        elif key == "services":
            made[key] = _services(fields)
        elif isinstance(inner, list | dict):
            raise Unreadable(
                f"{fields.at(key)} must be one value",
                f"Write {key}: value.",
                line=fields.line(key),
                field=fields.at(key),
            )
        else:
            made[key] = inner
    return made


def _services(fields: Fields) -> list[dict[str, Any]]:
    made = []
    for place, one in enumerate(fields.items("services")):
        path = fields.at(f"services[{place}]")
        if not isinstance(one, dict):
            raise Unreadable(
                f"{path} must be a mapping", "Write its fields.", line=fields.document.line(path), field=path
            )
        made.append(body_of(fields.document, one, path, nested=True))
    return made


def _word(fields: Fields, path: str, value: Any) -> str:
    if is_masked(value):
        return fields.as_text(value)
    if isinstance(value, list | dict) or value is None:
        raise Unreadable(
            f"{fields.at(path)} must be one word",
            "Put a word with braces or colons between quotes.",
            line=fields.line(path),
            field=fields.at(path),
        )
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _pairs(fields: Fields, key: str) -> list[tuple[str, str]]:
    value = fields.value.get(key)
    if isinstance(value, dict):
        return [(name, _word(fields, f"{key}.{name}", one)) for name, one in value.items()]
    made = []
    for place, one in enumerate(fields.items(key)):
        path = f"{key}[{place}]"
        if not isinstance(one, list) or len(one) != 2:
            raise Unreadable(
                f"{fields.at(path)} must be a pair",
                f"Write the names below {key}, each with a colon and its value.",
                line=fields.line(path),
                field=fields.at(path),
            )
        made.append((_word(fields, f"{path}[0]", one[0]), _word(fields, f"{path}[1]", one[1])))
    return made


def _secrets(fields: Fields, key: str) -> list[tuple[str, str]]:
    value = fields.value.get(key)
    if isinstance(value, list) and all(isinstance(one, dict) and set(one) == {"variable", "name"} for one in value):
        return [
            (_word(fields, f"{key}[{at}].variable", one["variable"]), _word(fields, f"{key}[{at}].name", one["name"]))
            for at, one in enumerate(value)
        ]
    return _pairs(fields, key)


def _unknown(fields: Fields, key: str, known: tuple[str, ...]) -> Unreadable:
    near = difflib.get_close_matches(key[:60], known, 1)
    remedy = f"Did you mean {near[0]}?" if near else f"Those that exist: {', '.join(known)}."
    return Unreadable(f"{fields.at(key)[:100]} is no field", remedy, line=fields.line(key), field=fields.at(key)[:100])


def write(*, name: str, description: str, world_size: int, body: Mapping[str, Any], also: Collection[str] = ()) -> str:
    """The whole recipe as YAML that `read` takes back equal. `also`: fields that are written even where they have a Spec's own
    value."""
    made: dict[str, Any] = {"sparkweb": FORMAT, "name": name}
    if description:
        made["description"] = description
    return dump({**made, "nodes": world_size, "spec": readable(bodies.given(body, also))})


def readable(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body as people write it: variables and secrets as mappings, where no name stands twice."""
    made = dict(body)
    pairs = [(str(name), str(value)) for name, value in body.get("environment", ())]
    if pairs and len(dict(pairs)) == len(pairs):
        made["environment"] = dict(pairs)
    secrets = [(one["variable"], one["name"]) for one in body.get("secrets", ())]
    if secrets and len(dict(secrets)) == len(secrets):
        made["secrets"] = dict(secrets)
    if body.get("services"):
        made["services"] = [readable(one) for one in body["services"]]
    return made


# What other formats carry for us


def take_carried(draft: Draft, document: Document, path: str) -> None:
    """Lay our own fields over what was read. `path`: the key of ours, a mapping with `nodes` and `spec`. Raises Unreadable."""
    value: Any = document.value
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return
    fields = Fields(document, value, path)
    if "nodes" in value:
        draft.world_size = nodes_of(fields, "nodes")
    over = body_of(document, fields.mapping("spec"), f"{path}.spec")
    draft.overruled(tuple(over))
    draft.body.update(over)


def carried(body: Mapping[str, Any], world_size: int, read: Draft) -> dict[str, Any]:
    """What the key of ours must say so that reading the text gives this body: the fields that its own words do not give."""
    found = taken(plain(read.body), read.held)
    wanted, given = bodies.normal(body), bodies.normal(found)
    made = {name: value for name, value in wanted.items() if value != given[name] and name != "services"}
    beside = bodies.normal({**found, **made})["services"]  # a further service takes some values from the main one
    if beside != wanted["services"]:
        made["services"] = [bodies.given(one) for one in wanted["services"]]
    spec = readable(made)
    return {**({"nodes": world_size} if world_size != read.world_size else {}), **({"spec": spec} if spec else {})}


def plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body that was read but not screened yet, with its variables as pairs."""
    made = {**body, "environment": [entry[:2] for entry in body.get("environment", ()) if entry[1] is not None]}
    if body.get("services"):
        made["services"] = [plain(one) for one in body["services"]]
    return made
