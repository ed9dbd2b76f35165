"""What a stored plan says a rank's container was started with: it is what runs, unless somebody changed it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

START = "docker run -d --name "
_SWITCHES = ("-d", "--rm", "-i", "-t", "-it", "--init", "--privileged")
_ADDRESSES = ("VLLM_HOST_IP",)
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True)
class Recorded:
    """Of one container: its image and the words behind it, labels that say whose it is, and what of the node it relies on."""

    image: str
    arguments: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()


def recorded(plan: Mapping[str, Any]) -> dict[str, Recorded]:
    """By container name. A line that can't be read is left out: nothing is compared with it."""
    return {name: one for script in _scripts(plan) for name, one in _started(script)}


def _scripts(plan: Mapping[str, Any]) -> Iterator[str]:
    for stage in plan.get("stages") or ():
        for step in stage.get("steps") or ():
            script = step.get("script") or ""
            if START in script:
                yield script


def _started(script: str) -> Iterator[tuple[str, Recorded]]:
    for line in script.splitlines():
        if START not in line:
            continue
        try:
            words = shlex.split(line[line.index(START) + len("docker run ") :])
        except ValueError:
            continue
        found = _read(words)
        if found is not None:
            yield found


def _read(words: list[str]) -> tuple[str, Recorded] | None:
    """Options up to the first word that is none: the image."""
    name, labels, variables = "", {}, {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in _SWITCHES:
            continue
        option, equals, value = option.partition("=")
        if not equals:
            if not rest:
                return None
            value = rest.pop(0)
        if option == "--name":
            name = value
        elif option == "--label":
            key, _, text = value.partition("=")
            labels[key] = text
        elif option in ("-e", "--env"):
            key, _, text = value.partition("=")
            variables[key] = text
    if not rest or not name:
        return None
    labels.pop("sparkweb.run", None)  # a word that the node's shell fills in
    interfaces = dict.fromkeys(variables[key] for key in _INTERFACES if variables.get(key))
    return name, Recorded(
        image=rest[0],
        arguments=tuple(rest[1:]),
        labels=labels,
        addresses=tuple(dict.fromkeys(variables[key] for key in _ADDRESSES if variables.get(key))),
        interfaces=tuple(interfaces),
    )
