"""systemd units of what a plan starts, one folder a node: https://www.freedesktop.org/software/systemd/man/systemd.service.html"""

from __future__ import annotations

import re
from collections.abc import Sequence

from apps.plan.step import Plan
from apps.recipes.formats.started import Container, Inside, Process, Started, of_plan

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
SECRETS = "/etc/sparkweb/{}.env"


def write(plan: Plan) -> dict[str, str]:
    """Path (NODE/NAME.service) -> its text. A secret's value stands in none of them: units name the file that has it."""
    name = str(plan.spec.get("name", "")) if plan.spec else ""
    made: dict[str, str] = {}
    for one in of_plan(plan):
        title, text = _unit(one, name or "engine")
        made[f"{one.node}/{title}.service"] = text
    return made


def _unit(one: Started, name: str) -> tuple[str, str]:
    if isinstance(one, Container):
        return one.name, _container(one)
    if isinstance(one, Inside):
        return f"{one.container}-serve", _inside(one)
    return name, _process(one, name)


def _container(one: Container) -> str:
    words = ["/usr/bin/docker", "run", "--name", one.name]
    for option in one.options:
        words += [option.name, option.value] if option.value else [option.name]
    secrets = [f"EnvironmentFile={SECRETS.format(one.name)}"] if one.secrets else []
    return _text(
        f"{one.name} of a plan of sparkweb",
        ("After=docker.service network-online.target", "Wants=network-online.target", "Requires=docker.service"),
        (
            *_about_secrets(one.secrets, one.name),
            *secrets,
            f"ExecStartPre=-{_words(('/usr/bin/docker', 'rm', one.name))}",
            f"ExecStart={_words((*words, one.image, *one.command))}",
            f"ExecStop={_words(('/usr/bin/docker', 'stop', '--time', '30', one.name))}",
        ),
    )


def _inside(one: Inside) -> str:
    """It needs its container, and, with Ray, all workers: it is tried again until they have come."""
    return _text(
        f"what serves in {one.container}, of a plan of sparkweb",
        (f"After={one.container}.service", f"Requires={one.container}.service"),
        (
            f"ExecStart={_words(('/usr/bin/docker', 'exec', one.container, *one.command))}",
            "Restart=on-failure",
            "RestartSec=30",
        ),
    )


def _process(one: Process, name: str) -> str:
    secrets = [f"EnvironmentFile={SECRETS.format(name)}"] if one.secrets else []
    program = one.command[0] if one.command[0].startswith("/") else f"/usr/bin/env {one.command[0]}"
    return _text(
        f"{name}, of a plan of sparkweb",
        ("After=network-online.target", "Wants=network-online.target"),
        (
            *_about_secrets(one.secrets, name),
            *secrets,
            *(f"Environment={_word(f'{key}={value}')}" for key, value in one.environment),
            f"ExecStart={' '.join((_words(program.split(' ')), _words(one.command[1:]))).strip()}",
        ),
    )


def _about_secrets(variables: Sequence[str], name: str) -> tuple[str, ...]:
    if not variables:
        return ()
    return (f"# {SECRETS.format(name)} holds a line VARIABLE=value for {', '.join(variables)}; mode 0600, owner root",)


def _text(title: str, unit: Sequence[str], service: Sequence[str]) -> str:
    lines = ("[Unit]", f"Description={title.replace('%', '%%')}", *unit, "", "[Service]", *service, "TimeoutStopSec=60")
    return "\n".join((*lines, "", "[Install]", "WantedBy=multi-user.target", ""))


def _words(words: Sequence[str]) -> str:
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    """A word as a unit file has it: specifiers and variables doubled, quotes and backslashes escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t")
    return escaped if _PLAIN.fullmatch(word) else f'"{escaped}"'
