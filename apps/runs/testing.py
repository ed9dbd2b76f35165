"""Smoke tests on demand: a run that asks a deployment what people will ask of it, and what earlier ones showed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import transaction

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.plan import stories
from apps.plan.spec import Given
from apps.runs.models import Run
from apps.runs.services import LONGEST_REASON, once, planned_run, same_request, wake

ASKED = "asked:"  # begins what a run's outcome says of one question
SHOWN_IN = ("smoke", "launch", "relaunch")


def test(
    actor: Actor,
    deployment: Deployment,
    *,
    services: Iterable[str] | None = None,
    reason: str = "",
    idempotency_key: str = "",
) -> Run:
    """Ask each service (or these; "" is the main one) what it has to answer. Holds no node and changes nothing there. Raises
    Refused where nothing runs that could answer."""

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="smoke", deployment=deployment.pk, reason=reason)

    wanted = None if services is None else tuple(services)
    return once(known, lambda: _test(actor, deployment, wanted, reason.strip(), idempotency_key))


@transaction.atomic
def _test(actor: Actor, deployment: Deployment, services: tuple[str, ...] | None, reason: str, key: str) -> Run:
    if len(reason) > LONGEST_REASON:
        raise Refused(
            "bad_input", f"The reason is longer than {LONGEST_REASON} characters.", field="reason", remedy="Shorten it."
        )
    rank = deployment.ranks.select_related("revision").order_by("-run_id").first()
    if rank is None:
        raise Refused(
            "bad_input",
            f"{deployment.name} is {deployment.state}: nothing of it runs that could answer.",
            status=409,
            remedy="Launch it first; a launch proves it by itself.",
        )
    spec = rank.revision.spec
    names = [one.service for one in spec.each]
    for service in services or ():
        if service not in names:
            raise Refused(
                "bad_input",
                f"{deployment.name} has no service {service!r}.",
                field="services",
                remedy=f"Use one of {', '.join(repr(name) for name in names)}, or leave it out for all.",
            )
    given = Given(deployment=deployment.pk, revision=rank.revision.number, only=services)
    plan = stories.smoke(spec, given=given)
    run = planned_run(actor, plan, why=reason, idempotency_key=key, deployment=deployment, revision=rank.revision)
    record(
        actor,
        "deployment:smoke",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        outcome="requested",
        reason=reason,
        run=run.pk,
    )
    wake(run.pk)
    return run


def answers(run: Run) -> list[dict[str, Any]]:
    """What each question of a run showed, in the order in which they were asked: ask, service, title, verdict (passed, failed),
    said, reason, warning, request, answer, seconds, values (ttft_s, tokens_per_s, usage, finish_reason, content, reasoning …)."""
    rows = []
    for stage in run.plan.get("stages", ()):
        for step in stage["steps"]:
            told = run.outcome.get(f"{ASKED}{step['key']}")
            if isinstance(told, dict):
                rows.append(
                    {
                        **told,
                        "key": step["key"],
                        "node": step["node"],
                        "said": told.get("said") or told.get("detail", ""),
                    }
                )
    return rows


def tests_of(deployment: Deployment, *, most: int = 20) -> list[Run]:
    """Its newest smoke tests, and launches that ended with one, the newest first."""
    runs = deployment.runs.filter(story__in=SHOWN_IN).order_by("-pk")
    found = []
    for run in runs.iterator(chunk_size=20):
        if run.story == "smoke" or answers(run):
            found.append(run)
        if len(found) >= most:
            break
    return found
