"""A recipe's version, or a plan, in formats that others read: file name -> text."""

from __future__ import annotations

from collections.abc import Callable

from apps.diagnosis.refusal import Refused
from apps.plan.step import Plan
from apps.recipes.formats import compose, eugr, own, shell_script, sparkrun, systemd
from apps.recipes.formats.writing import Unwritable
from apps.recipes.models import RecipeVersion

WRITERS: dict[str, Callable[..., str]] = {
    "sparkweb": own.write,
    "eugr": eugr.write,
    "sparkrun": sparkrun.write,
    "compose": compose.write,
}
OF_PLANS = ("shell", "compose", "systemd")


def of_version(version: RecipeVersion, form: str) -> dict[str, str]:
    """One file; `source` is the imported text as it is kept. Raises Refused: no such format, or one that can't say it."""
    recipe = version.recipe
    if form == "source" and version.source:
        end = "txt" if version.family in ("docker run", "command") else "yaml"
        return {f"{recipe.slug}-v{version.number}-source.{end}": version.source}
    if form not in WRITERS:
        raise _unknown(form, (*WRITERS, "source"))
    try:
        text = WRITERS[form](
            name=recipe.name, description=recipe.description, world_size=version.world_size, body=version.body
        )
    except Unwritable as problem:
        raise _unwritable(problem) from None
    except (TypeError, ValueError, KeyError):
        raise Refused(
            "bad_input", "This version has fields that can't be read.", field="format", remedy="Edit the recipe first."
        ) from None
    return {f"{recipe.slug}-v{version.number}.{form}.yaml": text}


def of_plan(plan: Plan, form: str) -> dict[str, str]:
    """What a plan starts, for use without sparkweb. Raises Refused: no such format, or nothing that it could say."""
    if form not in OF_PLANS:
        raise _unknown(form, OF_PLANS)
    try:
        if form == "compose":
            return compose.of_plan(plan)
        made = {"plan.sh": shell_script.write(plan)} if form == "shell" else systemd.write(plan)
    except Unwritable as problem:
        raise _unwritable(problem) from None
    if not made or not plan.stages:
        raise Refused(
            "nothing_to_do", "This plan starts nothing.", field="format", status=409, remedy="Look at the plan for why."
        )
    return made


def _unknown(form: str, known: tuple[str, ...]) -> Refused:
    return Refused(
        "not_found", f"There is no format {form[:40]!r}.", field="format", status=404, remedy=f"Use {', '.join(known)}."
    )


def _unwritable(problem: Unwritable) -> Refused:
    message = problem.message[:1].upper() + problem.message[1:]
    return Refused("bad_input", f"{message}.", field="format", status=409, remedy=problem.remedy)
