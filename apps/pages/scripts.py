"""A plan as a text that a person can read, keep and take commands from. Secrets stand in it as names only."""

from __future__ import annotations

from django.http import HttpResponse

from apps.plan.step import Plan, Step


def as_text(plan: Plan) -> str:
    """Every command, in stages and by node; what a step waits for, or why it does nothing, stands as a comment."""
    name = str(plan.spec.get("name", "")) if plan.spec else ""
    made = [
        f"# {plan.story} {name}, plan {plan.digest}",
        f"# nodes: {', '.join(plan.nodes)}",
        "# To read and to keep, not to be run as a whole: each part belongs to the node that it names, some commands",
        "# run until they are ended, and sparkweb judges what each one prints before it goes on.",
        "",
    ]
    for number, stage in enumerate(plan.stages, 1):
        made += [f"### {number} {_one_line(stage.name)}", ""]
        for step in stage.steps:
            made += [f"## on {step.node}: {_one_line(step.title)}", *_comments(step), *step.commands, ""]
    return "\n".join(made)


def _comments(step: Step) -> list[str]:
    said = []
    if step.why:
        said.append(f"# {_one_line(step.why)}" if step.commands else f"# nothing to run: {_one_line(step.why)}")
    said += [f"# {secret.variable} comes from the secret {secret.name!r}, never shown" for secret in step.secrets]
    if step.kind in ("wait", "ready", "smoke") and "at most" not in step.why:
        said.append(f"# repeated until then, at most {step.within_s:g} s")
    if any("--follow" in command.split() for command in step.commands):
        said.append("# follows until the container ends")
    return said


def _one_line(text: str) -> str:
    return " ".join(text.split())


def response(plan: Plan, name: str) -> HttpResponse:
    made = HttpResponse(as_text(plan), content_type="text/plain; charset=utf-8")
    made["Content-Disposition"] = f'attachment; filename="{name}-{plan.digest[:7]}.txt"'
    return made
