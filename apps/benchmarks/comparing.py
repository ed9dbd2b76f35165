"""Results to compare: those that are stored and those that come with sparkweb; import, a row by hand, what is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.audit.tags import Outcome
from apps.benchmarks import bandwidth, importing, references, roofline
from apps.benchmarks.compared import Row
from apps.benchmarks.models import Benchmark
from apps.benchmarks.results import Result
from apps.diagnosis.refusal import Refused
from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.inventory.models import Node
from apps.people.access import authorize
from apps.plan import asked, catalogue, kvcache, loads, weights
from apps.plan.spec import Given, Spec
from apps.plan.weights import Split

MOST_CHOSEN = 12
MOST_LISTED = 200
CATALOGUE = "the catalogue of known models"
LONGEST_NAME = 120
SAME_AMONG = 500  # newest rows among which an import is looked for


def row_of(one: Benchmark) -> Row:
    return Row(str(one.pk), one.name, one.result, one.good)


def shipped() -> list[Row]:
    return [Row(each.id, each.name, each.result) for each in references.shipped()]


def listed(*, text: str = "", source: str = "") -> tuple[list[Row], int]:
    """(rows to choose from, the newest first and those that come with sparkweb last; how many stored ones match)."""
    found = Benchmark.objects.exclude(result={}).order_by("-pk")
    if text:
        found = found.filter(name__icontains=text) | found.filter(result__subject__model__icontains=text)
    if source:
        found = found.filter(result__source=source)
    rows = [row_of(one) for one in found.distinct()[:MOST_LISTED]]
    own = [
        row
        for row in shipped()
        if (not source or row.source == source)
        and text.lower() in f"{row.name} {row.subject.get('model') or ''}".lower()
    ]
    return [*rows, *own], found.distinct().count()


def chosen(ids: Sequence[str]) -> list[Row]:
    """The rows of these ids in their order, each once. Raises Refused for one that does not exist or for more than MOST_CHOSEN."""
    wanted = list(dict.fromkeys(each.strip() for each in ids if each.strip()))
    if len(wanted) > MOST_CHOSEN:
        raise Refused(
            "bad_input",
            f"{len(wanted)} results are too many to compare.",
            field="ids",
            remedy=f"Choose at most {MOST_CHOSEN}.",
        )
    numbers = [int(each) for each in wanted if each.isascii() and each.isdecimal() and len(each) < 19]
    stored = {str(one.pk): row_of(one) for one in Benchmark.objects.filter(pk__in=numbers)}
    known = stored | {row.id: row for row in shipped()}
    for each in wanted:
        if each not in known:
            raise Refused(
                "not_found", f"There is no benchmark {each[:60]}.", field="ids", remedy="Choose among those listed."
            )
    return [known[each] for each in wanted]


def good_ones() -> list[Row]:
    return [row_of(one) for one in Benchmark.objects.filter(good=True).order_by("-pk")[:MOST_LISTED]]


def usual() -> list[Row]:
    """What is shown before anybody chose: the newest three with a curve, and those that come with sparkweb of the same model."""
    newest = [row for row in map(row_of, Benchmark.objects.exclude(result={}).order_by("-pk")[:20]) if _has_curve(row)][
        :3
    ]
    models = {row.subject.get("model") for row in newest}
    own = [row for row in shipped() if _has_curve(row) and (not newest or row.subject.get("model") in models)]
    return [*newest, *own]


def _has_curve(row: Row) -> bool:
    return any(level.get("concurrency") for level in row.levels)


# Acts


@transaction.atomic
def import_text(
    actor: Actor,
    *,
    text: str,
    hardware: str = "",
    name: str = "",
    where: str = "",
    tensor_parallel: int | None = None,
) -> list[Benchmark]:
    """Every result of a text as a row of its own. `hardware`, `tensor_parallel` and `where` are taken where the file does not say
    them; one that is there already comes back as it is. Raises Refused."""
    authorize(actor, "benchmark")
    hardware, name, where = (each.strip() for each in (hardware, name, where))
    for field, said, most in (("hardware", hardware, 200), ("name", name, LONGEST_NAME), ("where", where, 1000)):
        if len(said) > most:
            raise Refused("bad_input", f"It has {len(said)} characters.", field=field, remedy=f"Use at most {most}.")
    made = []
    for place, body in enumerate(importing.read(text)):
        body["subject"]["hardware"] = body["subject"].get("hardware") or hardware or None
        body["subject"]["tensor_parallel"] = body["subject"].get("tensor_parallel") or tensor_parallel
        body["where"] = body.get("where") or where
        if body["source"] == "reference" and not body["where"]:
            raise Refused("bad_input", "A reference needs its source.", field="where", remedy="Say where it is from.")
        numbered = f"{name} {place + 1}" if name and place else name
        made.append(_kept(actor, body, numbered or _name_of(body), "benchmark:imported"))
    return made


@transaction.atomic
def add_reference(
    actor: Actor,
    *,
    name: str,
    where: str,
    model: str,
    hardware: str = "",
    engine: str = "",
    levels: Sequence[Mapping[str, float | None]] = (),
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    tensor_parallel: int | None = None,
) -> Benchmark:
    """A row by hand. `where`: its source, which it must have. `levels`: concurrency, aggregate_tok_s, per_request_tok_s and ttft_s
    each. Raises Refused."""
    authorize(actor, "benchmark")
    for field, said, remedy in (
        ("name", name, "Give it a name by which people know it."),
        ("where", where, "Say where it is from: a link, a person, a document."),
        ("model", model, "Name the model as the hub does."),
    ):
        if not said.strip():
            raise Refused("bad_input", f"{field.capitalize()} is missing.", field=field, remedy=remedy)
    if len(name.strip()) > LONGEST_NAME:
        raise Refused("bad_input", "It is too long.", field="name", remedy=f"Use at most {LONGEST_NAME} characters.")
    if not levels:
        raise Refused("bad_input", "It has no figures.", field="levels", remedy="Give at least one level.")
    body = {
        "format": "sparkweb-benchmark",
        "version": 1,
        "made": timezone.now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        "source": "reference",
        "tool": "by hand",
        "where": where.strip(),
        "subject": {
            "model": model.strip(),
            "hardware": hardware.strip() or None,
            "engine": engine.strip() or None,
            "tensor_parallel": tensor_parallel,
            "nodes": [],
        },
        "settings": {"mode": "closed", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
        "levels": [
            {
                "concurrency": level.get("concurrency"),
                "aggregate_tok_s": level.get("aggregate_tok_s"),
                "per_request_tok_s": {"p50": level.get("per_request_tok_s")},
                "ttft_s": {"p50": level.get("ttft_s")},
            }
            for level in levels
        ],
    }
    try:
        result = Result.from_json(body).to_json()
    except (TypeError, ValueError) as problem:
        words = str(problem)
        raise Refused("bad_input", words, field=words.split(":")[0], remedy="Correct this field.") from None
    return _kept(actor, result, name.strip(), "benchmark:reference_added")


def _kept(actor: Actor, body: dict[str, Any], name: str, act: str) -> Benchmark:
    for one in Benchmark.objects.order_by("-pk")[:SAME_AMONG]:
        if one.result == body:
            return one
    made = Benchmark.objects.create(name=name[:LONGEST_NAME], result=body, by=actor.name)
    record(
        actor,
        act,
        object_type="benchmark",
        object_id=str(made.pk),
        object_name=made.name,
        outcome=Outcome.DONE,
        after={
            "model": body["subject"].get("model"),
            "tool": body.get("tool"),
            "where": body.get("where"),
            "levels": len(body["levels"]),
        },
    )
    return made


def _name_of(body: Mapping[str, Any]) -> str:
    model = str(body["subject"].get("model") or "a model").rpartition("/")[2]
    return f"{model}, {body.get('tool') or 'imported'}, {str(body.get('made', ''))[:10]}"


@transaction.atomic
def mark(actor: Actor, one: Benchmark, *, good: bool, reason: str) -> Benchmark:
    """Call a result good, or no longer. Raises Refused without a reason, for a reference, and for one without figures."""
    authorize(actor, "benchmark", one)
    if not reason.strip():
        raise Refused(
            "bad_input", "A reason is missing.", field="reason", remedy="Say why it is good, or is no longer."
        )
    if good and one.result.get("source") == "reference":
        raise Refused(
            "bad_input",
            "A reference is nobody's own measurement.",
            field="good",
            remedy="Mark a result that was measured or imported.",
        )
    if good and not any(level.get("concurrency") for level in one.result.get("levels", ())):
        raise Refused(
            "bad_input",
            "It has no level with a concurrency to compare at.",
            field="good",
            remedy="Mark one that was measured at known concurrencies.",
        )
    one = Benchmark.objects.select_for_update().get(pk=one.pk)
    if one.good == good:
        return one
    Benchmark.objects.filter(pk=one.pk).update(good=good)
    one.good = good
    record(
        actor,
        "benchmark:marked_good" if good else "benchmark:unmarked",
        object_type="benchmark",
        object_id=str(one.pk),
        object_name=one.name,
        outcome=Outcome.DONE,
        reason=reason,
        before={"good": not good},
        after={"good": good},
    )
    return one


@transaction.atomic
def remove(actor: Actor, one: Benchmark, *, reason: str) -> None:
    """Take away what was imported or entered by hand; what we measured stays. Raises Refused."""
    authorize(actor, "benchmark", one)
    if one.run_id is not None or one.result.get("source") == "measured":
        raise Refused("bad_input", "What was measured here is kept.", field="id", status=409)
    if not reason.strip():
        raise Refused("bad_input", "A reason is missing.", field="reason", remedy="Say why it goes.")
    record(
        actor,
        "benchmark:removed",
        object_type="benchmark",
        object_id=str(one.pk),
        object_name=one.name,
        outcome=Outcome.DONE,
        reason=reason,
        before={"where": one.result.get("where"), "by": one.by},
    )
    one.delete()


# Against what the memory allows


def judged(row: Row) -> roofline.Judged:
    """By the files and the spec of its revision where sparkweb knows them, else by the catalogue of known models."""
    stored = Benchmark.objects.select_related("revision").filter(pk=int(row.id)).first() if row.id.isdecimal() else None
    spec = _spec(stored, row.subject.get("service")) if stored is not None else None
    if spec is None:
        hardware, parallel = row.subject.get("hardware"), row.subject.get("tensor_parallel")
        several = bandwidth.count_of(hardware)
        if several > 1 and not parallel:
            missing = f"how the model is split over {several} of them (tensor parallel) is not said"
            return roofline.Judged(missing=missing)
        model = _listed(str(row.subject.get("model") or ""), "")
        return roofline.judge(row.result, model, Split(int(parallel or 1)), bandwidth.of(hardware))
    sheets = _sheets(spec.nodes)
    hardware = row.subject.get("hardware") or _hardware(sheets)
    return roofline.judge(row.result, _model(spec, sheets), asked.split_of(spec), bandwidth.of(hardware))


def _model(spec: Spec, sheets: Sequence[Sheet]) -> roofline.Model:
    """Its files on the nodes; where their config.json does not tell the parts apart, the catalogue's with the files' size."""
    known = loads.known_of(spec, sheets, Given())
    if not known.tensors and isinstance(weights.families(known.config), kvcache.Unknown):
        return replace(_listed(spec.model, spec.model_path), weights=known.bytes, cache_type=asked.cache_type(spec))
    origin = CATALOGUE if known.origin == "catalogue" else "its files on the nodes"
    return roofline.Model(known.config, known.bytes, known.tensors, origin, asked.cache_type(spec))


def _listed(model: str, path: str) -> roofline.Model:
    listed = catalogue.find(model, path)
    return roofline.Model(listed.config, listed.weights_bytes, origin=CATALOGUE) if listed else roofline.Model(None)


def _spec(stored: Benchmark, service: Any) -> Spec | None:
    if stored.revision is None:
        return None
    spec = stored.revision.spec
    return next((one for one in spec.each if service in (one.service, one.label)), spec.alone)


def _sheets(names: Sequence[str]) -> list[Sheet]:
    found = (inventory.latest_sheet(node) for node in Node.objects.filter(name__in=list(names)))
    return [sheet for sheet in found if sheet is not None]


def _hardware(sheets: Sequence[Sheet]) -> str:
    names = {gpu.name for sheet in sheets if sheet.gpus for gpu in sheet.gpus.gpus if gpu.name}
    return " and ".join(sorted(names))
