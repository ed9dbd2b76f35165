"""Recipes: where the specification of a deployment begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router, Status

from apps.api.finding import LARGEST_ID, page
from apps.api.schemas import (
    LIMIT,
    After,
    ExportedFiles,
    FieldChange,
    FieldErrorOut,
    HeldOut,
    Limit,
    NoteOut,
    ReasonBody,
    RecipeBody,
    RecipeCopyBody,
    RecipeDecisionBody,
    RecipeDiff,
    RecipeEditBody,
    RecipeImportBody,
    RecipeOut,
    RecipeRead,
    Recipes,
    RecipeTestedBody,
    RecipeTextBody,
    RecipeVersionOut,
    RecipeWithVersions,
    Word,
)
from apps.diagnosis.refusal import Refused
from apps.people.access import actor_of, allow
from apps.recipes import compared, exports, services
from apps.recipes.formats import bodies, own
from apps.recipes.formats.imported import Unreadable
from apps.recipes.formats.yaml_text import Document
from apps.recipes.models import Recipe, RecipeVersion
from apps.recipes.services import current_version

router = Router(tags=["recipes"])
Number = Annotated[int | None, Query(ge=1, le=LARGEST_ID, description="left out: the newest")]


def _fields(recipe: Recipe, version: RecipeVersion | None = None) -> dict[str, Any]:
    version = version or current_version(recipe)
    return {
        "id": recipe.pk,
        "slug": recipe.slug,
        "name": recipe.name,
        "description": recipe.description,
        "shipped": recipe.shipped,
        "version": version.number,
        "world_size": version.world_size,
        "tested_on": version.tested_on,
        "spec": version.body,
    }


def _version(one: RecipeVersion) -> RecipeVersionOut:
    return RecipeVersionOut(
        number=one.number,
        world_size=one.world_size,
        tested_on=one.tested_on,
        note=one.note or None,
        created_at=one.created_at,
        created_by=one.created_by or None,
        changed_at=one.changed_at,
        changed_by=one.changed_by or None,
        used_at=one.used_at,
        spec=one.body,
        errors=_errors(one.body, one.world_size),
        digest=services.digest(one),
        family=one.family or None,
        source_sha256=one.source_sha256 or None,
        quarantine=[_held(item) for item in one.quarantine],
        extra=one.extra,
        notes=[_note(note) for note in one.notes],
    )


def _errors(body: Mapping[str, Any], world_size: int) -> list[FieldErrorOut]:
    return [FieldErrorOut(**asdict(one)) for one in bodies.errors(body, world_size)]


def _held(item: Mapping[str, Any]) -> HeldOut:
    return HeldOut(
        key=item["key"],
        kind=item["kind"],
        path=item["path"],
        line=item["line"] or None,
        text=item["text"],
        takes=item["takes"],
        service=item["place"] if item["place"] >= 0 else None,
        decision=item.get("decision") or None,
        decided_by=item.get("by") or None,
        decided_at=item.get("when") or None,
        reason=item.get("reason") or None,
    )


def _note(note: Mapping[str, Any]) -> NoteOut:
    return NoteOut(path=note["path"], line=note["line"] or None, message=note["message"], remedy=note["remedy"] or None)


def _found(slug: str) -> Recipe:
    found = None if "\0" in slug else Recipe.objects.filter(slug=slug, versions__isnull=False).first()
    if found is None:
        remedy = "GET /api/v1/recipes lists those that exist."
        raise Refused("not_found", f"There is no recipe {slug[:80]!r}.", status=404, remedy=remedy)
    return found


def _whole(recipe: Recipe) -> RecipeWithVersions:
    versions = [_version(one) for one in recipe.versions.select_related("recipe")]
    return RecipeWithVersions(**_fields(recipe), archived_at=recipe.archived_at, versions=versions)


def _body(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a request as a version keeps it. Raises Refused."""
    try:
        return own.body_of(Document(spec, {}), spec, "spec")
    except Unreadable as problem:
        message = problem.message[:1].upper() + problem.message[1:]
        raise Refused("bad_input", f"{message}.", field=problem.field or "spec", remedy=problem.remedy) from None


@contextmanager
def _fields_under_spec() -> Iterator[None]:
    """Services name a field of the Spec; in a body it stands below `spec`."""
    try:
        yield
    except Refused as refused:
        if refused.field.partition("[")[0] in bodies.FIELDS:
            refused.field = f"spec.{refused.field}"
        raise


@router.get("recipes", response=Recipes)
@allow("view")
def list_recipes(
    request: HttpRequest, name: Word = "", archived: bool = False, after: After = None, limit: Limit = LIMIT
) -> Recipes:
    """All recipes but archived ones, or with `archived` only those, in their newest version, the oldest first."""
    rows = Recipe.objects.filter(archived_at__isnull=not archived, versions__isnull=False).distinct()
    rows = rows.filter(name=name) if name else rows
    found, following = page(rows, after=after, limit=limit)
    newest = services.newest_of(found)
    return Recipes(recipes=[RecipeOut(**_fields(one, newest.get(one.pk))) for one in found], next=following)


@router.post("recipes", response={201: RecipeWithVersions})
@allow("edit_recipes")
def create_recipe(request: HttpRequest, body: RecipeBody) -> Status[RecipeWithVersions]:
    """A new recipe with its first version, a draft until a deployment is made from it."""
    with _fields_under_spec():
        made = services.create(
            actor_of(request),
            name=body.name,
            description=body.description,
            world_size=body.nodes,
            body=_body(body.spec),
            note=body.note,
        )
    return Status(201, _whole(made))


@router.post("recipes/import", response={201: RecipeWithVersions})
@allow("edit_recipes")
def import_recipe(request: HttpRequest, body: RecipeImportBody) -> Status[RecipeWithVersions]:
    """Keep a recipe of another format as a draft. What runs code or widens rights waits in `quarantine` for a decision."""
    made = services.import_text(actor_of(request), text=body.text, name=body.name, family=body.family)
    return Status(201, _whole(made))


@router.post("recipes/read", response=RecipeRead)
@allow("edit_recipes")
def read_recipe(request: HttpRequest, body: RecipeTextBody) -> RecipeRead:
    """What an import would make of a text. Keeps nothing."""
    found = services.read_text(body.text, family=body.family)
    return RecipeRead(
        family=found.family,
        name=found.name,
        description=found.description,
        world_size=found.world_size,
        spec=bodies.stored(found.body),
        errors=_errors(found.body, found.world_size),
        quarantine=[_held(asdict(one)) for one in found.held],
        extra=found.extra,
        notes=[_note(asdict(one)) for one in found.notes],
    )


@router.get("recipes/{slug}", response=RecipeWithVersions)
@allow("view")
def get_recipe(request: HttpRequest, slug: str) -> RecipeWithVersions:
    """One recipe with all its versions, the newest first."""
    return _whole(_found(slug))


@router.post("recipes/{slug}/versions", response={201: RecipeVersionOut})
@allow("edit_recipes")
def edit_recipe(request: HttpRequest, slug: str, body: RecipeEditBody) -> Status[RecipeVersionOut]:
    """Change the newest version while it is a draft, else add the next. 409 `recipe_changed` when it is not as `seen`."""
    recipe = _found(slug)
    version = current_version(recipe)
    with _fields_under_spec():
        made = services.edit(
            actor_of(request),
            recipe,
            name=recipe.name if body.name is None else body.name,
            description=recipe.description if body.description is None else body.description,
            world_size=version.world_size if body.nodes is None else body.nodes,
            body=version.body if body.spec is None else _body(body.spec),
            note=body.note,
            seen=body.seen,
        )
    return Status(201, _version(made))


@router.post("recipes/{slug}/duplicate", response={201: RecipeWithVersions})
@allow("edit_recipes")
def duplicate_recipe(request: HttpRequest, slug: str, body: RecipeCopyBody) -> Status[RecipeWithVersions]:
    """A recipe of its own that begins as this version is."""
    made = services.duplicate(actor_of(request), services.version_of(_found(slug), body.version), name=body.name)
    return Status(201, _whole(made))


@router.post("recipes/{slug}/decide", response=RecipeVersionOut)
@allow("edit_recipes")
def decide_recipe(request: HttpRequest, slug: str, body: RecipeDecisionBody) -> RecipeVersionOut:
    """Decide what waits: `take` puts items into the spec (for most kinds a role that may approve recipes), `leave` does
    without them."""
    version = services.version_of(_found(slug), body.version)
    return _version(services.decide(actor_of(request), version, take=body.take, leave=body.leave, reason=body.reason))


@router.post("recipes/{slug}/tested", response=RecipeVersionOut)
@allow("edit_recipes")
def mark_recipe_tested(request: HttpRequest, slug: str, body: RecipeTestedBody) -> RecipeVersionOut:
    """Say on what hardware a version was seen to work. A version that is used may be marked too."""
    version = services.version_of(_found(slug), body.version)
    return _version(services.mark_tested(actor_of(request), version, tested_on=body.tested_on, reason=body.reason))


@router.post("recipes/{slug}/archive", response=RecipeWithVersions)
@allow("edit_recipes")
def archive_recipe(request: HttpRequest, slug: str, body: ReasonBody | None = None) -> RecipeWithVersions:
    """Take it off the lists. Deployments made from it stay as they are."""
    reason = body.reason if body else ""
    return _whole(services.archive(actor_of(request), _found(slug), reason=reason))


@router.post("recipes/{slug}/unarchive", response=RecipeWithVersions)
@allow("edit_recipes")
def unarchive_recipe(request: HttpRequest, slug: str, body: ReasonBody | None = None) -> RecipeWithVersions:
    """Bring an archived one back."""
    reason = body.reason if body else ""
    return _whole(services.unarchive(actor_of(request), _found(slug), reason=reason))


@router.get("recipes/{slug}/diff", response=RecipeDiff)
@allow("view")
def compare_recipe(request: HttpRequest, slug: str, older: Number = None, newer: Number = None) -> RecipeDiff:
    """Which fields differ between two versions. Left out, they are the newest and the one before."""
    recipe = _found(slug)
    last = services.version_of(recipe, newer)
    first = services.version_of(recipe, older if older is not None else max(1, last.number - 1))
    return RecipeDiff(older=first.number, newer=last.number, changes=_changes(first, last))


def _changes(first: RecipeVersion, last: RecipeVersion) -> list[FieldChange]:
    made = [
        FieldChange(field=name, before=before, after=after)
        for name, before, after in compared.changes(first.body, last.body)
    ]
    if first.world_size != last.world_size:
        made.append(FieldChange(field="nodes", before=first.world_size, after=last.world_size))
    return made


@router.get("recipes/{slug}/export/{form}", response=ExportedFiles)
@allow("view")
def export_recipe(request: HttpRequest, slug: str, form: str, version: Number = None) -> ExportedFiles:
    """A version as sparkweb, eugr, sparkrun or compose write it, or the imported `source`, secrets masked."""
    found = services.version_of(_found(slug), version)
    return ExportedFiles(format=form, files=exports.of_version(found, form))
