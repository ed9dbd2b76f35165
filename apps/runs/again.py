"""The second try of a launch: where the table of reasons says that one more try can help, a run starts by itself, once."""

from __future__ import annotations

import logging

from django.db import transaction

from apps.deployments import services as deployments
from apps.diagnosis.reasons import ONCE, ONCE_AFTER_CLEANUP, REASONS
from apps.diagnosis.refusal import Refused
from apps.people.models import User
from apps.people.roles import allows
from apps.plan.spec import Clear
from apps.runs import services, settling
from apps.runs.models import Run

log = logging.getLogger(__name__)


def worth_it(run: Run, reason: str | None) -> bool:
    """Whether a launch that ends for this reason is tried once more. A second try has no third."""
    row = REASONS.get(reason or "")
    return (
        row is not None
        and row.retry in (ONCE, ONCE_AFTER_CLEANUP)
        and run.story in ("launch", "relaunch")
        and run.deployment_id is not None
        and run.second_try_of_id is None
        and run.cancel_asked_at is None
    )


def try_again(run: Run) -> None:
    """Inside the transaction in which `run` failed: start its second try, under the name of who started the first, so that
    nobody takes the nodes in between. Where that can't be, `run.outcome["second_try"]` says why; the end of `run` holds anyway.
    """
    try:
        with transaction.atomic():
            services.start_again(run, clear=_agreed(run))
        return
    except Refused as no:
        why = f"{no.detail} {no.remedy}".strip()
    except Exception:
        log.exception("the second try of run %s could not be planned", run.pk)
        why = "It could not be planned; the server's log says why."
    run.outcome = {**run.outcome, "second_try": why}
    run.save(update_fields=["outcome"])


def _agreed(run: Run) -> tuple[Clear, ...]:
    """What is in the way now and an editor agreed to clear for this deployment before."""
    assert run.deployment is not None
    actor = settling.actor_of(run)
    person = User.objects.filter(pk=actor.id).first() if actor.kind == "person" and actor.id is not None else None
    if person is not None and not (person.is_active and allows(person.role, "relaunch")):
        raise Refused(
            "denied", f"{person.name} may not launch any more.", status=403, remedy="Somebody else can relaunch it."
        )
    agreed = {(one.node, one.kind, one.name): one for one in deployments.consented(run.deployment)}
    plan = services.preview(actor, run.deployment, story="relaunch")
    asked = {(item["node"], item["kind"], item["name"]) for problem in plan.problems for item in problem.clear}
    return tuple(agreed[thing] for thing in sorted(asked & set(agreed)))
