"""What a plan starts on each node, read back from its own commands: containers, programs inside of them, plain processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apps.plan.step import Plan, Step
from apps.recipes.formats import command_text, docker_run
from apps.recipes.formats.command_text import Simple
from apps.recipes.formats.docker_run import Option
from apps.recipes.formats.vllm_serve import engine_line

OURS = (
    "--label",
    "--detach",
    "--name",
    "--log-driver",
    "--log-opt",
)  # labels name a run; logs are the reader's to keep


@dataclass(frozen=True)
class Container:
    """`docker run` of a plan."""

    node: str
    name: str
    image: str
    command: tuple[str, ...]
    options: tuple[Option, ...]
    secrets: tuple[str, ...]  # variables whose values are given by name


@dataclass(frozen=True)
class Inside:
    """A program that is started in a container of the plan by `docker exec`."""

    node: str
    container: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Process:
    """A program that runs on the node itself."""

    node: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]


Started = Container | Inside | Process


def of_plan(plan: Plan) -> tuple[Started, ...]:
    """In the order in which the plan starts them; nothing for a plan that starts nothing."""
    return tuple(
        made
        for stage in plan.stages
        if stage.phase in ("cluster", "loading")
        for step in stage.steps
        for made in _of(step)
    )


def _of(step: Step) -> Iterator[Started]:
    if step.kind not in ("job", "serve"):
        return
    secrets = tuple(secret.variable for secret in step.secrets)
    for one in command_text.split(step.script):
        words = docker_run.words_after_run(one)
        if words is not None:
            options, rest = docker_run.parse(words)
            yield _container(step.node, options, [word.text for word in rest], secrets)
        elif step.kind == "serve" and step.rank is not None:
            yield from _program(step.node, one, secrets)


def _container(node: str, options: list[Option], rest: list[str], secrets: tuple[str, ...]) -> Container:
    name = next((option.value for option in options if option.name == "--name"), "engine")
    kept = tuple(option for option in options if option.name not in OURS)
    return Container(node, name, rest[0], tuple(rest[1:]), kept, secrets)


def _program(node: str, one: Simple, secrets: tuple[str, ...]) -> Iterator[Started]:
    texts = list(one.texts)
    if texts[:1] == ["exec"] and texts[1:3] == ["docker", "exec"]:
        yield Inside(node, texts[3], tuple(texts[4:]))
        return
    line = engine_line(one)
    if line is None or texts[:1] != ["exec"]:
        return
    environment = tuple((name, value) for name, _, value in (word.text.partition("=") for word in line.environment))
    words = texts[1:]
    while words and (words[0] == "env" or "=" in words[0].partition("/")[0]):
        words.pop(0)
    if words and words[0] not in ("sh", "docker"):
        yield Process(node, tuple(words), environment, secrets)
