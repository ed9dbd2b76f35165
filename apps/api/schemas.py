"""What goes in and out of /api/v1. Bodies are strict: no unknown fields, no numbers in quotes. Unknown is null."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from ninja import Header, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from apps.api.finding import LARGEST_ID, MOST, PAGE
from apps.deployments.state import RankState

LONGEST_KEY = 32 * 1024  # characters of an uploaded private key
MOST_NODES, MOST_CLEAR = 64, 500


class Body(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Out(BaseModel):
    """An answer."""


# Parts


def _id_or_name(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("give an id (a number) or a name (text)")
    if isinstance(value, str) and not 0 < len(value) <= 255:
        raise ValueError("a name has 1 to 255 characters")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("it holds a NUL character")
    return value


def _moment(value: Any) -> Any:
    """A plus sign that was sent unescaped arrives as a space: 2026-11-30T12:00:00 01:00."""
    return value.replace(" ", "+") if isinstance(value, str) and "T" in value else value


def _in_utc(value: datetime) -> datetime:
    try:
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("it is out of range") from None


Reference = Annotated[int | str, BeforeValidator(_id_or_name), Field(description="id or name")]
NodeName = Annotated[str, Field(min_length=1, max_length=255)]
Word = Annotated[str, StringConstraints(max_length=300), AfterValidator(_no_nul)]
Moment = Annotated[datetime, BeforeValidator(_moment), AfterValidator(_in_utc)]
After = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="`next` of the answer before")]
Limit = Annotated[int, Query(ge=1, description=f"at most {MOST} come")]
Identity = Annotated[int | None, Query(ge=1, le=LARGEST_ID)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,80}$",
        description="1 to 80 visible ASCII characters; the same key gives the same run, whatever happens on the way",
    ),
]
LIMIT = PAGE


class Problem(Out):
    """An error, as application/problem+json. Some carry more: `digest` (plan_changed), `run` (node_reserved)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    reason: str | None = Field(description="of the table of `manage.py reasons --json`, or of the request")
    field: str | None = Field(description="path of the field that is wrong, as in clear[0].kind")
    detail: str
    remedy: str


class Named(Out):
    id: int
    name: str


class Started(Out):
    run: int


# Credentials


class CredentialBody(Body):
    name: str = Field(max_length=80)
    private_key: str = Field("", max_length=LONGEST_KEY, description="OpenSSH or PEM text; empty: a new ed25519 pair")
    passphrase: str = Field("", max_length=1024, description="of the uploaded key; it is not kept")


class CredentialOut(Out):
    id: int
    name: str
    kind: str = Field(description="generated or uploaded")
    public_key: str
    created_at: datetime
    created_by: str


class Credentials(Out):
    credentials: list[CredentialOut]
    next: int | None


# Nodes


class NodeBody(Body):
    name: str = Field(max_length=63)
    address: str = Field(max_length=255)
    port: int = Field(22, ge=1, le=65535)
    user: str = Field(max_length=64)
    credential: Reference
    jump: Reference | None = None


class ConfirmBody(Body):
    sha256: str = Field(max_length=100, description="fingerprint of a key that the node showed, as SHA256:…")


class RepinBody(ConfirmBody):
    reason: str = Field("", max_length=2000)


class UnlockBody(Body):
    reason: str = Field("", max_length=2000, description="how you know that the other installation is gone")


class FetchBody(Body):
    repo: str = Field(max_length=300, description="as the hub calls it, e.g. Qwen/Qwen3-8B")
    revision: str = Field("", max_length=200, description="branch, tag or commit; left out: main")
    include: list[str] = Field([], max_length=50, description="patterns of paths; left out: all files")
    exclude: list[str] = Field([], max_length=50)
    cache: str = Field(
        "", max_length=500, description="hub folder of the cache; left out: where the node's user has it"
    )
    endpoint: str = Field("", max_length=300, description="of a mirror; left out: the hub itself")
    token: str = Field("", max_length=80, description="name of the secret that holds the hub's token")
    tool: str = Field("", max_length=10, description="auto (hf where it is found), hf or curl")
    folder: str = Field("", max_length=500, description="a folder of the node to take the files from instead of a hub")
    streams: int | None = Field(None, ge=1, le=16, description="files at a time; left out: 4")
    keep_free_gib: int | None = Field(None, ge=0, le=4096, description="that stay free on the disk; left out: 10")
    reason: str = Field("", max_length=2000, description="kept in the audit trail")


class HostKeyOut(Out):
    hop: str = Field(description="name of the node whose door showed the key")
    type: str
    sha256: str
    state: str = Field(description="offered, pinned or refused")
    confirmed_at: datetime | None
    confirmed_by: str | None


class Holder(Out):
    run: int
    since: datetime


class NodeOut(Out):
    id: int
    name: str
    address: str
    port: int
    user: str
    credential: Named
    jump: Named | None
    state: str = Field(description="unconfirmed, ready or stopped (its host key changed)")
    host_keys: list[HostKeyOut] = Field(description="of this node, then of its jump hosts, the nearest first")
    boot_id: str | None
    last_seen_at: datetime | None
    unreachable_since: datetime | None
    unreachable_reason: str | None
    unreachable_evidence: str | None
    unreachable_hop: str | None
    reserved_by: Holder | None = Field(description="the run that holds the node")
    created_at: datetime


class NodeWithSheet(NodeOut):
    sheet: dict[str, Any] | None = Field(description="facts of the last probe; sizes in bytes")
    sheet_taken_at: datetime | None
    sighting: dict[str, Any] | None = Field(description="what the watch saw last: memory, gpus, containers, units")
    sighted_at: datetime | None


class PointOut(Out):
    at: datetime
    used_bytes: int | None = Field(description="memory in use: the GPUs' own where they have any, else the machine's")
    total_bytes: int | None
    temp_c: float | None = Field(description="of the hottest GPU")
    power_w: float | None = Field(description="of all GPUs")
    busy_pct: float | None = Field(description="of the busiest GPU")


class MarkOut(Out):
    at: datetime
    kind: str = Field(
        description="rebooted, unreachable, reachable, or the state of a deployment there: lost, degraded …"
    )
    text: str


class GapOut(Out):
    start: datetime
    end: datetime


class NodeHistory(Out):
    span: Literal["hour", "day", "month"]
    step_s: int = Field(
        description="0: every look; else each point is the mean (temperature: the largest) of so many seconds"
    )
    points: list[PointOut] = Field(description="the oldest first; none while the node did not answer")
    gaps: list[GapOut] = Field(description="times in which nobody saw the node")
    marks: list[MarkOut]


class Nodes(Out):
    nodes: list[NodeOut]
    next: int | None


# Recipes


class RecipeOut(Out):
    id: int
    slug: str
    name: str
    description: str
    shipped: bool
    version: int
    world_size: int = Field(description="nodes that it wants")
    tested_on: str
    spec: dict[str, Any]


class Recipes(Out):
    recipes: list[RecipeOut]
    next: int | None


class HeldOut(Out):
    key: str = Field(description="names it when it is decided")
    kind: str = Field(description="hook, mod, builder, shell, command, volume, trust …")
    path: str = Field(description="where it stands in the text")
    line: int | None
    text: str
    takes: dict[str, Any] = Field(description="what the spec gets when it is taken; empty: it can only be left out")
    service: int | None = Field(description="index of the further service that it belongs to; null for the main one")
    decision: str | None = Field(description="taken or left; null while it waits")
    decided_by: str | None
    decided_at: str | None
    reason: str | None


class NoteOut(Out):
    path: str
    line: int | None
    message: str
    remedy: str | None


class FieldErrorOut(Out):
    field: str
    message: str
    remedy: str


class RecipeVersionOut(Out):
    number: int
    world_size: int
    tested_on: str
    note: str | None
    created_at: datetime
    created_by: str | None
    changed_at: datetime | None
    changed_by: str | None
    used_at: datetime | None = Field(description="since when it is fixed; null: a draft, which an edit changes")
    spec: dict[str, Any]
    errors: list[FieldErrorOut] = Field(description="what would be refused when it is deployed")
    digest: str = Field(description="pass it as `seen` of an edit")
    family: str | None = Field(description="the format that it was imported from")
    source_sha256: str | None
    quarantine: list[HeldOut]
    extra: dict[str, Any] = Field(description="what the imported text says beyond the spec")
    notes: list[NoteOut]


class RecipeWithVersions(RecipeOut):
    archived_at: datetime | None
    versions: list[RecipeVersionOut]


RecipeSpec = Annotated[
    dict[str, Any], Field(description="fields of a deployment's spec; environment and secrets may be objects of names")
]


class RecipeBody(Body):
    name: str = Field(max_length=120)
    description: str = Field("", max_length=4000)
    nodes: int = Field(1, description="how many it wants")
    spec: RecipeSpec
    note: str = Field("", max_length=2000)


class RecipeEditBody(Body):
    """What is left out stays as it is."""

    name: str | None = Field(None, max_length=120)
    description: str | None = Field(None, max_length=4000)
    nodes: int | None = None
    spec: RecipeSpec | None = Field(None, description="the whole spec")
    note: str = Field("", max_length=2000)
    seen: str = Field("", max_length=64, description="digest of the version that was looked at; another one is refused")


class RecipeTextBody(Body):
    text: str = Field(description="of at most 1 MB; a secret's value in it is not kept")
    family: str = Field("", max_length=40, description="left out: told from the text")


class RecipeImportBody(RecipeTextBody):
    name: str = Field("", max_length=120, description="left out: as the text says")


class RecipeRead(Out):
    family: str
    name: str
    description: str
    world_size: int
    spec: dict[str, Any]
    errors: list[FieldErrorOut]
    quarantine: list[HeldOut]
    extra: dict[str, Any]
    notes: list[NoteOut]


class RecipeCopyBody(Body):
    name: str = Field(max_length=120)
    version: int | None = Field(None, ge=1, le=LARGEST_ID, description="left out: the newest")


class RecipeDecisionBody(Body):
    version: int | None = Field(None, ge=1, le=LARGEST_ID, description="left out: the newest")
    take: list[Annotated[str, Field(max_length=20)]] = Field(default_factory=list, max_length=5000)
    leave: list[Annotated[str, Field(max_length=20)]] = Field(default_factory=list, max_length=5000)
    reason: str = Field(max_length=2000)


class RecipeTestedBody(Body):
    version: int | None = Field(None, ge=1, le=LARGEST_ID, description="left out: the newest")
    tested_on: str = Field(max_length=200, description="empty: untested on hardware")
    reason: str = Field("", max_length=2000)


class FieldChange(Out):
    field: str
    before: Any
    after: Any


class RecipeDiff(Out):
    older: int
    newer: int
    changes: list[FieldChange]


class ExportedFiles(Out):
    format: str
    files: dict[str, str] = Field(description="name of each file -> its text")


# Deployments


class SecretBody(Body):
    variable: str = Field(max_length=200)
    name: str = Field(max_length=80)


def _as_pairs(value: Any) -> Any:
    return [list(pair) for pair in value.items()] if isinstance(value, dict) else value


def _two(value: list[str]) -> list[str]:
    if len(value) != 2:
        raise ValueError("a variable is a pair: name, value")
    return value


Variable = Annotated[list[Annotated[str, Field(max_length=8192)]], AfterValidator(_two)]


def _no_defaults(schema: dict[str, Any]) -> None:
    """A field left out keeps the value it has, so the description must not name another one."""
    for field in schema["properties"].values():
        field.pop("default", None)


_PAIRS: dict[str, Any] = {
    "anyOf": [
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ]
}


class SpecBody(Body):
    """Fields of a deployment; each left out keeps the recipe's (or, in a revision, the one before's) value."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_no_defaults)

    model: str = Field(default="", max_length=300)
    model_path: str = Field(default="", max_length=1000)
    engine: str = Field(default="", max_length=40, description="vllm, sglang, llamacpp or command")
    runtime: str = Field(default="", max_length=40, description="docker or process")
    cluster: str = Field(default="", max_length=40, description="ray (vLLM in Docker), native or single")
    image: str = Field(default="", max_length=300)
    container: str = Field(default="", max_length=100)
    executable: str = Field(
        default="", max_length=1000, description="program to start; empty: the engine's usual one, or the image's own"
    )
    served_model_name: str = Field(default="", max_length=300)
    port: int = Field(default=0, description="left out without a recipe: the next free one of the head")
    cluster_port: int | None = Field(
        default=None, description="of the head, where the ranks meet; null: the engine's usual one, or the next free"
    )
    api_host: str = Field(default="", max_length=300)
    tensor_parallel: int = Field(default=1, description="left out without a recipe: as many as the nodes have GPUs")
    gpu_memory_utilization: float | None = Field(default=None, description="null: the engine's own")
    max_model_len: int | None = Field(default=None, description="null: the model's own")
    reasoning_parser: str = Field(default="", max_length=100)
    tool_call_parser: str = Field(default="", max_length=100)
    attention_backend: str = Field(default="", max_length=100)
    kv_cache_dtype: str = Field(default="", max_length=100)
    arguments: list[Annotated[str, Field(max_length=8192)]] = Field(default=[], max_length=500)
    environment: Annotated[list[Variable], BeforeValidator(_as_pairs)] = Field(
        default=[], max_length=200, description="pairs, or an object of names and values", json_schema_extra=_PAIRS
    )
    secrets: list[SecretBody] = Field(default=[], max_length=50, description="by name; never the value")
    os_floor_gib: float = 0
    smoke_max_tokens: int = 1
    kind: str = Field(default="", max_length=20, description="what it serves: chat, embeddings or rerank")
    services: list[ServiceBody] = Field(
        default=[], max_length=20, description="started after this one, on its nodes, and stopped in reverse"
    )


class ServiceBody(SpecBody):
    """A further service of the same deployment."""

    service: str = Field(default="", max_length=31, description="its name, e.g. embeddings")
    nodes: list[NodeName] = Field(
        default=[], max_length=MOST_NODES, description="of the deployment's; left out: all, or the first for one node"
    )


class DeploymentBody(Body):
    name: str = Field(max_length=63)
    recipe: Reference | None = Field(None, description="id, slug or name; its newest version is where the spec begins")
    recipe_version: int | None = Field(None, ge=1, le=LARGEST_ID, description="left out: the newest")
    nodes: list[NodeName] = Field(max_length=MOST_NODES, description="names in rank order; the first is the head")
    spec: SpecBody | None = None
    on_rank_lost: str = Field("stop", max_length=20, description="stop or report")
    reason: str = Field("", max_length=2000)


class RevisionBody(Body):
    spec: SpecBody | None = None
    nodes: list[NodeName] | None = Field(None, max_length=MOST_NODES)
    reason: str = Field("", max_length=2000)


class ThingBody(Body):
    kind: Literal["container", "unit"]
    name: str = Field(max_length=255)


class AdoptBody(Body):
    name: str = Field(max_length=63, description="of the deployment that it becomes")
    things: list[ThingBody] = Field(max_length=20, description="of this node's `serves`; each becomes a service")
    reason: str = Field("", max_length=2000)


class TakeOverBody(Body):
    reason: str = Field("", max_length=2000, description="kept in the audit trail")
    disable: bool = Field(False, description="once its units are stopped, they do not start at boot any more")


class PolicyBody(Body):
    policy: str = Field(max_length=20, description="manual, once (after a reboot) or always")
    limit: int | None = Field(None, ge=1, le=20, description="tries; left out: as it is")
    backoff_s: int | None = Field(
        None, ge=10, le=86400, description="before the second try; it doubles with each; left out: as it is"
    )
    reason: str = Field("", max_length=2000, description="kept in the audit trail")


class ReasonBody(Body):
    reason: str = Field("", max_length=2000)


class ClearBody(Body):
    """Consent to stop one thing that is in the way; `disable` keeps a unit from coming back after a reboot."""

    node: str = Field(max_length=255)
    kind: Literal["unit", "container", "process"]
    name: str = Field(min_length=1, max_length=255)
    disable: bool = False


class PlanBody(Body):
    story: Literal["launch", "relaunch", "stop"] = "launch"
    clear: list[ClearBody] = Field(default_factory=list, max_length=MOST_CLEAR)
    revision: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_ID,
        description="of a relaunch: the deployment's `go_back_to`; left out: the newest",
    )

    config: dict[str, Any] | None = Field(
        default=None, description="the model's config.json, at most 1 MiB, for the fit where no node has the model"
    )


class FitBody(Body):
    """Settings to ask about; nothing is stored."""

    recipe: Reference | None = Field(
        default=None, description="id, slug or name; its newest version is where the spec begins"
    )
    deployment: int | None = Field(
        default=None, description="id of the deployment of which this would be a new revision"
    )
    nodes: list[NodeName] = Field(max_length=MOST_NODES, description="names in rank order")
    spec: SpecBody | None = None
    config: dict[str, Any] | None = Field(
        default=None, description="the model's config.json, at most 1 MiB, for a model that is on none of the nodes"
    )
    weights_bytes: int | None = Field(default=None, description="sum of its weight files, where no node has them")


class StartBody(Body):
    digest: str = Field(max_length=64, description="of the plan that was looked at")
    reason: str = Field("", max_length=2000)
    clear: list[ClearBody] = Field(default_factory=list, max_length=MOST_CLEAR, description="the same as for that plan")
    wait: bool = Field(False, description="wait in line for nodes that another run holds, instead of a 409")
    revision: int | None = Field(None, ge=1, le=LARGEST_ID, description="the same as for that plan")


class ModelHeldOut(Out):
    node: str
    state: str = Field(description="complete, partial, unverified or corrupt")
    bytes: int | None
    missing: list[str]
    run: int | None = Field(description="that copied or read it last")


class ModelOut(Out):
    path: str
    name: str
    revision: str | None
    bytes: int | None
    nodes: list[ModelHeldOut]
    used_by: list[str] = Field(description="deployments that name it")


class ModelsOut(Out):
    items: list[ModelOut]


class ModelPlanBody(Body):
    story: Literal["copy", "verify", "remove"]
    path: str = Field(max_length=600)
    nodes: list[NodeName] = Field(min_length=1, max_length=64)
    source: str = Field("", max_length=63, description="copy: from where; empty: the first node that has all of it")


class ModelStartBody(ModelPlanBody):
    digest: str = Field("", max_length=64)
    reason: str = Field("", max_length=2000)
    confirm: str = Field("", max_length=300, description="remove: the folder's name")


class TestBody(Body):
    reason: str = Field(default="", max_length=2000)
    services: list[str] | None = Field(
        default=None, max_length=32, description='these alone; "" is the main one; null: all'
    )


class AnswerOut(Out):
    """What one question of a smoke test showed."""

    ask: str = Field(description='models, streamed, tools; "": the plain proof of its kind')
    kind: str = Field(description="chat, embeddings or rerank")
    service: str
    node: str
    title: str
    verdict: str = Field(description="passed or failed")
    said: str = Field(description="in words")
    reason: str | None = Field(description="of the table of reasons, when it failed")
    warning: str
    url: str = Field(description="as the node sees it")
    request: str = Field(description="the body that was posted; empty for a GET")
    answer: str | None = Field(description="what came, masked, its first 4,000 characters; null: nothing")
    seconds: float | None
    values: dict[str, Any] = Field(description="ttft_s, tokens_per_s, usage, finish_reason, content, reasoning, …")


class TestOut(Out):
    run: int
    story: str = Field(description="smoke, or the launch or relaunch that ended with it")
    state: str
    reason: str | None
    evidence: str | None
    revision: int | None
    actor: str
    why: str | None
    created_at: datetime
    ended_at: datetime | None
    answers: list[AnswerOut]


class Tests(Out):
    tests: list[TestOut]


class FabricBody(Body):
    node: NodeName
    interface: str = Field(max_length=15)
    address: str = Field(max_length=18, description="with its prefix, e.g. 192.168.100.11/24")


class WishBody(Body):
    """What a provision run is to do. What is left out is filled in: see the answer's `wish`."""

    nodes: list[NodeName] = Field(min_length=1, max_length=MOST_NODES)
    ticks: dict[str, list[str]] | None = Field(None, description="steps by node; left out: all that are not optional")
    key: list[NodeName] = Field(
        default_factory=list, max_length=MOST_NODES, description="nodes whose door is opened with a password first"
    )
    fabric: list[FabricBody] | None = Field(None, max_length=500, description="left out: suggested from the facts")
    units: dict[str, list[str]] | None = Field(None, description="by node; what the sudoers file may start and stop")
    models: str = Field("/models", max_length=200)
    mtu: int = 9000
    revert_s: int = Field(60, description="seconds after which a node that is not told otherwise puts its network back")
    clock_mhz: int = 2400
    internet: str = Field("", max_length=63, description="the node through which the others fetch packages")


class PasswordsBody(Body):
    sudo: str = Field("", max_length=1024)
    login: str = Field("", max_length=1024)


class ProvisionBody(WishBody):
    digest: str = Field(max_length=64, description="of the plan that was looked at")
    reason: str = Field(max_length=2000)
    passwords: dict[str, PasswordsBody] = Field(
        default_factory=dict, description="by node; sealed, used for this run only, forgotten when it ends"
    )


class RestorePlanBody(Body):
    nodes: list[NodeName] = Field(min_length=1, max_length=MOST_NODES)
    with_key: bool = Field(False, description="take our public key out too, at the end")


class RestoreBody(RestorePlanBody):
    digest: str = Field(max_length=64)
    reason: str = Field(max_length=2000)
    passwords: dict[str, PasswordsBody] = Field(default_factory=dict)


class PreviousPlanBody(Body):
    nodes: list[NodeName] = Field(min_length=1, max_length=MOST_NODES)


class PreviousBody(PreviousPlanBody):
    digest: str = Field(max_length=64)
    reason: str = Field(max_length=2000)
    deployment: int | None = Field(None, ge=1, le=2**53, description="in whose history the run stands")


class PlannedStep(Out):
    key: str
    title: str
    kind: str
    rank: int | None
    commands: list[str]
    why: str | None = Field(description="for a step that does nothing: the reason")


class PlannedNode(Out):
    node: str
    commands: list[str] = Field(description="all commands on this node in this stage, in order")
    steps: list[PlannedStep]


class PlannedStage(Out):
    name: str
    phase: str
    nodes: list[PlannedNode]


class BarOut(Out):
    node: str
    total_bytes: int
    segments: dict[str, int] = Field(
        description="os, weights, graphs, state, kv, deployments (others of ours), others, free in bytes, in drawing order"
    )
    over_bytes: int = Field(description="what is wanted beyond the whole; 0 where everything has room")
    gpu: int | None = Field(description="which GPU this is, where each has its own memory: the node's tightest")
    deployments: dict[str, int] = Field(description="other deployments of ours that hold memory here, bytes by name")


class FitOut(Out):
    verdict: str = Field(description="fits, fits_after_clearing, does_not_fit or unknown")
    sentence: str
    kv_tokens: int | None
    sequences: int | None = Field(description="of `length` tokens that can run at a time")
    length: int | None = Field(description="tokens of the longest sequence")
    largest: dict[str, Any] = Field(description="the largest setting that fits")
    remarks: list[str] = Field(description="what the figures rest on, and how far earlier launches were off")
    bars: list[BarOut]


class PlanProblem(Out):
    name: str
    severity: str = Field(description="stop (refuses), consent (needs `clear`), warn or fine")
    title: str
    node: str | None
    meaning: str | None
    remedy: str | None
    evidence: str | None
    clear: list[dict[str, Any]] = Field(description="items to send as `clear` to agree")
    change: dict[str, Any] = Field(description="fields of the spec that would settle it")
    deployment: int | None = Field(description="another deployment that must be stopped first")


class SettingOut(Out):
    """An option or variable of the engine: what was asked for, what is passed on, and why."""

    kind: Literal["argument", "variable"]
    name: str
    source: Literal["yours", "ours"] = Field(description="whose it is")
    yours: str | None = Field(description="what was asked for")
    effective: str | None = Field(description="what is passed on; null: it is left out")
    reason: str | None
    nodes: list[str] = Field(description="that it is about; empty: all")


class DifferenceOut(Out):
    name: str = Field(description="an option or variable of the engine, a field of the spec, image or weights")
    node: str | None = Field(description="null: on all of them")
    service: str
    before: str | None
    after: str | None
    reason: str
    kind: Literal["node", "revision", "files", "ours"] = Field(
        description="taken anew from the node, changed by a revision, other files, or otherwise passed by sparkweb"
    )


class PlanOut(Out):
    digest: str
    story: str
    deployment: int
    revision: int
    nodes: list[str]
    stages: list[PlannedStage]
    fit: FitOut | None
    problems: list[PlanProblem]
    settings: list[SettingOut]
    differences: list[DifferenceOut] = Field(description="to the last good launch")
    last_good: int | None = Field(description="the run of that launch")
    on_rank_lost: str | None = Field(
        description="stop or report: what happens when a rank is lost; of its service alone"
    )
    refused: bool = Field(description="whether a problem refuses it as it stands")


class NeededPassword(Out):
    node: str
    kind: Literal["sudo", "login"]


class ProvisionPlanOut(PlanOut):
    wish: dict[str, Any] = Field(description="with all that was filled in")
    passwords: list[NeededPassword] = Field(description="that the start must carry")


class ServiceOut(Out):
    service: str = Field(description="empty for the main one")
    label: str
    kind: str
    model: str
    port: int
    nodes: list[str]
    state: str = Field(description="of a deployment's states; while it is launched also starting, failed or cancelled")
    reason: str | None
    evidence: str | None
    phase: str | None
    overall: float | None = Field(description="0 to 1 of its load while it is launched")
    endpoint: str | None
    tunnel: str | None


class RankOut(Out):
    number: int = Field(description="counted through all services")
    service: str = Field(description="whose it is; empty for the main one")
    node: str
    state: RankState = Field(description="as it follows from the deployment's state")
    container: str | None
    unit: str | None = Field(description="where it was found as a unit's own process")
    boot_id: str | None
    seen_at: datetime | None


class ServesOut(Out):
    kind: Literal["container", "unit"]
    name: str
    serves: str = Field(description="chat, embeddings or rerank")
    model: str
    port: int
    restart_policy: str | None
    units: list[str] = Field(description="that start it, or stand in front of it")
    notes: list[str] = Field(description="what of it a spec does not say")


class ServesHere(Out):
    serves: list[ServesOut]


class FoundOut(Out):
    node: str
    kind: Literal["container", "unit"]
    name: str
    service: str
    restart_policy: str | None = Field(description="Docker's own; it is left as it is")
    units: list[str] = Field(description="that start it")


class PolicyOut(Out):
    """What a robot does when it is lost, who chose that, and what the robot says."""

    policy: Literal["manual", "once", "always"]
    limit: int = Field(description="tries")
    backoff_s: int = Field(description="before the second try; it doubles with each")
    set_by: str | None
    set_at: datetime | None
    reason: str | None
    state: Literal["waits", "gave_up"] | None = Field(description="of the robot, while there is something to do")
    sentence: str | None = Field(description="what it waits for, or why it does not act")
    next_at: datetime | None = Field(description="before when it does not try again")


class FatalOut(Out):
    line: int = Field(description="number in the log of the run that launched it")
    run: int
    rank: int | None
    node: str
    text: str
    reason: str


class FlagOut(Out):
    words: str
    evidence: str
    since: datetime


class DeploymentOut(Out):
    id: int
    name: str
    state: Literal[
        "draft", "launching", "serving", "degraded", "stopping", "stopped", "failed", "lost", "unreachable"
    ]  # fmt: skip
    reason: str | None = Field(description="of the table of reasons")
    phase: str | None
    flags: dict[str, FlagOut] = Field(
        description="true beside the state: drift (not as recorded), exposed (open without a key), wedged (hangs), readiness (not ready)"
    )
    evidence: str | None
    since: datetime
    remedy: str | None = Field(description="what to do about `reason`")
    nodes: list[str]
    model: str | None = Field(description="the name that the API answers with")
    endpoint: str | None = Field(description="where clients reach the API while it serves; null where `tunnel` is set")
    tunnel: str | None = Field(
        description="where the API answers on its node only: the ssh line that brings it to the same port of 127.0.0.1"
    )
    recipe: str | None = Field(description="slug")
    recipe_version: int | None
    revision: int
    on_rank_lost: str
    run: int | None = Field(description="the newest run")
    active_run: int | None
    served_at: datetime | None
    archived_at: datetime | None
    created_at: datetime
    created_by: str | None
    adopted: bool = Field(description="it runs as it was found and is only watched until somebody takes it over")
    relaunch: PolicyOut


class DeploymentWithSpec(DeploymentOut):
    spec: dict[str, Any]
    services: list[ServiceOut] = Field(description="empty for a deployment of one service")
    ranks: list[RankOut]
    found: list[FoundOut] = Field(description="what was there before us and runs as this deployment")
    consents: list[dict[str, Any]] = Field(description="what an operator's relaunch, or a robot's, may clear again")
    go_back_to: int | None = Field(description="the revision that served last, where the newest has not")
    fatal: FatalOut | None = Field(description="the first fatal line across the ranks, after one of them was lost")


class Deployments(Out):
    deployments: list[DeploymentOut]
    next: int | None


class AwayOut(Out):
    node: str
    reason: str
    evidence: str


class TriageSystem(Out):
    deployment: int
    name: str
    state: str
    verdict: str = Field(description="fine, busy, unreachable, rebooted, replaced, vanished, rank_lost, or the state")
    why: str | None
    action: Literal["nothing", "wait", "reach", "look", "relaunch"]
    next: str = Field(description="the next action in words")
    nodes: list[str]
    unreachable: list[AwayOut]
    digest: str | None = Field(description="of the relaunch that is ready")
    clear: list[dict[str, Any]] = Field(description="what it clears, as editors agreed before")
    run: int | None = Field(description="that is at work on it")
    policy: str
    robot: str | None = Field(description="what the robot of that policy waits for, or why it does not act")


class TriageOut(Out):
    systems: list[TriageSystem]


class RevisionOut(Out):
    number: int
    spec: dict[str, Any]
    reason: str | None
    created_at: datetime
    created_by: str | None


class Revisions(Out):
    revisions: list[RevisionOut]
    next: int | None


# Runs


class ActorOut(Out):
    kind: str
    id: int | None
    name: str
    role: str


class PhaseOut(Out):
    phase: str
    name: str
    state: str = Field(description="done, busy, waiting, failed or skipped")
    seconds: float | None
    usual_seconds: float | None


class ServiceProgress(Out):
    service: str
    label: str
    kind: str
    model: str
    port: int
    nodes: list[str]
    state: str = Field(description="kept, waiting, busy, done, failed or cancelled")
    phase: str | None
    overall: float
    reason: str | None
    evidence: str
    proof: str = Field(description="what its first real request showed")
    warning: str


class RankProgress(Out):
    rank: int
    service: str = Field("", description="whose it is, of several")
    node: str | None
    phase: str | None = None
    done: int | None = None
    total: int | None = None
    seconds_per_item: float | None = None
    overall: float = Field(description="0 to 1; never falls")


class EtaOut(Out):
    seconds: float | None
    basis: str = Field(description="this load, last good launch, none yet")
    until: str
    slow_rank: int | None
    sentence: str


class StepOut(Out):
    key: str
    node: str | None
    rank: int | None
    title: str
    kind: str
    state: str
    reason: str | None
    evidence: str | None
    note: str | None
    started_at: datetime | None
    ended_at: datetime | None


class HolderOut(Out):
    node: str
    run: int
    what: str = Field(description="e.g. launch of qwen")
    by: str
    since: datetime


class LineOfRun(Out):
    position: int = Field(description="1: it is next")
    ahead: list[int] = Field(description="runs before it")
    holders: list[HolderOut] = Field(description="who holds its nodes now")


class RunOut(Out):
    id: int
    story: str
    state: Literal["queued", "reserving", "running", "succeeded", "failed", "cancelled", "interrupted"]
    phase: str | None
    reason: str | None
    evidence: str | None
    remedy: str | None = Field(description="what to do about `reason`")
    deployment: int | None
    revision: int | None
    digest: str | None
    why: str | None = Field(description="the person's reason")
    was: str | None = Field(description="the deployment's reason, or state, before")
    second_try_of: int | None = Field(description="the failed run that this one tries again by itself")
    second_try: int | None = Field(description="the run that tries this failed one again")
    actor: ActorOut
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cancel_asked_at: datetime | None
    cancel_asked_by: str | None
    waiting: LineOfRun | None = Field(description="its place in line, while its nodes are held by others")
    lines: int = Field(description="stored so far")


class RunWithSteps(RunOut):
    track: list[PhaseOut]
    overall: float
    ranks: list[RankProgress]
    services: list[ServiceProgress] = Field(description="of a launch of several")
    eta: EtaOut | None
    steps: list[StepOut]
    facts: dict[str, Any] = Field(description="pulled out of the log")
    outcome: dict[str, Any] = Field(description="host keys of a scan, answer of a smoke test …")
    worker_alive: bool | None = Field(description="false: nobody is there to carry it out; null: it has ended")


class Runs(Out):
    runs: list[RunOut]
    next: int | None


class LineOut(Out):
    n: int
    time: datetime = Field(description="when it was stored")
    node: str | None
    rank: int | None
    step: str
    stream: str
    text: str
    redraw: bool = Field(description="a progress bar that the next one of its kind replaces")
    continued: bool = Field(description="the rest of a line whose beginning stands before it")
    gap: dict[str, int] | None = Field(
        None, description="bytes and lines of this output that stood before this line and are not kept"
    )


class FoundLine(LineOut):
    before: list[LineOut] = Field(default_factory=list, description="of the same output")
    following: list[LineOut] = Field(default_factory=list, description="likewise")


class Lines(Out):
    lines: list[LineOut]
    next: int = Field(description="pass it as `after`")
    ended: bool = Field(description="the run is over and these were all of its lines so far")
    serving: bool = Field(description="the engine that it started serves on, and what it prints is still added")


class Found(Out):
    lines: list[FoundLine]
    next: int | None = Field(
        description="pass it as `after`; null: that were all. A long log may need several calls, some without a line"
    )


class CancelBody(Body):
    reason: str = Field("", max_length=2000)


# Audit


class ObjectOut(Out):
    type: str
    id: str
    name: str


class EntryOut(Out):
    id: int
    time: str = Field(
        description="to the microsecond, as the hash covers it", json_schema_extra={"format": "date-time"}
    )
    actor: ActorOut
    address: str | None
    session: str | None = Field(description="a short hash")
    request_id: str | None
    action: str
    object: ObjectOut
    outcome: str = Field(description="requested, done, failed or denied")
    reason: str | None
    before: Any
    after: Any
    run: int | None
    prev_hash: str
    hash: str


class Audit(Out):
    entries: list[EntryOut]
    next: int | None = Field(description="pass it as `before`")


# Explain


class ExplainBody(Body):
    text: str = Field(max_length=2_000_000, description="output of an engine, Ray, NCCL, ssh, rsync … as it is")


class Explained(Out):
    readings: list[dict[str, Any]]


# Benchmarks


class ImportBody(Body):
    """`text` is the file: JSON, or a JSON object a line."""

    text: Annotated[str, Field(max_length=2 << 20), AfterValidator(_no_nul)]
    hardware: Word = ""
    tensor_parallel: Annotated[int | None, Field(ge=1, le=1024)] = None
    name: Word = ""
    where: Annotated[str, Field(max_length=1000), AfterValidator(_no_nul)] = ""


class Imported(Out):
    benchmarks: list[int]


class BenchmarkBody(Body):
    """What is left out is as the page's form has it at first."""

    service: str = Field(default="", max_length=31, description='"" is the main one')
    reason: str = Field(default="", max_length=2000)
    mode: str = Field(default="closed", description="closed: so many requests at a time; open: so many a second")
    levels: list[int | float] = Field(
        default=[1, 2, 4, 8, 16], max_length=16, description="requests at a time, or a second"
    )
    prompt_tokens: int = 512
    output_tokens: int = 128
    requests_per_level: int = Field(default=0, description="0: four a place, or ten seconds' worth; at least 8")
    seconds_per_level: int = Field(default=0, description="0: until all requests are done")
    warmup: int = 1
    seed: int = 1
    ignore_eos: bool = True
    prefix_proof: bool = Field(default=True, description="no two prompts begin alike")
    endpoint: str = Field(default="chat", description="chat or completions")


class BenchmarkOut(Out):
    id: int
    name: str
    deployment: int | None
    revision: int | None
    run: int | None
    good: bool
    made: datetime
    by: str
    result: dict[str, Any] = Field(description="as docs/compare.md says it")


class Benchmarks(Out):
    benchmarks: list[BenchmarkOut]
    next: int | None


class ComparedRow(Out):
    """`result` is as docs/compare.md says it. `regression` null: there is no known good to compare with."""

    id: str
    name: str
    good: bool
    result: dict[str, Any]
    against: str | None
    regression: bool | None
    worse: list[str]
    roofline: dict[str, Any]


class Compared(Out):
    threshold: str
    results: list[ComparedRow]
    differences: dict[str, list[Any]]
    available: list[dict[str, Any]]
