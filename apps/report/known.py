"""What a report is made from: frozen values, gathered from the database. Times are aware datetimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.facts.sheet import Sheet


@dataclass(frozen=True)
class Job:
    """A folder that a step of a run left on a node."""

    folder: str  # its name below jobs/
    title: str
    run: int
    at: datetime | None


@dataclass(frozen=True)
class KnownNode:
    """A node with its newest sheet. `jobs`: the newest folders that we left there; `job_count`: all of them."""

    id: int
    name: str
    address: str
    port: int
    user: str
    via: str = ""
    state: str = "ready"
    seen_at: datetime | None = None
    unreachable_since: datetime | None = None
    unreachable_reason: str = ""
    unreachable_evidence: str = ""
    boot_id: str = ""
    sheet: Sheet | None = None
    jobs: tuple[Job, ...] = ()
    job_count: int = 0
    provisioned: tuple[int, ...] = ()  # runs that changed the machine itself


@dataclass(frozen=True)
class KnownRevision:
    number: int
    at: datetime
    by: str
    reason: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Placed:
    """A rank as the last run left it, in the state of its service."""

    number: int
    service: str
    node: str
    container: str
    unit: str
    job: str
    state: str
    revision: int
    run: int


@dataclass(frozen=True)
class Answers:
    """Where an API is reached; `tunnel` where only through its node."""

    service: str
    url: str
    node: str
    tunnel: str = ""
    why: str = ""


@dataclass(frozen=True)
class Launched:
    """A run that brought the deployment up, or that failed to."""

    id: int
    story: str
    state: str
    reason: str
    evidence: str
    by: str
    why: str
    ended_at: datetime | None
    facts: dict[str, Any] = field(default_factory=dict)
    outcome: dict[str, Any] = field(default_factory=dict)
    settings: tuple[dict[str, Any], ...] = ()  # of its stored plan, see plan.step.Setting


@dataclass(frozen=True)
class Measurement:
    """A benchmark of the deployment. `worse`: what is worse than in the best known good, in sentences."""

    id: str
    name: str
    made: str
    good: bool
    levels: tuple[tuple[int, float | None, float | None], ...]  # concurrency, aggregate tokens/s, TTFT in s
    against: str = ""
    worse: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownDeployment:
    id: int
    name: str
    state: str
    reason: str
    evidence: str
    since: datetime
    served_at: datetime | None
    created_at: datetime
    created_by: str
    body: dict[str, Any]  # of the revision that runs, else of the newest
    revisions: tuple[KnownRevision, ...]  # the newest first
    revision_count: int = 0
    running: int | None = None  # number of the revision that runs
    flags: tuple[tuple[str, str, str], ...] = ()  # words, evidence, since
    policy: str = "manual"
    on_rank_lost: str = "stop"
    adopted: bool = False
    recipe: str = ""
    ranks: tuple[Placed, ...] = ()
    answers: tuple[Answers, ...] = ()
    services: tuple[dict[str, Any], ...] = ()  # of runs.queries.service_states
    last: Launched | None = None
    good: Launched | None = None
    active_run: int | None = None
    consents: tuple[str, ...] = ()  # what may be cleared for it, in words
    benchmarks: tuple[Measurement, ...] = ()  # the newest first
    robot: str = ""  # what the robot waits for or gave up


@dataclass(frozen=True)
class Decision:
    """An entry of the audit trail in which somebody gave a reason."""

    entry: int
    at: datetime
    by: str
    role: str
    act: str
    object_type: str
    object_id: str
    object_name: str
    outcome: str
    reason: str
    run: int | None = None


@dataclass(frozen=True)
class Known:
    """Everything of one report. `name`: of the deployment that it is about; empty for the whole fleet."""

    made: datetime
    name: str
    nodes: tuple[KnownNode, ...]
    deployments: tuple[KnownDeployment, ...]
    decisions: tuple[Decision, ...] | None  # None: this viewer may not see the trail
    node_count: int = 0
    deployment_count: int = 0
    decision_count: int = 0
    cleared: tuple[tuple[str, str], ...] = ()  # node and what runs stopped there and nobody has put back
    alarms: tuple[str, ...] = ()  # of the whole installation: no worker, most nodes silent
