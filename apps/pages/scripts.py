"""A plan as a shell script that a person can read, keep and run by hand. Secrets stand in it as names only."""

from __future__ import annotations

from django.http import HttpResponse

from apps.plan.step import Plan


def as_script(plan: Plan) -> str:
    """Every command per node, in stages; what each step waits for stands as a comment."""
    name = str(plan.spec.get("name", "")) if plan.spec else ""
    made = [
        "#!/bin/sh",
        f"# {plan.story} {name}, plan {plan.digest}",
        f"# nodes: {', '.join(plan.nodes)}",
        "# To read and to keep. Each part belongs to the node that it names; sparkweb judges what each one prints.",
        "",
    ]
    for number, stage in enumerate(plan.stages, 1):
        made += [f"### {number} {_one_line(stage.name)}", ""]
        for step in stage.steps:
            made.append(f"## on {step.node}: {_one_line(step.title)}")
            if step.why:
                made.append(f"# nothing to do: {_one_line(step.why)}")
            for secret in step.secrets:
                made.append(f"# {secret.variable} comes from the secret {secret.name!r}, never shown")
            made += list(step.commands)
            if step.kind in ("wait", "ready", "smoke"):
                made.append(f"# waits, at most {step.within_s:g} s")
            made.append("")
    return "\n".join(made)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def response(plan: Plan, name: str) -> HttpResponse:
    made = HttpResponse(as_script(plan), content_type="text/x-shellscript; charset=utf-8")
    made["Content-Disposition"] = f'attachment; filename="{name}-{plan.digest[:7]}.sh"'
    return made
