"""Measure a service that runs: a load generator beside the engine, as a detached job. Nothing else on the node is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from apps.plan import steps, together
from apps.plan.spec import Given, Spec
from apps.plan.step import Plan, Stage, Step
from apps.shell import Command, Shell, script, when, words

END = "SPARKWEB_END_OF_GENERATOR"
STEP = "measure.load"


def benchmark(spec: Spec, service: str, settings: Mapping[str, Any], *, generator: str, given: Given) -> Plan:
    """`settings`: of the generator, but for url, model and key. `generator`: its text. Raises KeyError for a service that there is
    not."""
    one = next((each for each in spec.each if each.service == service), None)
    if one is None:
        raise KeyError(service)
    head = one.nodes[0]
    keys = steps.smoke(one, head).secrets
    asked = {
        **settings,
        "url": steps.api_url(one),
        "model": one.model_name,
        "key_variable": keys[0].variable if keys else "",
    }
    step = Step(
        key=f"{STEP}.{head}",
        node=head,
        title="Put load on it and measure",
        kind="job",
        script=_script(asked, generator).text,
        commands=(f"python3 loadgen.py {Command.of(json.dumps(asked, sort_keys=True)).text}",),
        why=f"the generator runs on {head}, beside the engine, with nothing but its python3; it leaves no file there",
        secrets=keys,
        within_s=within_s(settings),
    )
    stages = (Stage("Measure", "verifying", (step,)),)
    return Plan(
        "benchmark",
        given.deployment,
        given.revision,
        (head,),
        together.as_part(spec, one, stages),
        spec=spec.to_json(),
    )


def _script(asked: Mapping[str, Any], generator: str) -> Shell:
    if END in generator:
        raise ValueError(f"the generator holds {END}")
    run = Command.of("python3", "-u", "-", json.dumps(asked, sort_keys=True))
    missing = script(
        words(
            "echo", "sparkweb: program_missing: python3 is not installed on this node, and the load generator needs it"
        ),
        Command.of("exit", "127"),
    )
    there = Shell(f"{Command.of('command', '-v', 'python3').text} >/dev/null 2>&1")
    return script(
        when(there, Command.of(":"), missing),
        Shell(f"exec {run.text} <<'{END}'\n{generator.rstrip()}\n{END}"),
    )


def within_s(settings: Mapping[str, Any]) -> float:
    """An upper bound of the seconds that it may take: nobody waits longer for an engine that hangs."""
    levels = list(settings.get("levels") or (1,))
    each = float(settings.get("seconds_per_level") or 0) + float(settings.get("timeout_s") or 600)
    return 120.0 + len(levels) * max(each, 3600.0 / max(1, len(levels)))
