"""Start, preview and cancel runs. Everything here is rows; a worker does the work."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now
from django.utils import timezone

from apps.audit import record
from apps.audit.actor import Actor
from apps.deployments import learning
from apps.deployments import services as deployments
from apps.deployments.models import Deployment, Revision
from apps.deployments.queries import clearing_of, others
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.refusal import Refused
from apps.doorbell.ring import ring_on_commit
from apps.facts.sheet import Sheet
from apps.inventory import services as inventory
from apps.inventory.models import Credential, Node
from apps.people.roles import allows
from apps.plan import adopting, stories
from apps.plan.recorded import Recorded
from apps.plan.spec import Clear, Given
from apps.plan.step import Plan
from apps.runs import leases, line, settling
from apps.runs.models import ACTIVE, Reservation, Run, Step, WorkerBeat

log = logging.getLogger(__name__)
WORKER_SILENT_S = 10.0
SCAN_WAIT_S = 40.0
SSH_PORT = 22
PLANNED = ("launch", "relaunch", "stop")
ACTIONS = {"launch": "launch", "relaunch": "relaunch", "stop": "stop"}
LONGEST_REASON = 2000
LONGEST_NAME = 255  # characters of what is cleared


@dataclass(frozen=True)
class WorkerStatus:
    alive: bool
    age_s: float | None  # since the last sign of life of any worker; None: never


def worker_status() -> WorkerStatus:
    """By the database's clock. A sign of life from a time to come is none: that clock was set back since."""
    age = ExpressionWrapper(Now() - F("at"), output_field=DurationField())
    until = Now() + timedelta(seconds=WORKER_SILENT_S)
    newest = WorkerBeat.objects.filter(at__lte=until).annotate(age=age).order_by("-at").first()
    if newest is None:
        return WorkerStatus(False, None)
    seconds = newest.age.total_seconds()
    return WorkerStatus(seconds < WORKER_SILENT_S, max(0.0, seconds))


def wake(run_id: int) -> None:
    """Tell a worker, after commit. If nobody hears it, the reaper finds the row within seconds."""

    def send() -> None:
        import_module(settings.TASKS_OF)
        from apps.runs.tasks import advance

        try:
            advance.apply_async((run_id,), retry=False)
        except Exception as problem:
            log.warning("run %s waits for the reaper: %s", run_id, problem)

    transaction.on_commit(send)


def _new_run(actor: Actor, story: str, **fields: Any) -> Run:
    return Run.objects.create(
        code=secrets.token_hex(5),
        story=story,
        actor_kind=actor.kind,
        actor_id=actor.id,
        actor_name=actor.name,
        actor_role=actor.role,
        **fields,
    )


# Enrolling


def enrol(
    actor: Actor,
    *,
    name: str,
    address: str,
    port: int | str,
    user: str,
    credential: Credential,
    jump: Node | None,
    idempotency_key: str = "",
) -> Node:
    """Ask a worker which host keys the door shows, then store the node, unconfirmed. Raises Refused; then nothing is stored.

    Waits up to SCAN_WAIT_S for the worker; must not be called inside a transaction. The same key again looks at nothing anew: it
    gives the node that the first request stored, or the refusal that it met.
    """
    wish = {
        "name": name.strip(),
        "address": address.strip(),
        "port": str(port),
        "user": user.strip(),
        "credential": credential.pk,
        "jump": jump.pk if jump else None,
    }
    run = _scan_of(actor, idempotency_key, wish)
    if run is None:
        name, address, number, user = inventory.check_node(name=name, address=address, port=port, user=user, jump=jump)
        _need_worker()
        run = _first_scan(actor, idempotency_key, wish, name=name, address=address, port=number, user=user)
        wake(run.pk)
    run = _wait(run, SCAN_WAIT_S)
    asked = run.parameters
    if run.state != Run.State.SUCCEEDED:
        reason = REASONS.get(run.reason or "")
        raise Refused(
            run.reason or "internal",
            reason.sentence if reason else "The node could not be looked at.",
            field=_field_of(run.reason or "", port=asked["port"]),
            evidence=run.evidence,
            remedy=reason.remedy if reason else "Look at the worker's log.",
        )
    with transaction.atomic():  # two requests with one key: the second waits here and finds the node of the first
        run = Run.objects.select_for_update().get(pk=run.pk)
        if stored := Node.objects.filter(pk=run.outcome.get("node")).first():
            return stored
        node = inventory.add_node(
            actor,
            name=asked["name"],
            address=asked["address"],
            port=asked["port"],
            user=asked["user"],
            credential=credential,
            jump=jump,
            found=run.outcome["host_keys"],
        )
        Run.objects.filter(pk=run.pk).update(outcome={**run.outcome, "node": node.pk})
    return node


def _scan_of(actor: Actor, idempotency_key: str, wish: Mapping[str, Any]) -> Run | None:
    """The look at a new node's door that this actor asked for with this key and these words."""
    run = same_request(actor, idempotency_key, story="scan")
    if run is not None and run.parameters.get("wish") != wish:
        raise _reused(run)
    return run


def _first_scan(actor: Actor, idempotency_key: str, wish: Mapping[str, Any], **checked: Any) -> Run:
    """A new look at a door; of two requests that come at once with one key, both get the same."""
    parameters = {**wish, **checked, "wish": wish}
    try:
        with transaction.atomic():
            return _new_run(actor, "scan", parameters=parameters, idempotency_key=idempotency_key or None)
    except IntegrityError:
        run = _scan_of(actor, idempotency_key, wish)
        if run is None:
            raise
        return run


def _field_of(reason: str, *, port: int) -> str:
    """Which field of a new node a person would correct. A door that is shut behind port 22 is more likely another machine's."""
    if reason.startswith("jump"):
        return "jump"
    return "port" if reason == "not_ssh" or (reason in ("ssh_refused", "ssh_busy") and port != SSH_PORT) else "address"


def rescan(actor: Actor, node: Node, *, idempotency_key: str = "") -> Run:
    """Look again which keys the door of a known node shows (after a change, for an admin to compare)."""

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="scan", nodes=[node.name])

    return once(known, lambda: _rescan(actor, node, idempotency_key))


@transaction.atomic
def _rescan(actor: Actor, node: Node, idempotency_key: str) -> Run:
    _need_worker()
    run = _new_run(
        actor,
        "scan",
        parameters={"node": node.pk, "node_name": node.name},
        idempotency_key=idempotency_key or None,
    )
    wake(run.pk)
    return run


def _need_worker() -> None:
    status = worker_status()
    if not status.alive:
        raise Refused(
            "no_worker",
            "No worker is running, so nobody can open the connection.",
            status=503,
            remedy="Start one (`make up` does) and try again.",
        )


def _wait(run: Run, seconds: float) -> Run:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.refresh_from_db()
        if run.ended:
            return run
        if connection.in_atomic_block:
            break  # nobody else's commit would be seen
        time.sleep(0.1)
    with transaction.atomic():
        run.refresh_from_db()
        if not run.ended:
            settling.finish(
                run, Run.State.INTERRUPTED, reason="no_worker", evidence=f"no answer from a worker for {seconds:.0f} s"
            )
    return run


# Probing


def probe(actor: Actor, nodes: Sequence[Node], *, idempotency_key: str = "") -> Run:
    """Take a fresh sheet of each node, in parallel; an unreachable one delays nobody."""

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story="probe", nodes=[node.name for node in nodes])

    return once(known, lambda: _probe(actor, nodes, idempotency_key))


@transaction.atomic
def _probe(actor: Actor, nodes: Sequence[Node], idempotency_key: str) -> Run:
    if not nodes:
        raise Refused("bad_input", "There is no node to probe.", field="nodes", remedy="Add a node first.")
    for node in nodes:
        inventory.endpoint(node)  # Refused for an unconfirmed or stopped one
    plan = stories.probe([node.name for node in nodes])
    run = planned_run(actor, plan, why="", idempotency_key=idempotency_key)
    record(
        actor,
        "node:probe",
        object_type="node" if len(nodes) == 1 else "run",
        object_id=str(nodes[0].pk if len(nodes) == 1 else run.pk),
        object_name=", ".join(plan.nodes)[:200],
        outcome="requested",
        run=run.pk,
    )
    wake(run.pk)
    return run


def planned_run(actor: Actor, plan: Plan, *, why: str, idempotency_key: str = "", **fields: Any) -> Run:
    run = _new_run(
        actor,
        plan.story,
        plan=plan.to_json(),
        digest=plan.digest,
        why=why,
        idempotency_key=idempotency_key or None,
        **fields,
    )
    _make_steps(run, plan)
    ring_on_commit("run", run.pk)
    ring_on_commit("fleet", 0)
    return run


def _make_steps(run: Run, plan: Plan) -> None:
    nodes = {node.name: node for node in Node.objects.filter(name__in=plan.nodes)}
    steps, ordinal = [], 0
    for number, stage in enumerate(plan.stages):
        for step in stage.steps:
            steps.append(
                Step(
                    run=run,
                    stage=number,
                    ordinal=ordinal,
                    key=step.key,
                    node=nodes.get(step.node),
                    rank=step.rank,
                    title=step.title[:300],
                    kind=step.kind,
                )
            )
            ordinal += 1
    Step.objects.bulk_create(steps)


def same_request(
    actor: Actor,
    idempotency_key: str,
    *,
    story: str,
    deployment: int | None = None,
    nodes: Sequence[str] | None = None,
    digest: str = "",
    reason: str = "",
) -> Run | None:
    """The run that this actor started with this key. Raises Refused (422) when that was a request for something else: a mistake,
    which must not look like success."""
    if not idempotency_key:
        return None
    if len(idempotency_key) > 80:
        raise Refused(
            "bad_input",
            "The idempotency key is longer than 80 characters.",
            field="Idempotency-Key",
            remedy="Use a UUID.",
        )
    run = Run.objects.filter(
        actor_kind=actor.kind, actor_name=actor.name, idempotency_key=idempotency_key
    ).first()  # fmt: skip
    if run is None:
        return None
    same = (run.story, run.deployment_id, run.why) == (story, deployment, reason.strip())
    same = same and digest in ("", run.digest, run.outcome.get("planned_before"))
    if same and (nodes is None or list(nodes) == _nodes_of(run)):
        return run
    raise _reused(run)


def once(known: Callable[[], Run | None], make: Callable[[], Run]) -> Run:
    """The run that a request's key started, else what `make` makes. Of two with one key that come at once, the second meets what the
    first has done by then (its nodes are taken, another plan is due, the key is used) and gets the run of the first all the same.
    """
    if (found := known()) is not None:
        return found
    try:
        return make()
    except (Refused, IntegrityError):
        if (found := known()) is not None:
            return found
        raise


def _reused(run: Run) -> Refused:
    return Refused(
        "idempotency_key_reused",
        f"This key started run {run.pk}, a {run.story}, with another request.",
        field="Idempotency-Key",
        status=422,
        remedy="Use a new key for each thing that you start, e.g. a UUID.",
        extra={"run": run.pk},
    )


def _nodes_of(run: Run) -> list[str]:
    return list(run.plan.get("nodes", [])) or [run.parameters.get("node_name", "")]


# Planning


def sheets_of(names: Sequence[str]) -> dict[str, Sheet]:
    """The newest sheet of each node that has one."""
    found = {}
    for node in Node.objects.filter(name__in=list(names)):
        sheet = inventory.latest_sheet(node)
        if sheet is not None:
            found[node.name] = sheet
    return found


def preview(
    actor: Actor,
    deployment: Deployment,
    *,
    story: str = "launch",
    clear: Sequence[Clear] = (),
    only: Sequence[str] | None = None,
    config: dict[str, Any] | None = None,
    revision: int | None = None,
) -> Plan:
    """What would run now. Reads the newest sheets; changes nothing. `only`: services that a stop is about; None: all of them.
    `config`: the model's config.json, for the fit alone, where no node has it. `revision`: the number of the one that served last,
    to go back to it; None: the newest."""
    if story not in (*PLANNED, "adopt"):
        raise Refused(
            "bad_input", f"There is no story {story!r}.", field="story", remedy=f"Use one of {', '.join(PLANNED)}."
        )
    wanted = _revision(deployment, story, revision)
    spec = wanted.spec
    for place, item in enumerate(clear):
        if item.node not in spec.nodes:
            raise Refused(
                "bad_input",
                f"{item.node} is no node of {deployment.name}, so nothing is cleared there.",
                field=f"clear[{place}].node",
                remedy="Copy the item from the plan's problems.",
            )
    given = Given(
        deployment=deployment.pk,
        revision=wanted.number,
        clear=tuple(clear),
        healthy=deployment.state == "serving",
        serving=_serving(deployment),
        only=None if only is None else tuple(only),
        found=_found(deployment),
        adopted=deployment.adopted,
        others=others(deployment, spec.nodes),
        config=config,
        measured=learning.measured(spec),
        last_good=_recorded(deployment) if story in ("launch", "relaunch") else None,
    )
    if story == "adopt":
        return stories.adopt(spec, deployment.found, given=given)
    planner = {"launch": stories.launch, "relaunch": stories.relaunch, "stop": stories.stop}[story]
    return planner(spec, sheets_of(spec.nodes), given=given)


def last_good(deployment: Deployment) -> Run | None:
    """The newest launch or relaunch that reached serving."""
    good = deployment.runs.filter(state=Run.State.SUCCEEDED, story__in=("launch", "relaunch"), revision__isnull=False)
    return good.select_related("revision").order_by("-pk").first()


def _recorded(deployment: Deployment) -> Recorded | None:
    run = last_good(deployment)
    return Recorded(run.pk, run.revision.number, run.plan) if run is not None and run.revision is not None else None


def to_go_back_to(deployment: Deployment) -> Revision | None:
    """The revision that served last, where the newest says something else and has not served."""
    run = last_good(deployment)
    served = run.revision if run is not None else None
    return served if served is not None and served.body != deployment.revision.body else None


def _revision(deployment: Deployment, story: str, number: int | None) -> Revision:
    """The newest one. Going back, one that does not exist yet: it will say what the last good one says. A stop is of what runs,
    where the newest revision was never tried."""
    newest = deployment.revision
    if number is None or number == newest.number:
        return _that_runs(deployment) or newest if story == "stop" else newest
    back = to_go_back_to(deployment) if story == "relaunch" else None
    if back is None or back.number != number:
        raise Refused(
            "bad_input",
            f"Revision {number} is neither the newest nor one to go back to.",
            field="revision",
            remedy=f"Leave it out for revision {newest.number}"
            + (
                f", or use {back.number}, which served last."
                if back
                else ", or change the deployment to say what it said."
            ),
        )
    return Revision(deployment=deployment, number=newest.number + 1, body=back.body)


def _that_runs(deployment: Deployment) -> Revision | None:
    """Of the ranks, while nothing was launched since they were."""
    rank = deployment.ranks.select_related("revision").order_by("-run_id").first()
    later = deployment.runs.filter(story__in=("launch", "relaunch"))
    if rank is None or later.filter(pk__gt=rank.run_id).exists():
        return None
    return rank.revision


def _found(deployment: Deployment) -> tuple[Clear, ...]:
    """What was taken over and runs still as it was found: cleared as the editor who took it over agreed."""
    if not deployment.found or deployment.adopted:
        return ()
    agreed = {(one.node, one.kind, one.name): one for one in deployments.consented(deployment)}
    things = clearing_of(deployment)
    return tuple(agreed.get((one.node, one.kind, one.name), one) for one in things)


def adoptable(node: Node) -> tuple[adopting.Found, ...]:
    """What serves on a node and is neither ours nor adopted already, by its newest sheet."""
    sheet = inventory.latest_sheet(node)
    taken = {
        (one["kind"], one["name"])
        for row in Deployment.objects.filter(archived_at=None).exclude(found=[])
        for one in row.found
        if one["node"] == node.name
    }
    return tuple(one for one in adopting.found_on(sheet) if (one.kind, one.name) not in taken) if sheet else ()


def adopt(
    actor: Actor,
    node: Node,
    *,
    name: str,
    things: Sequence[tuple[str, str]],
    reason: str = "",
    idempotency_key: str = "",
) -> Run:
    """Make a deployment of what serves on a node without us, each of `things` (container or unit, name) a service, and begin to
    watch it: a run that looks, follows the logs and asks the API. Nothing on the node is changed. Raises Refused."""
    made = Deployment.objects.filter(name=name.strip(), archived_at=None).exclude(found=[]).first()
    known = same_request(
        actor,
        idempotency_key,
        story="adopt",
        deployment=made.pk if made else None,
        nodes=[node.name],
        reason=reason,
    )
    if known is not None:
        return known
    sheet = inventory.latest_sheet(node)
    if sheet is None:
        raise Refused("not_found", f"Nothing is known of {node.name} yet.", status=409, remedy="Probe it first.")
    there: dict[tuple[str, str], adopting.Found] = {(one.kind, one.name): one for one in adopting.found_on(sheet)}
    for kind, thing in things:
        if (kind, thing) not in there:
            raise Refused(
                "bad_input",
                f"No {kind[:20]} called {thing[:100]} serves a model on {node.name}, or it is ours.",
                field="things",
                remedy="Probe the node again and choose what is listed there.",
            )
    with transaction.atomic():
        chosen = [there[thing] for thing in dict.fromkeys(things)]
        made = deployments.adopt(actor, name=name, found=chosen, reason=reason)
        plan = preview(actor, made, story="adopt")
        return start(actor, made, story="adopt", digest=plan.digest, reason=reason, idempotency_key=idempotency_key)


def _serving(deployment: Deployment) -> tuple[str, ...]:
    """Of several services those that serve, as the watch saw them last."""
    seen: dict[str, Any] = deployment.observed.get("services") or {}
    return tuple(name for name, one in seen.items() if one["state"] == "serving")


def start(
    actor: Actor,
    deployment: Deployment,
    *,
    story: str,
    digest: str,
    reason: str,
    clear: Sequence[Clear] = (),
    idempotency_key: str = "",
    wait: bool = False,
    because: str = "",
    only: Sequence[str] | None = None,
    revision: int | None = None,
    under: Mapping[str, Any] | None = None,
) -> Run:
    """Store the plan that was previewed and hand it to a worker. Raises Refused: plan_changed, node_reserved, a missing reason,
    a preflight that says no, or a clearing that nobody allowed.

    With `wait`, a node that another run holds is waited for in line: the run is stored now, and planned anew when its turn comes.
    `because` is the reason that the deployment keeps after a stop that nobody wished for (rank_lost). `revision`: go back to the
    one that served last, as for `preview`. `under`: the policy that a robot acts under, with who set it; kept with the run.
    """

    def known() -> Run | None:
        return same_request(actor, idempotency_key, story=story, deployment=deployment.pk, digest=digest, reason=reason)

    def make() -> Run:
        return _attempted(
            actor,
            deployment,
            story=story,
            digest=digest,
            reason=reason.strip(),
            clear=clear,
            idempotency_key=idempotency_key,
            wait=wait,
            because=because,
            only=only,
            revision=revision,
            under=under,
        )

    return once(known, make)


def _attempted(
    actor: Actor,
    deployment: Deployment,
    *,
    story: str,
    digest: str,
    reason: str,
    clear: Sequence[Clear],
    idempotency_key: str,
    wait: bool,
    because: str,
    only: Sequence[str] | None,
    revision: int | None,
    under: Mapping[str, Any] | None,
) -> Run:
    if not reason and story == "relaunch":
        raise Refused(
            "bad_input",
            f"A {story} needs a reason.",
            field="reason",
            remedy="Say why in a few words; it is kept in the audit trail.",
        )
    if len(reason) > LONGEST_REASON:
        raise Refused(
            "bad_input", f"The reason is longer than {LONGEST_REASON} characters.", field="reason", remedy="Shorten it."
        )
    if story not in ("adopt", "stop"):
        deployments.not_adopted(deployment)
    _may_clear(actor, deployment, clear, reason=reason)
    wanted = _revision(deployment, story, revision).spec.nodes
    taken = bool(line.holders(wanted) or line.waiting_for(wanted))
    if taken and not wait:
        raise _held(wanted)
    plan = preview(actor, deployment, story=story, clear=clear, only=only, revision=revision)
    if plan.digest != digest:
        raise Refused(
            "plan_changed",
            "What would run is not what was previewed any more.",
            status=409,
            field="digest",
            remedy="Look at the new plan and start again.",
            extra={"digest": plan.digest},
        )
    if not taken:
        _nothing_in_the_way(plan)
    try:
        with transaction.atomic():
            common: dict[str, Any] = {"reason": reason, "clear": clear, "idempotency_key": idempotency_key}
            if revision is not None and plan.revision != deployment.revision.number:
                _go_back(actor, deployment, plan, reason=reason)
            if taken:
                return _join_the_line(actor, deployment, plan, **common)
            return _start(actor, deployment, plan, because=because, under=under, **common)
    except IntegrityError:  # somebody was faster, perhaps this very request
        if taken or not wait:
            raise _held(plan.nodes) from None
    return _attempted(
        actor,
        deployment,
        story=story,
        digest=digest,
        reason=reason,
        clear=clear,
        idempotency_key=idempotency_key,
        wait=True,
        because=because,
        only=only,
        revision=revision,
        under=under,
    )


def _go_back(actor: Actor, deployment: Deployment, plan: Plan, *, reason: str) -> None:
    """The revision that the plan is of. Raises Refused when somebody else made one in between."""
    back = to_go_back_to(deployment)
    made = deployments.go_back(actor, deployment, back, reason=reason) if back is not None else deployment.revision
    if made.number != plan.revision:
        raise Refused(
            "plan_changed",
            f"{deployment.name} was given another revision meanwhile.",
            status=409,
            field="revision",
            remedy="Look at the new plan and start again.",
        )


def start_again(run: Run, *, clear: Sequence[Clear]) -> Run:
    """The second try of a failed launch, by whoever started it: a relaunch of the same revision. Inside the transaction that ends
    `run`. Raises Refused when something is in the way or the deployment was changed since."""
    assert run.deployment is not None
    deployment, actor = run.deployment, settling.actor_of(run)
    if deployment.revision.pk != run.revision_id:
        raise Refused(
            "plan_changed",
            f"{deployment.name} has a newer revision.",
            status=409,
            remedy="Relaunch it to use that one.",
        )
    plan = preview(actor, deployment, story="relaunch", clear=clear)
    _nothing_in_the_way(plan)
    title = REASONS[run.reason or ""].title
    why = f"Second try of run {run.pk}, which ended with: {title}{'. ' if run.why else ''}{run.why}"[:LONGEST_REASON]
    return _start(actor, deployment, plan, reason=why, clear=(), idempotency_key="", second_try_of=run)


def _nothing_in_the_way(plan: Plan) -> None:
    """Raises Refused for the first problem that stops the plan or waits for consent."""
    for problem in plan.refused:
        raise Refused(
            problem.name,
            f"{problem.title}{'. ' if problem.meaning else ''}{problem.meaning}",
            status=409,
            remedy=problem.remedy,
            evidence=problem.evidence,
            extra={"node": problem.node, "clear": list(problem.clear)}
            | ({"deployment": problem.deployment} if problem.deployment else {}),
        )


def _start(
    actor: Actor,
    deployment: Deployment,
    plan: Plan,
    *,
    reason: str,
    clear: Sequence[Clear],
    idempotency_key: str,
    second_try_of: Run | None = None,
    because: str = "",
    under: Mapping[str, Any] | None = None,
) -> Run:
    run = _new_attempt(
        actor,
        deployment,
        plan,
        reason=reason,
        clear=clear,
        idempotency_key=idempotency_key,
        second_try_of=second_try_of,
        parameters=({"because": because, "evidence": deployment.evidence} if because else {})
        | ({"under": dict(under)} if under else {}),
    )
    _take_nodes(run, plan.nodes)
    _forget_what_was_seen(deployment, kept=plan.kept)
    settling.settle(run)
    wake(run.pk)
    return run


def _join_the_line(
    actor: Actor, deployment: Deployment, plan: Plan, *, reason: str, clear: Sequence[Clear], idempotency_key: str
) -> Run:
    """A run without nodes: it changes nothing, also not what is said of its deployment, until its turn comes."""
    waiting = {"waits": True, "clear": [asdict(item) for item in clear]}
    return _new_attempt(
        actor,
        deployment,
        plan,
        reason=reason,
        clear=clear,
        idempotency_key=idempotency_key,
        state=Run.State.RESERVING,
        phase="reserving",
        parameters=waiting,
    )


def _new_attempt(
    actor: Actor,
    deployment: Deployment,
    plan: Plan,
    *,
    reason: str,
    clear: Sequence[Clear],
    idempotency_key: str,
    second_try_of: Run | None = None,
    **fields: Any,
) -> Run:
    """The run with its plan, what an editor agreed to, and the entry in the trail."""
    for node in Node.objects.filter(name__in=plan.nodes):
        inventory.endpoint(node)
    was = deployment.reason or deployment.state
    run = planned_run(
        actor,
        plan,
        why=reason,
        idempotency_key=idempotency_key,
        deployment=deployment,
        revision=deployment.revision,
        was=was,
        second_try_of=second_try_of,
        **fields,
    )
    if allows(actor.role, "clear"):
        deployments.remember_consents(actor, deployment, clear, reason=reason)
    after: dict[str, Any] = {"plan": plan.digest, "revision": plan.revision, "was": was, "nodes": list(plan.nodes)}
    if second_try_of:
        after["second_try_of"] = second_try_of.pk
    if under := (fields.get("parameters") or {}).get("under"):
        after["under"] = under
    if plan.differences:
        after["differences"] = [
            f"{one.name}{f' on {one.node}' if one.node else ''}: {one.before or 'none'} -> {one.after or 'none'}"
            for one in plan.differences[:40]
        ]
    if line.waits(run):
        after["waits_for"] = sorted({one.run for one in line.holders(plan.nodes)})
    after["clear"] = [
        f"{item.kind} {item.name} on {item.node}{' and disable' if item.disable else ''}" for item in clear
    ]
    record(
        actor,
        f"deployment:{plan.story}",
        object_type="deployment",
        object_id=str(deployment.pk),
        object_name=deployment.name,
        outcome="requested",
        reason=reason,
        run=run.pk,
        after=after,
    )
    ring_on_commit("audit", 0)
    return run


def _take_nodes(run: Run, nodes: Sequence[str]) -> None:
    """In sorted order, all or none. Raises IntegrityError when one is held."""
    for node in Node.objects.filter(name__in=list(nodes)).order_by("pk"):
        Reservation.objects.create(node=node, run=run)


def _forget_what_was_seen(deployment: Deployment, *, kept: Sequence[str] = ()) -> None:
    """Of services that the run leaves alone what was seen holds on, and so does what they make of the whole."""
    observed = deployment.observed if kept else {}
    if not Deployment.objects.filter(pk=deployment.pk, archived_at=None).update(observed=observed):
        raise Refused("in_use", f"{deployment.name} is archived.", status=409, remedy="Bring it back first.")


def take_turn(run: Run, token: str) -> str:
    """For a run in line, under its lease: "waits" while it is not its turn; else it takes its nodes, is planned anew and is "on",
    or it has "ended" because what would run now is not what was agreed to."""
    with transaction.atomic():
        mine = Run.objects.select_for_update(of=("self",)).select_related("deployment", "revision")
        found = mine.filter(pk=run.pk, lease_token=token).first()
        if found is None or found.deployment is None or not line.waits(found):
            return "ended"
        nodes = found.plan["nodes"]
        if line.waiting_for(nodes, before=found.pk) or line.holders(nodes):
            return "waits"
        actor = settling.actor_of(found)
        try:
            with transaction.atomic():
                _take_nodes(found, nodes)
                _plan_anew(actor, found)
        except IntegrityError:
            return "waits"
        except Refused as no:
            settling.finish(
                found,
                Run.State.FAILED,
                reason=no.reason,
                evidence=f"When its turn came: {no.detail} {no.evidence}".strip(),
            )
            return "ended"
        settling.settle(found)
        return "on"


def _plan_anew(actor: Actor, run: Run) -> None:
    """Replace the plan of a run whose turn has come by what would run now. It clears what was agreed to when it was started, and
    nothing else. Raises Refused."""
    assert run.deployment is not None
    if run.deployment.revision.pk != run.revision_id:
        raise Refused("superseded", f"{run.deployment.name} has a newer revision.")
    plan = preview(actor, run.deployment, story=run.story, clear=clear_from(run.parameters.get("clear")))
    _nothing_in_the_way(plan)
    _forget_what_was_seen(run.deployment, kept=plan.kept)
    if plan.digest != run.digest:
        run.steps.all().delete()
        _make_steps(run, plan)
        run.outcome = {**run.outcome, "planned_before": run.digest}
    run.plan, run.digest, run.state, run.phase, run.parameters = plan.to_json(), plan.digest, Run.State.QUEUED, None, {}
    run.save(update_fields=["plan", "digest", "state", "phase", "parameters", "outcome"])


def _may_clear(actor: Actor, deployment: Deployment, clear: Sequence[Clear], *, reason: str) -> None:
    """An editor may clear; an operator exactly what an editor has consented to for this deployment. A refusal is recorded."""
    if not clear or allows(actor.role, "clear"):
        return
    agreed = {(c.node, c.kind, c.name): c.disable for c in deployments.consented(deployment)}
    for item in clear:
        known = agreed.get((item.node, item.kind, item.name))
        if known is None or (item.disable and not known):
            record(
                actor, "deployment:clear", object_type="deployment", object_id=str(deployment.pk), object_name=deployment.name,
                outcome="denied", reason=reason, after={"clear": f"{item.kind} {item.name} on {item.node}"},
            )  # fmt: skip
            raise Refused(
                "consent_needed",
                f"Nobody with the role editor has agreed to clear {item.kind} {item.name} on {item.node}"
                f"{' and disable it' if item.disable and known is not None else ''} for {deployment.name}.",
                field="clear",
                status=403,
                remedy="Ask an editor to relaunch once, or to agree.",
            )


def _held(nodes: Sequence[str]) -> Refused:
    """Who holds one of these nodes, for what and since when; else who waits for it already."""
    held = line.holders(nodes)
    if not held:
        first = next(iter(line.waiting_for(nodes)), None)
        if first is None:
            return Refused("node_reserved", "A node is in use by another run.", status=409, remedy="Try again.")
        return Refused(
            "node_reserved",
            f"Run {first.pk}, the {line.purpose(first)} that {first.actor_name} started, waits for these nodes and is next.",
            status=409,
            remedy="Wait in line behind it, or cancel it.",
            extra={"run": first.pk, "node": first.plan["nodes"][0]},
        )
    one = held[0]
    return Refused(
        "node_reserved",
        f"{one.node} is held by run {one.run}, the {one.what} that {one.by} started, since {one.since:%H:%M:%S} UTC.",
        status=409,
        remedy=f"Wait for run {one.run} to end, or cancel it; a launch, relaunch or stop can wait in line.",
        extra={"run": one.run, "node": one.node, "line": len(line.waiting_for(nodes))},
    )


# Cancelling


@transaction.atomic
def cancel(actor: Actor, run: Run, *, reason: str = "") -> Run:
    """Ask for the end of a run. A worker confirms it once the nodes are clean. Idempotent."""
    run = Run.objects.select_for_update().get(pk=run.pk)
    if run.ended:
        raise Refused(
            "bad_input", f"Run {run.pk} has ended: {run.state}.", status=409, remedy="Nothing is left to cancel."
        )
    if run.cancel_asked_at is None:
        Run.objects.filter(pk=run.pk).update(
            cancel_asked_at=timezone.now(), cancel_asked_by=actor.name, cancel_why=reason[:LONGEST_REASON]
        )
        record(
            actor,
            "run:cancel",
            object_type="run",
            object_id=str(run.pk),
            object_name=str(run),
            outcome="requested",
            reason=reason,
            run=run.pk,
        )
        ring_on_commit("run", run.pk)
        if line.waits(run):  # it has touched nothing
            settling.finish(run, Run.State.CANCELLED, reason="cancelled")
        else:
            wake(run.pk)
    run.refresh_from_db()
    return run


def clear_from(items: Sequence[Mapping[str, Any]] | None) -> tuple[Clear, ...]:
    """Clear items out of JSON. Raises Refused naming the place."""
    made = []
    for place, item in enumerate(items or ()):
        if not isinstance(item, Mapping) or set(item) - {"node", "kind", "name", "disable"}:
            raise Refused(
                "bad_input",
                "An item has unknown keys.",
                field=f"clear[{place}]",
                remedy="Use node, kind, name and disable.",
            )
        if item.get("kind") not in ("unit", "container", "process"):
            raise Refused(
                "bad_input",
                f"{item.get('kind')!r} can't be cleared.",
                field=f"clear[{place}].kind",
                remedy="Use unit, container or process.",
            )
        if not isinstance(item.get("node"), str) or not isinstance(item.get("name"), str) or not item["name"]:
            raise Refused(
                "bad_input",
                "node and name must be text.",
                field=f"clear[{place}]",
                remedy="Copy the item from the plan's problems.",
            )
        if not isinstance(item.get("disable", False), bool):
            raise Refused(
                "bad_input",
                "disable must be true or false.",
                field=f"clear[{place}].disable",
                remedy="Leave it out or use true.",
            )
        made.append(Clear(item["node"], item["kind"], item["name"], item.get("disable", False)))
        if any(not word.isprintable() or len(word) > LONGEST_NAME for word in (item["node"], item["name"])):
            raise Refused(
                "bad_input",
                f"node or name is longer than {LONGEST_NAME} characters or holds some that can't be shown.",
                field=f"clear[{place}]",
                remedy="Copy the item from the plan's problems.",
            )
    things = [(one.node, one.kind, one.name) for one in dict.fromkeys(made)]
    if len(set(things)) != len(things):
        raise Refused(
            "bad_input",
            "The same thing is named twice, with and without disable.",
            field="clear",
            remedy="Name it once.",
        )
    return tuple(sorted(set(made), key=lambda c: (c.node, c.kind, c.name)))


def stuck(*, older_than: timedelta) -> list[int]:
    """Ids of runs that should move and that no worker holds."""
    left = Run.objects.filter(leases.unheard(older_than), state__in=ACTIVE)
    return list(left.order_by("pk").values_list("pk", flat=True))
