"""A fact: a command, the parser of its output and a frozen result. One section of the probe is one fact."""

from __future__ import annotations

from typing import Any, ClassVar

from apps.facts.sheet import Evidence


class Fact:
    """What one command says about a node.

    `script` is POSIX shell text that the probe runs under `timeout_s` seconds with LC_ALL=C and an empty standard
    input; it may read the variables that `probe.script(extra=…)` carries. `parse` never guesses: what is not in the
    evidence is None.
    """

    name: ClassVar[str]
    reads: ClassVar[str]  # the command whose output it reads, for people
    script: ClassVar[str]
    timeout_s: ClassVar[int] = 10

    @classmethod
    def parse(cls, evidence: Evidence) -> Any:
        """The frozen value, or None when the evidence says nothing."""
        raise NotImplementedError


FACTS: dict[str, type[Fact]] = {}


def fact(kind: type[Fact]) -> type[Fact]:
    """Put a fact into the registry. Raises ValueError for a name that is taken."""
    if kind.name in FACTS:
        raise ValueError(f"two facts are called {kind.name}")
    FACTS[kind.name] = kind
    return kind
