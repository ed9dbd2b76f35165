"""What people do to recipes: write, import, edit, duplicate and archive them, and decide what an imported one may do.

A version is a draft until a deployment is made from it; from then on it never changes, and an edit makes the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import OuterRef, Subquery
from django.utils import timezone
from django.utils.text import slugify

from apps.audit import record
from apps.audit.actor import Actor
from apps.diagnosis.masking import mask_text
from apps.diagnosis.open_secrets import in_line
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.people.access import authorize
from apps.plan.spec import MOST_NODES
from apps.recipes.formats import bodies, recognise
from apps.recipes.formats.imported import MAIN, NOWHERE, Held, Imported, Unreadable, taken
from apps.recipes.models import Recipe, RecipeVersion

SHIPPED = Path(__file__).parent / "shipped"
LARGEST_BODY = 1 << 18  # characters of a body's JSON
LONGEST_NAME, LONGEST_DESCRIPTION, LONGEST_REASON = 120, 4000, 2000
UNTESTED = "untested on hardware"
MOST_ALIKE = 1000  # recipes of one name


def current_version(recipe: Recipe) -> RecipeVersion:
    return recipe.versions.latest("number")


def newest_of(recipes: Iterable[Recipe]) -> dict[int, RecipeVersion]:
    """By a recipe's id its newest version, in one query however many there are; without the imported texts."""
    ids = [one.pk for one in recipes]
    newest = RecipeVersion.objects.filter(recipe=OuterRef("pk")).order_by("-number").values("pk")[:1]
    wanted = Recipe.objects.filter(pk__in=ids).annotate(newest=Subquery(newest)).values("newest")
    rows = RecipeVersion.objects.filter(pk__in=wanted).select_related("recipe").defer("source")
    return {one.recipe_id: one for one in rows}


def version_of(recipe: Recipe, number: int | None) -> RecipeVersion:
    """A version by its number, the newest for None. Raises Refused (404)."""
    if number is None:
        return current_version(recipe)
    found = recipe.versions.filter(number=number).first() if 0 < number < 1 << 31 else None
    if found is None:
        remedy = "Look at the recipe for those that exist."
        raise Refused(
            "not_found", f"{recipe.name} has no version {str(number)[:20]}.", field="version", status=404, remedy=remedy
        )
    return found


@transaction.atomic
def load_shipped() -> int:
    """Bring the recipes that come with sparkweb into the database; a changed file becomes a new version. Returns how many changed."""
    changed = 0
    for path in sorted(SHIPPED.glob("*.json")):
        body: dict[str, Any] = json.loads(path.read_text())
        recipe, _ = Recipe.objects.get_or_create(slug=path.stem, defaults={"name": body["name"], "shipped": True})
        newest = recipe.versions.order_by("-number").first()
        if newest is not None and newest.body == body["spec"]:
            continue
        Recipe.objects.filter(pk=recipe.pk).update(name=body["name"], description=body["description"])
        RecipeVersion.objects.create(
            recipe=recipe,
            number=1 if newest is None else newest.number + 1,
            body=body["spec"],
            world_size=body["world_size"],
            tested_on=body["tested_on"],
            created_by="sparkweb",
        )
        changed += 1
    return changed


# Write and edit


@transaction.atomic
def create(
    actor: Actor, *, name: str, description: str = "", world_size: int = 1, body: Mapping[str, Any], note: str = ""
) -> Recipe:
    """A new recipe with its first version, a draft. Raises Refused for the first field that is wrong."""
    authorize(actor, "edit_recipes")
    kept = _checked(name=name, description=description, world_size=world_size, body=body, note=note)
    made = _named_recipe(name, description)
    version = RecipeVersion.objects.create(
        recipe=made, number=1, body=kept, world_size=world_size, note=note.strip(), created_by=actor.name
    )
    _record(actor, "recipe:added", version, after=_whole(version))
    return made


@transaction.atomic
def edit(
    actor: Actor,
    recipe: Recipe,
    *,
    name: str,
    description: str,
    world_size: int,
    body: Mapping[str, Any],
    note: str = "",
    seen: str = "",
) -> RecipeVersion:
    """Change the newest version while it is a draft, else add the next. `seen`: the `digest` of what was edited; when
    somebody changed it in between, nothing is written. Raises Refused."""
    authorize(actor, "edit_recipes", recipe)
    found = _locked(recipe)
    if found.shipped:
        raise Refused(
            "in_use",
            f"{found.name} comes with sparkweb and stays as it is.",
            status=409,
            remedy="Duplicate it, and edit that.",
        )
    version = current_version(found)
    if seen and seen != digest(version):
        raise Refused(
            "recipe_changed",
            f"{version.changed_by or version.created_by} changed {found.name} while you edited it.",
            status=409,
            remedy="Look at the newest version and edit that.",
        )
    kept = _checked(name=name, description=description, world_size=world_size, body=body, note=note)
    before = _whole(version)
    Recipe.objects.filter(pk=found.pk).update(name=name.strip(), description=description.strip())
    found.refresh_from_db()
    changes: dict[str, Any] = {"body": kept, "world_size": world_size, "note": note.strip()}
    waiting = _moved(actor, version, kept)
    if (kept, world_size) == (version.body, version.world_size) and version.used_at:
        changes, version = {}, version
    elif version.used_at is None:
        changes |= {"changed_at": timezone.now(), "changed_by": actor.name}
    else:
        version = _next(actor, version)
    for field, value in changes.items():
        setattr(version, field, value)
    if changes:
        version.quarantine = waiting
    version.save()
    version.recipe = found
    after = _whole(version)
    if before != after:
        _record(actor, "recipe:changed", version, before=before, after=after)
    return version


def _moved(actor: Actor, version: RecipeVersion, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was held, each item at the place that its further service has in the new body. One whose service is gone is left out
    with it: it must not fall to another."""
    before = [one.get("service") for one in version.body.get("services") or ()]
    after = [one.get("service") for one in body.get("services") or ()]
    made = []
    for item in version.quarantine:
        place = item["place"]
        name = before[place] if 0 <= place < len(before) else None
        if place == MAIN or name in after:
            made.append(item if place == MAIN else {**item, "place": after.index(name)})
        elif item["decision"]:
            made.append({**item, "place": NOWHERE})
        else:
            gone = {"decision": "left", "by": actor.name, "when": timezone.now().isoformat()}
            made.append({**item, "place": NOWHERE, **gone, "reason": "Its service was taken out of the recipe."})
    return made


def _next(actor: Actor, version: RecipeVersion) -> RecipeVersion:
    return RecipeVersion(
        recipe=version.recipe,
        number=version.number + 1,
        family=version.family,
        extra=version.extra,
        quarantine=version.quarantine,
        tested_on=UNTESTED,
        created_by=actor.name,
    )


@transaction.atomic
def duplicate(actor: Actor, version: RecipeVersion, *, name: str) -> Recipe:
    """A recipe of its own that begins as this version is, with what waits for a decision still waiting."""
    authorize(actor, "edit_recipes", version.recipe)
    _checked_text("name", name, LONGEST_NAME, needed=True)
    made = _named_recipe(name, version.recipe.description)
    copy = RecipeVersion.objects.create(
        recipe=made,
        number=1,
        created_by=actor.name,
        note=f"from {version.recipe.name[:120]} v{version.number}",
        **{field: getattr(version, field) for field in COPIED},
    )
    _record(actor, "recipe:duplicated", copy, after={**_whole(copy), "from": str(version)})
    return made


HARMLESS = ("node",)  # kinds that neither run code nor widen rights: an editor may take them over too
COPIED = ("body", "world_size", "family", "source", "source_sha256", "extra", "notes", "quarantine")


# Import


def read_text(text: str, *, family: str = "") -> Imported:
    """What an import would make of a text; nothing is kept. Raises Refused with the line."""
    try:
        return recognise.read(text, family=family)
    except Unreadable as problem:
        where = f"Line {problem.line}: " if problem.line else ""
        message = mask_text(problem.message)
        raise Refused(
            "bad_input",
            f"{where}{message if where else message[:1].upper() + message[1:]}.",
            field=problem.field if problem.field in ("family",) else "text",
            remedy=problem.remedy,
            extra={"line": problem.line or None},
        ) from None


@transaction.atomic
def import_text(actor: Actor, *, text: str, name: str = "", family: str = "") -> Recipe:
    """Read a recipe of another format and keep it as a draft, with what was held waiting for a decision. A secret's value is
    not kept. Raises Refused."""
    authorize(actor, "edit_recipes")
    found = read_text(text, family=family)
    title = (
        name.strip() or " ".join(found.name.split()) or found.body.get("model", "") or f"Imported from {found.family}"
    )
    _checked_text("name", title, LONGEST_NAME, needed=True)
    body = bodies.stored(found.body)
    _checked_size(body)
    made = _named_recipe(title, found.description)
    version = RecipeVersion.objects.create(
        recipe=made,
        number=1,
        body=body,
        world_size=found.world_size,
        created_by=actor.name,
        family=found.family,
        source=found.source,
        source_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        extra=found.extra,
        notes=[asdict(one) for one in found.notes],
        quarantine=[{**asdict(one), "decision": "", "by": "", "when": "", "reason": ""} for one in found.held],
    )
    waiting = [one["text"][:200] for one in version.waiting]
    after = {**_whole(version), "family": found.family, "sha256": version.source_sha256, "waiting": waiting}
    _record(actor, "recipe:imported", version, after=after)
    return made


@transaction.atomic
def decide(
    actor: Actor, version: RecipeVersion, *, take: Sequence[str] = (), leave: Sequence[str] = (), reason: str
) -> RecipeVersion:
    """Decide what waits: `take` puts items into the body (approve_recipes, but for HARMLESS kinds), `leave` does without them.
    Both name items by key. Raises Refused, and Denied."""
    authorize(actor, "edit_recipes", version.recipe)
    if any(one["key"] in take and one["kind"] not in HARMLESS for one in version.quarantine):
        authorize(actor, "approve_recipes", version.recipe)
    if not reason.strip():
        raise Refused("bad_input", "A decision needs a reason.", field="reason", remedy="Say in a few words why.")
    _checked_text("reason", reason, LONGEST_REASON)
    _locked(version.recipe)
    found = RecipeVersion.objects.select_related("recipe").get(pk=version.pk)
    items = _to_decide(found, take, leave)
    before = dict(found.body)
    for item in items:
        decision = "taken" if item["key"] in take else "left"
        item.update(decision=decision, by=actor.name, when=timezone.now().isoformat(), reason=reason.strip())
    chosen = [held_of(item) for item in items if item["decision"] == "taken"]
    found.body = bodies.stored(taken(found.body, chosen))
    found.save(update_fields=["body", "quarantine"])
    for decision, tag in (("taken", "recipe:approved"), ("left", "recipe:left_out")):
        texts = [f"{item['path']}: {item['text'][:200]}" for item in items if item["decision"] == decision]
        if texts:
            after = {"items": texts, "body": found.body}
            _record(actor, tag, found, before={"body": before}, after=after, reason=reason.strip())
    return found


def held_of(item: Mapping[str, Any]) -> Held:
    """An item of a version's quarantine as the importer made it."""
    return Held(**{field: item[field] for field in ("key", "kind", "path", "text", "line", "takes", "place", "at")})


def _to_decide(version: RecipeVersion, take: Sequence[str], leave: Sequence[str]) -> list[dict[str, Any]]:
    waiting = {item["key"]: item for item in version.waiting}
    both = set(take) & set(leave)
    strangers = [key for key in (*take, *leave) if key not in waiting]
    if not (take or leave) or both or strangers:
        said = (
            f"{sorted(both)[0][:20]} is both taken and left out."
            if both
            else f"{strangers[0][:20]} does not wait for a decision."
            if strangers
            else "Nothing was chosen."
        )
        raise Refused("bad_input", said, field="decision", remedy="Choose for each item one of the two.", status=422)
    without = next((key for key in take if not waiting[key]["takes"]), None)
    if without:
        raise Refused(
            "bad_input",
            f"sparkweb has no place for {waiting[without]['path'][:80]} and never does it.",
            field="decision",
            remedy="Leave it out.",
        )
    return [item for item in version.quarantine if item["key"] in (*take, *leave)]


# Use


def check_deployable(version: RecipeVersion) -> None:
    """Raises Refused while something of it waits for a decision, or its recipe is archived."""
    if version.recipe.archived_at is not None:
        raise Refused(
            "in_use", f"{version.recipe.name} is archived.", field="recipe", status=409, remedy="Bring it back first."
        )
    count = len(version.waiting)
    if count:
        raise Refused(
            "approval_needed",
            f"{count} thing{'s' if count > 1 else ''} of {version} wait{'' if count > 1 else 's'} for a decision.",
            field="recipe",
            status=409,
            remedy="Open the recipe and decide what may be taken over.",
        )


def mark_used(version: RecipeVersion) -> None:
    """A deployment was made from it: from now on it never changes. Call it in the transaction that makes the deployment."""
    RecipeVersion.objects.filter(pk=version.pk, used_at=None).update(used_at=timezone.now())


@transaction.atomic
def mark_tested(actor: Actor, version: RecipeVersion, *, tested_on: str, reason: str = "") -> RecipeVersion:
    """Say on what hardware a version was seen to work; no part of what it does, so a used version may be marked too."""
    authorize(actor, "edit_recipes", version.recipe)
    text = tested_on.strip() or UNTESTED
    _checked_text("tested_on", text, 200)
    before = version.tested_on
    if text == before:
        return version
    version.tested_on = text
    version.save(update_fields=["tested_on"])
    _record(
        actor, "recipe:tested", version, before={"tested_on": before}, after={"tested_on": text}, reason=reason.strip()
    )
    return version


@transaction.atomic
def archive(actor: Actor, recipe: Recipe, *, reason: str = "") -> Recipe:
    """It leaves the lists; deployments made from it stay as they are."""
    return _set_archived(actor, recipe, archived=True, reason=reason)


@transaction.atomic
def unarchive(actor: Actor, recipe: Recipe, *, reason: str = "") -> Recipe:
    return _set_archived(actor, recipe, archived=False, reason=reason)


def _set_archived(actor: Actor, recipe: Recipe, *, archived: bool, reason: str) -> Recipe:
    authorize(actor, "edit_recipes", recipe)
    _checked_text("reason", reason, LONGEST_REASON)
    found = _locked(recipe)
    if (found.archived_at is not None) == archived:
        return found
    found.archived_at = timezone.now() if archived else None
    found.save(update_fields=["archived_at"])
    tag = "recipe:archived" if archived else "recipe:unarchived"
    _record(actor, tag, current_version(found), reason=reason.strip())
    return found


# Parts


def digest(version: RecipeVersion) -> str:
    """What stands in a version and above it, as one word."""
    whole = json.dumps(_whole(version), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _whole(version: RecipeVersion) -> dict[str, Any]:
    recipe = version.recipe
    return {
        "name": recipe.name,
        "description": recipe.description,
        "version": version.number,
        "nodes": version.world_size,
        "note": version.note,
        "body": version.body,
    }


def _locked(recipe: Recipe) -> Recipe:
    return Recipe.objects.select_for_update().get(pk=recipe.pk)


def _checked(*, name: str, description: str, world_size: int, body: Mapping[str, Any], note: str) -> dict[str, Any]:
    """The body as it is kept. Raises Refused for the first field that is wrong; `errors` of the problem has all."""
    _checked_text("name", name, LONGEST_NAME, needed=True)
    _checked_text("description", description, LONGEST_DESCRIPTION, lines=True)
    _checked_text("note", note, LONGEST_REASON, lines=True)
    if isinstance(world_size, bool) or not isinstance(world_size, int) or not 1 <= world_size <= MOST_NODES:
        remedy = f"Use a number from 1 to {MOST_NODES}."
        raise Refused("bad_input", "The number of nodes is out of range.", field="nodes", remedy=remedy)
    unknown = [key for key in body if key not in bodies.FIELDS]
    if unknown:
        raise Refused(
            "bad_input", f"{unknown[0][:80]} is no field.", field=unknown[0][:80], remedy="docs/recipes.md lists all."
        )
    wrong = bodies.errors(body, world_size)
    if wrong:
        errors = [asdict(one) for one in wrong]
        first = wrong[0]
        raise Refused(
            "bad_input", f"{first.message}.", field=first.field, remedy=first.remedy, extra={"errors": errors}
        )
    kept = bodies.stored(body)
    _checked_size(kept)
    return kept


def _checked_size(body: Mapping[str, Any]) -> None:
    if len(json.dumps(body)) > LARGEST_BODY:
        raise Refused("bad_input", "The recipe is larger than 256 KB.", field="spec", remedy="Shorten its arguments.")


def _checked_text(field: str, text: str, most: int, *, needed: bool = False, lines: bool = False) -> None:
    shown = text.replace("\n", " ").replace("\r", " ").replace("\t", " ") if lines else text
    if needed and not text.strip():
        raise Refused("bad_input", f"The {field.replace('_', ' ')} is missing.", field=field, remedy="Write one.")
    if mask_text(text) != text or any(next(in_line(line), None) for line in text.splitlines()):
        raise Refused(
            "bad_input",
            f"The {field.replace('_', ' ')} holds what looks like a secret.",
            field=field,
            remedy="Take it out, and keep it under Settings, Secrets.",
        )
    if len(text) > most or not shown.isprintable():
        raise Refused(
            "bad_input",
            f"The {field.replace('_', ' ')} is longer than {most} characters or holds control characters.",
            field=field,
            remedy="Shorten it.",
        )


def _named_recipe(name: str, description: str) -> Recipe:
    """A recipe under a short name of its own, made from its name."""
    base = slugify(name)[:70].strip("-") or "recipe"
    taken_names = {*RESERVED, *Recipe.objects.filter(slug__startswith=base).values_list("slug", flat=True)}
    for number in range(1, MOST_ALIKE):
        slug = base if number == 1 else f"{base}-{number}"
        if slug in taken_names:
            continue
        try:
            with transaction.atomic():
                return Recipe.objects.create(slug=slug, name=name.strip(), description=description.strip())
        except IntegrityError:
            continue
    raise Refused(
        "bad_input", f"There are too many recipes called {name[:80]}.", field="name", remedy="Choose another."
    )


RESERVED = ("new", "import", "check")  # addresses of pages


def _record(
    actor: Actor,
    tag: str,
    version: RecipeVersion,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    recipe = version.recipe
    ring_on_commit("recipe", recipe.pk, version.number)
    record(
        actor,
        tag,
        object_type="recipe",
        object_id=str(recipe.pk),
        object_name=recipe.name,
        reason=reason,
        before=before,
        after=after,
    )
