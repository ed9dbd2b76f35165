"""A plan as text: the story for people and golden files, and a shell script to read, keep or run by hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from apps.plan.commands.docker import RUN_VARIABLE
from apps.plan.spec import shown
from apps.plan.step import Plan, Stage, Step

MARKS = {"stop": "x", "consent": "!", "warn": "~", "fine": "ok"}


def story(plan: Plan) -> str:
    """The whole plan: verdict, findings, then every step of every stage with its exact script. Ends with a newline."""
    return "\n".join(_story(plan)) + "\n"


def _story(plan: Plan) -> Iterator[str]:
    where = ", ".join(plan.nodes) or "no node"
    yield f"{plan.story} of deployment {plan.deployment}, revision {plan.revision}, on {where}"
    if plan.fit:
        yield f"fit: {plan.fit.verdict}: {plan.fit.sentence}"
        for remark in plan.fit.remarks:
            yield f"     {remark}"
        if plan.fit.largest:
            yield f"     largest that fits: {json.dumps(plan.fit.largest, sort_keys=True)}"
        for bar in plan.fit.bars:
            segments = " · ".join(f"{name} {size / (1 << 30):.1f}" for name, size in bar.parts)
            yield f"     {bar.node} {bar.total_bytes / (1 << 30):.1f} GiB: {segments}"
    for problem in plan.problems:
        yield f"[{MARKS[problem.severity]}] {problem.name}: {problem.title}"
        for label, text in (("means", problem.meaning), ("do", problem.remedy), ("seen", problem.evidence)):
            if text and problem.severity != "fine":
                yield f"     {label}: {text}"
        for item in problem.clear:
            yield f"     clear: {item['kind']} {item['name']} on {item['node']}"
    for number, stage in enumerate(plan.stages, start=1):
        yield ""
        yield f"{number} {stage.name} ({stage.phase})"
        for step in stage.steps:
            yield from _step(step)


def _step(step: Step) -> Iterator[str]:
    rank = "" if step.rank is None else f" rank {step.rank}"
    yield f"  {step.node}: {step.title} [{step.kind}{rank}] {step.key}"
    if step.why:
        yield f"    because: {step.why}"
    if step.ends:
        yield f"    ends: {step.ends}"
    if step.gate:
        yield f"    gate: {json.dumps(step.gate, sort_keys=True)}"
    if step.url:
        yield f"    asks: {step.url} for {step.model}"
    if step.follows:
        yield f"    reads: {step.follows}"
    for secret in step.secrets:
        yield f"    secret: {secret.variable} from {secret.name}"
    if step.undo:
        yield f"    undo: {json.dumps(step.undo, sort_keys=True)}"
    if step.kind in ("wait", "ready", "smoke"):
        yield f"    every {step.every_s:g} s, at most {step.within_s:g} s"
    for line in step.script.splitlines():
        yield f"    | {line}"


def script(plan: Plan) -> str:
    """The plan as one POSIX shell script: `sh plan.sh STAGE NODE` does one stage's part on the node that it is run on.
    What only a control plane can do (looking again, HTTP checks) stands as comments. Secrets must be in the
    environment."""
    return "\n".join(_script(plan)) + "\n"


def _script(plan: Plan) -> Iterator[str]:
    yield "#!/bin/sh"
    yield f"# {_comment(f'{plan.story} of deployment {plan.deployment}, revision {plan.revision}')}"
    yield f"# plan {plan.digest}"
    yield "# Run on each node, stage after stage: sh plan.sh STAGE NODE"
    for number, stage in enumerate(plan.stages, start=1):
        nodes = dict.fromkeys(step.node for step in stage.steps)
        yield f"#   {number} {_comment(stage.name)}: {_comment(', '.join(nodes))}"
    yield f'{RUN_VARIABLE}="${{{RUN_VARIABLE}-by-hand}}"'
    yield f"export {RUN_VARIABLE}"
    yield 'case "${1-} ${2-}" in'
    for number, stage in enumerate(plan.stages, start=1):
        yield from _stage(number, stage)
    yield "*)"
    yield "printf 'usage: sh %s STAGE NODE\\n' \"$0\" >&2"
    yield "exit 2"
    yield ";;"
    yield "esac"


def _stage(number: int, stage: Stage) -> Iterator[str]:
    for node in dict.fromkeys(step.node for step in stage.steps):
        yield f"{shlex.quote(f'{number} {node}')})"
        yield ":"
        for step in stage.steps:
            if step.node == node:
                yield from _by_hand(step)
        yield ";;"


def _by_hand(step: Step) -> Iterator[str]:
    yield f"# {_comment(step.title)} [{step.kind}]" + (f": {_comment(step.why)}" if step.why else "")
    if step.kind == "wait":
        yield "# repeat this until it is so"
    for secret in step.secrets:
        yield f': "${{{secret.variable}:?put the secret {secret.variable} into the environment}}"'
    if not step.script:
        for command in step.commands:
            yield f"# {_comment(command)}"
    elif step.kind == "serve" and step.rank is None:
        yield f"# to follow its log: {_comment(' '.join(step.commands))}"
    else:
        yield "("
        yield step.script
        yield ") || exit $?"


def _comment(text: str) -> str:
    """Text that can't leave a comment line."""
    return text if text.isprintable() else shown(text)
