"""Benchmarks of ours: start one as a run, follow it, keep what it measured in the transaction that ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.db import transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.benchmarks import measured
from apps.benchmarks.loadgen import DEFAULTS
from apps.benchmarks.measured import Measured
from apps.benchmarks.models import Benchmark
from apps.benchmarks.results import Result
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.facts.sheet import Sheet
from apps.plan import stories
from apps.plan.spec import Given, Spec
from apps.runs import lines
from apps.runs.models import ACTIVE, Run
from apps.runs.services import LONGEST_REASON, once, planned_run, same_request, sheets_of, wake

GENERATOR = Path(__file__).with_name("loadgen.py")
MOST_LEVELS, LARGEST_CONCURRENCY, LARGEST_RATE = 16, 512, 1000.0
# field: (least, most, what to write instead)
BOUNDS = {
    "prompt_tokens": (1, 1_000_000, "Use a number of tokens, e.g. 512."),
    "output_tokens": (2, 100_000, "Use a number of tokens, e.g. 128."),
    "requests_per_level": (0, 10_000, "Use a number of requests, or 0 for four a place."),
    "seconds_per_level": (0, 3600, "Use seconds, or 0 for no limit."),
    "warmup": (0, 100, "Use a number of requests, e.g. 1."),
    "seed": (0, 2**31, "Use a whole number."),
}
FIELDS = ("mode", "levels", *BOUNDS, "ignore_eos", "prefix_proof", "endpoint")


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The generator's settings. Raises Refused naming the field."""
    for name in given:
        if name not in FIELDS:
            raise Refused(
                "bad_input", f"There is no setting {name!r}.", field=str(name), remedy=f"Use {', '.join(FIELDS)}."
            )
    made = {name: given.get(name, DEFAULTS[name]) for name in FIELDS}
    if made["mode"] not in ("closed", "open"):
        raise _bad(
            "mode", "The loop is closed or open.", "Use closed for so many at a time, open for so many a second."
        )
    if made["endpoint"] not in ("chat", "completions"):
        raise _bad("endpoint", "That endpoint is not known here.", "Use chat or completions.")
    made["levels"] = _levels(made["levels"], made["mode"])
    for name, (least, most, remedy) in BOUNDS.items():
        value = made[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _bad(name, f"{value!r} is not between {least:,} and {most:,}.", remedy)
    for name in ("ignore_eos", "prefix_proof"):
        if not isinstance(made[name], bool):
            raise _bad(name, "It is yes or no.", "Use true or false.")
    return made


def _levels(levels: Any, mode: str) -> list[int] | list[float]:
    if not isinstance(levels, list | tuple) or not levels:
        raise _bad(
            "levels",
            "There is no level.",
            "Use concurrencies such as 1, 2, 4, 8, 16, or requests a second in an open loop.",
        )
    if len(levels) > MOST_LEVELS:
        raise _bad("levels", f"{len(levels)} levels are too many.", f"Use at most {MOST_LEVELS}.")
    most = LARGEST_CONCURRENCY if mode == "closed" else LARGEST_RATE
    for level in levels:
        whole = isinstance(level, int) and not isinstance(level, bool)
        if not (whole or (mode == "open" and isinstance(level, float))) or not 0 < level <= most:
            kind = "a whole number of requests at a time" if mode == "closed" else "requests a second"
            raise _bad(
                "levels", f"{level!r} is not {kind} up to {most:g}.", "Write them with commas, e.g. 1, 2, 4, 8, 16."
            )
    return list(levels)


def _bad(name: str, sentence: str, remedy: str) -> Refused:
    return Refused("bad_input", sentence, field=name, remedy=remedy)


def start(
    actor: Actor,
    deployment: Deployment,
    settings: Mapping[str, Any],
    *,
    service: str = "",
    reason: str = "",
    idempotency_key: str = "",
) -> Run:
    """Measure a service ("" is the main one). It holds no node; a second one of this deployment at the same time is refused, because
    both would measure each other. Raises Refused."""

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="benchmark", deployment=deployment.pk, reason=reason)

    return once(known, lambda: _start(actor, deployment, settings, service, reason.strip(), idempotency_key))


@transaction.atomic
def _start(
    actor: Actor, deployment: Deployment, settings: Mapping[str, Any], service: str, reason: str, key: str
) -> Run:
    chosen = checked(settings)
    if len(reason) > LONGEST_REASON:
        raise _bad("reason", f"The reason is longer than {LONGEST_REASON} characters.", "Shorten it.")
    Deployment.objects.select_for_update().get(pk=deployment.pk)  # of two at once the second sees the first
    rank = deployment.ranks.select_related("revision").order_by("-run_id").first()
    if rank is None:
        raise Refused(
            "bad_input",
            f"{deployment.name} is {deployment.state}: nothing of it runs that could be measured.",
            status=409,
            remedy="Launch it first.",
        )
    other = Run.objects.filter(deployment=deployment, story="benchmark", state__in=ACTIVE).first()
    if other is not None:
        raise Refused(
            "in_use",
            f"Run {other.pk}, a benchmark that {other.actor_name} started, measures {deployment.name} now.",
            status=409,
            remedy="Wait until it has ended, or cancel it: two at a time would measure each other.",
            extra={"run": other.pk},
        )
    one = _service(rank.revision.spec, service, deployment.name)
    if one.kind != "chat":
        raise _bad(
            "service", f"{service} is for {one.kind}; only services that generate text are measured.", "Choose another."
        )
    plan = stories.benchmark(
        rank.revision.spec,
        service,
        chosen,
        generator=GENERATOR.read_text(),
        given=Given(deployment=deployment.pk, revision=rank.revision.number),
    )
    run = planned_run(
        actor,
        plan,
        why=reason,
        idempotency_key=key,
        deployment=deployment,
        revision=rank.revision,
        parameters={"settings": chosen, "service": service},
    )
    record(
        actor,
        "deployment:benchmark",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        outcome="requested",
        reason=reason,
        run=run.pk,
        after={"settings": chosen, **({"service": service} if service else {})},
    )
    wake(run.pk)
    return run


def _service(spec: Spec, service: str, name: str) -> Spec:
    found = next((one for one in spec.each if one.service == service), None)
    if found is None:
        names = ", ".join(repr(one.service) for one in spec.each)
        raise _bad("service", f"{name} has no service {service!r}.", f"Use one of {names}.")
    return found


def of_run(run: Run) -> Measured:
    """What a benchmark's run has measured so far."""
    return measured.read(_output(run))


def _output(run: Run) -> Iterator[str]:
    step = run.steps.filter(key__contains=".load.").first() or run.steps.first()
    if step is None:
        return
    held = b""
    for piece in lines.download(run, step=step.key):
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    yield held.decode("utf-8", "replace")


def keep(run: Run) -> None:
    """In the transaction that ends a run: its result as a row, also of one that was cancelled or failed with a level or more."""
    found = of_run(run)
    if run.deployment is None or not any(level["requests"] != level["errors"] for level in found.levels):
        return
    note = (
        ""
        if run.state == Run.State.SUCCEEDED
        else f"The run ended {run.state}{f': {run.reason}' if run.reason else ''}."
    )
    result = found.as_json(
        made=run.created_at.isoformat(), subject=_subject(run), node=str(run.plan["nodes"][0]), note=note
    )
    Result.from_json(result)  # whatever the node printed, what is kept has the format
    Benchmark.objects.get_or_create(
        run=run,
        defaults={
            "deployment": run.deployment,
            "revision": run.revision,
            "name": f"{run.deployment.name} r{run.revision.number if run.revision else '?'}, run {run.pk}"[:120],
            "result": result,
            "by": run.actor_name,
        },
    )


def _subject(run: Run) -> dict[str, Any]:
    assert run.deployment is not None
    service = str(run.parameters.get("service", ""))
    spec = Spec.from_json(run.plan["spec"])
    one = next((each for each in spec.each if each.service == service), spec)
    sheets = sheets_of(one.nodes)
    return {
        "deployment": run.deployment.name,
        "service": service or None,
        "revision": run.revision.number if run.revision else None,
        "model": one.model or one.model_name,
        "engine": one.engine,
        "engine_version": None,
        "image": one.image or None,
        "hardware": hardware([sheets[name] for name in one.nodes if name in sheets]) or None,
        "nodes": list(one.nodes),
        "tensor_parallel": one.tensor_parallel,
        "quantization": None,
    }


def hardware(sheets: list[Sheet]) -> str:
    """`2 × NVIDIA GB10`: the GPUs of these nodes; empty where none is known or they differ."""
    names = [gpu.name for sheet in sheets if sheet.gpus for gpu in sheet.gpus.gpus if gpu.name]
    if not names or len(set(names)) > 1:
        return " + ".join(dict.fromkeys(names))
    return f"{len(names)} × {names[0]}" if len(names) > 1 else names[0]
