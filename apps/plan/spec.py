"""What is wanted: one or several services of models over some nodes. Immutable; a Revision stores it as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from apps.diagnosis.masking import MASK, mask_text
from apps.diagnosis.open_secrets import given_away, in_line, is_telling, is_value
from apps.plan.measured import Measured
from apps.plan.recorded import Recorded
from apps.shell import Secret


@dataclass(frozen=True)
class Spec:
    name: str  # the deployment's name, e.g. qwen3.5-122b; [a-z0-9.-]
    model: str  # hub id, e.g. Qwen/Qwen3.5-122B-A10B-FP8
    model_path: (
        str  # absolute path on every node (llama.cpp: of the GGUF file), or "" to let the engine resolve `model`
    )
    nodes: tuple[str, ...]  # names in rank order; the first is the head
    engine: str = "vllm"  # vllm, sglang, llamacpp, command
    runtime: str = "docker"  # docker, process
    cluster: str = "ray"  # ray, native, single
    image: str = ""  # docker
    container: str = ""  # base name; rank N runs as {container}-rN
    executable: str = ""  # program to start, e.g. /opt/venv/bin/vllm; "" = the engine's usual one, found by PATH
    served_model_name: str = ""  # "" = model
    port: int = 30000
    cluster_port: int | None = None  # on the head, where the ranks meet; None = the engine's usual one
    api_host: str = "0.0.0.0"  # noqa: S104  # a person's choice; shown as `exposed` where it is
    tensor_parallel: int = 1
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    attention_backend: str = ""
    kv_cache_dtype: str = ""
    arguments: tuple[str, ...] = ()  # further words for the engine
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[Secret, ...] = ()
    os_floor_gib: float = 8.0
    on_rank_lost: str = "stop"  # stop, report
    smoke_max_tokens: int = 50
    service: str = ""  # this service's name within its deployment; "" for the main one
    kind: str = "chat"  # chat, embeddings, rerank
    services: tuple[Spec, ...] = ()  # started after this one in this order, on nodes of this one, stopped in reverse

    @property
    def model_name(self) -> str:
        """The name the API must answer with."""
        return self.served_model_name or self.model

    @property
    def label(self) -> str:
        """What people call this service: its name, or what the main one is for."""
        return self.service or self.kind

    @property
    def alone(self) -> Spec:
        """This service without those that are started after it."""
        return replace(self, services=()) if self.services else self

    @property
    def each(self) -> tuple[Spec, ...]:
        """Every service by itself, in the order in which they are started."""
        return (self.alone, *self.services)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: lists where the spec has tuples."""
        body: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Spec:
        """Raises TypeError/ValueError for unknown or missing keys."""
        made = dict(body)
        made["nodes"] = tuple(made.get("nodes", ()))
        made["arguments"] = tuple(made.get("arguments", ()))
        made["environment"] = tuple((str(k), str(v)) for k, v in made.get("environment", ()))
        made["secrets"] = tuple(s if isinstance(s, Secret) else Secret(**s) for s in made.get("secrets", ()))
        nested = made.pop("services", ()) or ()
        main = cls(**made)
        return replace(main, services=tuple(_within(main, one) for one in nested)) if nested else main


SHARED = ("name", "on_rank_lost")  # said once, for the whole deployment


def _within(main: Spec, body: Any) -> Spec:
    """A further service. A recipe names no nodes: then it is on those of the main one, or on the first of them alone where it
    is of one node. Raises TypeError/ValueError."""
    if isinstance(body, Spec):
        return body
    if not isinstance(body, dict):
        raise TypeError("each of services must be an object")
    if any(isinstance(one, dict) and one.get("services") for one in _listed(body.get("services"))):
        raise ValueError("services are nested too deeply")  # one level more is read, so that validate can name it
    made = {"os_floor_gib": main.os_floor_gib, **body, **{name: getattr(main, name) for name in SHARED}}
    if not made.get("nodes"):
        made["nodes"] = main.nodes[:1] if made.get("cluster") == "single" else main.nodes
    return Spec.from_json(made)


def _listed(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


@dataclass(frozen=True)
class Clear:
    """Consent to stop one thing that is in the way. `disable` is asked separately from stopping."""

    node: str
    kind: str  # unit, container, process
    name: str  # unit name, container name, pid as text
    disable: bool = False


@dataclass(frozen=True)
class Other:
    """Another deployment of ours: what a plan must know of it to call it by its name and to leave it alone."""

    id: int  # as its containers' label sparkweb.deployment says it
    name: str
    state: str = ""  # serving, degraded, launching … of states.md
    spec: Spec | None = None  # of what runs, or ran last, on nodes of this plan; None: nothing of it is there
    found: tuple[Clear, ...] = ()  # what was there before us and runs as it still: it carries no label of ours


@dataclass(frozen=True)
class Given:
    """What a planner is told besides spec and sheets."""

    deployment: int = 0
    revision: int = 0
    clear: tuple[Clear, ...] = field(default_factory=tuple)
    only_on: tuple[str, ...] = ()  # reserved: node names
    healthy: bool = False  # the watch says that it serves: where the sheets agree, there is nothing to launch
    serving: tuple[str, ...] = ()  # of several services those that serve, as the watch says
    standing: tuple[str, ...] = ()  # those of them that the sheets agree on: they are left alone
    only: tuple[str, ...] | None = None  # stop these services alone; None: all of them
    found: tuple[Clear, ...] = ()  # what was there before us and runs as this deployment, see adopt
    adopted: bool = False  # nobody has taken that over: it is watched and never changed
    others: tuple[Other, ...] = ()  # all other deployments; a label of none of them is another installation's
    config: dict[str, Any] | None = None  # a config.json that a person gave, for a model that no node has
    weights_bytes: int | None = None  # of the model's files, as a person says it
    measured: tuple[Measured, ...] = ()  # what earlier launches said of their memory, the newest first
    last_good: Recorded | None = None  # the last launch that reached serving, as it was stored


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field and how to put it right."""

    field: str
    message: str
    remedy: str


MOST_NODES = 64
MOST_SERVICES = 64  # the main one counted
ENGINES = ("vllm", "sglang", "llamacpp", "command")
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "command": "A command"}
RUNTIMES = ("docker", "process")
CLUSTERS = ("ray", "native", "single")
KINDS = ("chat", "embeddings", "rerank")
PROGRAMS = {
    "vllm": "Use a program's name or absolute path, e.g. /opt/venv/bin/vllm.",
    "sglang": "Use the Python of SGLang's environment, e.g. /opt/sglang/bin/python3, or its sglang.",
    "llamacpp": "Use the server's name or absolute path, e.g. /opt/llama.cpp/bin/llama-server.",
}
REASONING_FORMATS = ("auto", "none", "deepseek", "deepseek-legacy")  # llama-server --reasoning-format
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")  # llama-server --cache-type-k
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_IMAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._/:-]|@(?=[a-z0-9]+:)){0,254}"
)  # @ stands before a digest, never before a host
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_PATH = re.compile(r"/[^\x00-\x1f\x7f:,]*")
_GGUF = re.compile(_PATH.pattern + r"\.gguf", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:TOKEN|API_?KEY|PASSWORD|PASSWD|SECRET|CREDENTIALS?|ACCESS_KEY|PRIVATE_KEY)", re.IGNORECASE
)
_SERVICE = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}")


def validate(spec: Spec) -> list[FieldError]:
    """What is nonsense by itself, whatever the nodes say; empty when nothing is. A field of a further service is called
    `services[0].port`."""
    main = _of_one(spec)
    if len(spec.each) > MOST_SERVICES:
        many = f"{len(spec.each)} services are too many"
        return [FieldError("services", many, f"Use at most {MOST_SERVICES}, or a second deployment.")]
    if spec.service:
        main.append(FieldError("service", "the main service has no name of its own", "Leave it empty."))
    nested = [
        replace(error, field=f"services[{place}].{error.field}")
        for place, one in enumerate(spec.services)
        for error in (*_of_one(one), *_as_part(spec, one))
    ]
    return [*main, *nested, *_together(spec)]


def _of_one(spec: Spec) -> list[FieldError]:
    return [*_patterns(spec), *_choices(spec), *_numbers(spec), *_nodes(spec), *_words(spec)]


def _as_part(main: Spec, one: Spec) -> Iterator[FieldError]:
    """What a further service must be beside the main one."""
    if not isinstance(one.service, str) or not _SERVICE.fullmatch(one.service):
        yield FieldError(
            "service",
            f"{shown(str(one.service))} is no service's name",
            "Use small letters, digits and dashes, e.g. embeddings.",
        )
    if one.services:
        yield FieldError("services", "a further service has none of its own", "Put it beside this one.")
    if one.name != main.name:
        yield FieldError("name", "a service has its deployment's name", "Leave it out.")
    strangers = [node for node in one.nodes if node not in main.nodes]
    if strangers:
        yield FieldError(
            "nodes", f"{shown(strangers[0])} is no node of this deployment", "Choose among the main service's nodes."
        )


def _together(spec: Spec) -> Iterator[FieldError]:
    """What no two services of one deployment may share."""
    names, containers, ports = {spec.label}, {container_base(spec)}, {(spec.nodes[:1], spec.port)}
    for place, one in enumerate(spec.services):
        where = f"services[{place}]"
        if one.label in names:
            yield FieldError(
                f"{where}.service", f"{shown(one.label)} is named twice", "Give each service its own name."
            )
        if container_base(one) in containers:
            yield FieldError(
                f"{where}.container", f"{container_base(one)} is another service's", "Choose another name."
            )
        if (one.nodes[:1], one.port) in ports:
            yield FieldError(f"{where}.port", f"{one.port} is another service's on this node", "Choose another port.")
        names.add(one.label)
        containers.add(container_base(one))
        ports.add((one.nodes[:1], one.port))
    for cluster, runtime in (("ray", "docker"), ("native", None)):
        meeting = [
            place
            for place, one in enumerate(spec.each)
            if one.cluster == cluster and runtime in (None, one.runtime) and (cluster == "ray" or len(one.nodes) > 1)
        ]
        heads = [spec.each[place].nodes[:1] for place in meeting]
        if len(set(heads)) < len(heads):
            yield FieldError(
                f"services[{meeting[-1] - 1}].cluster",
                f"two services can't both meet over {cluster} on one head",
                "Start the smaller one on a single node.",
            )


def container_base(spec: Spec) -> str:
    """What the names of this service's containers begin with."""
    return spec.container or "-".join(filter(None, ("sparkweb", spec.name, spec.service)))


def _patterns(spec: Spec) -> Iterator[FieldError]:
    rows = (
        (
            "name",
            _NAME,
            False,
            "Use lower-case letters, digits, dots and dashes, at most 63, beginning with a letter or digit.",
        ),
        ("model", _MODEL, spec.engine == "command", "Use the hub's id, e.g. Qwen/Qwen3-8B."),
        (
            "model_path",
            _GGUF if spec.engine == "llamacpp" else _PATH,
            True,
            "Use the absolute path of the GGUF file, of a split one its first part, e.g. /models/m/m-00001-of-00003.gguf."
            if spec.engine == "llamacpp"
            else "Use an absolute path without colons, commas or control characters.",
        ),
        ("image", _IMAGE, spec.runtime != "docker", "Use an image reference, e.g. nvcr.io/nvidia/vllm:26.10-py3."),
        ("container", _CONTAINER, True, "Use letters, digits, dots, dashes and underscores, at most 63."),
        (
            "executable",
            re.compile(r"[A-Za-z0-9/][^\x00-\x1f\x7f]*"),
            True,
            PROGRAMS.get(spec.engine, "Leave it empty: a command names its program itself."),
        ),
        (
            "served_model_name",
            re.compile(r"[A-Za-z0-9][A-Za-z0-9._/: -]{0,200}"),
            True,
            "Use letters, digits and ._-/:, at most 200.",
        ),
        ("api_host", _HOST, False, "Use an IP address of the head, 0.0.0.0 or 127.0.0.1."),
        ("reasoning_parser", _WORD, True, "Use a parser's name, e.g. qwen3."),
        ("tool_call_parser", _WORD, True, "Use a parser's name, e.g. qwen3_coder."),
        ("attention_backend", _WORD, True, "Use a backend's name, e.g. TRITON_ATTN."),
        ("kv_cache_dtype", _WORD, True, "Use auto, fp8 or another type that the engine knows."),
    )
    for name, pattern, may_be_empty, remedy in rows:
        value = getattr(spec, name)
        if not isinstance(value, str):
            yield FieldError(name, "must be text", remedy)
        elif not value and not may_be_empty:
            yield FieldError(name, "is missing", remedy)
        elif value and not (pattern.fullmatch(value) and value.isprintable()):
            yield FieldError(name, f"{shown(value)} is not allowed", remedy)
    if ".." in spec.model_path.split("/"):
        yield FieldError("model_path", "must not climb with ..", "Write the path out.")


def shown(value: str) -> str:
    """A value for a message: short, on one line, control characters escaped."""
    text = repr(value[:60])
    return text if len(value) <= 60 else f"{text}…"


def _choices(spec: Spec) -> Iterator[FieldError]:
    for name, known in (
        ("engine", ENGINES),
        ("runtime", RUNTIMES),
        ("cluster", CLUSTERS),
        ("on_rank_lost", ("stop", "report")),
        ("kind", KINDS),
    ):
        if getattr(spec, name) not in known:
            yield FieldError(
                name, f"{shown(str(getattr(spec, name)))} is not known", f"Choose one of {', '.join(known)}."
            )
    if spec.runtime == "process" and spec.cluster == "ray":
        yield FieldError("cluster", "Ray needs the docker runtime", "Choose native or single, or the docker runtime.")
    if spec.cluster == "ray" and spec.engine in ("sglang", "llamacpp"):
        yield FieldError(
            "cluster", f"Ray is for vLLM; {TITLES[spec.engine]} knows no Ray", "Choose native or single, or vLLM."
        )
    if spec.engine in ("command", "llamacpp") and len(spec.nodes) > 1:
        who = "a command" if spec.engine == "command" else "llama.cpp"
        other = "" if spec.engine == "command" else ", or SGLang or vLLM for more"
        yield FieldError("nodes", f"{who} runs on one node", f"Choose one node{other}.")
    if spec.engine == "command" and not spec.arguments:
        yield FieldError(
            "arguments", "the command is missing", "Write the command that starts the server, word by word."
        )
    if spec.cluster == "single" and len(spec.nodes) > 1:
        yield FieldError("cluster", "single means one node", "Choose ray or native, or one node.")
    yield from _of_engine(spec)


def _of_engine(spec: Spec) -> Iterator[FieldError]:
    """Fields that an engine has no use for, or knows other values of."""
    program = spec.executable.rpartition("/")[2]
    if spec.engine == "sglang" and program and not re.fullmatch(r"python\d*(\.\d+)?|sglang", program):
        yield FieldError("executable", f"{shown(spec.executable)} does not start SGLang", PROGRAMS["sglang"])
    if spec.engine == "command" and spec.executable:
        yield FieldError(
            "executable",
            "a command names its program itself",
            "Leave it empty; the first word of the arguments is the program.",
        )
    if spec.engine == "sglang" and spec.kv_cache_dtype == "fp8":
        yield FieldError(
            "kv_cache_dtype",
            "SGLang has two kinds of fp8",
            "Use fp8_e4m3, which is what vLLM's fp8 means, or fp8_e5m2.",
        )
    if spec.engine == "llamacpp":
        yield from _of_llamacpp(spec)


def _of_llamacpp(spec: Spec) -> Iterator[FieldError]:
    if spec.reasoning_parser not in ("", *REASONING_FORMATS):
        yield FieldError(
            "reasoning_parser",
            f"llama.cpp knows no {shown(spec.reasoning_parser)}",
            f"Use one of {', '.join(REASONING_FORMATS)}, or leave it empty: the file's template says how the model thinks.",
        )
    if spec.tool_call_parser:
        yield FieldError(
            "tool_call_parser", "llama.cpp has no such parsers", "Leave it empty: tools go by the file's template."
        )
    if spec.attention_backend:
        yield FieldError(
            "attention_backend",
            "llama.cpp has no backends to choose from",
            "Leave it empty; --flash-attn is an argument.",
        )
    if spec.gpu_memory_utilization is not None:
        yield FieldError(
            "gpu_memory_utilization",
            "llama.cpp takes what it needs, not a share",
            "Leave it empty, and set the longest context: the KV cache is as large as that.",
        )
    if spec.kv_cache_dtype and spec.kv_cache_dtype not in CACHE_TYPES:
        yield FieldError(
            "kv_cache_dtype",
            f"llama.cpp knows no {shown(spec.kv_cache_dtype)}",
            f"Use one of {', '.join(CACHE_TYPES)}, or leave it empty for f16.",
        )


def _numbers(spec: Spec) -> Iterator[FieldError]:
    ranges: tuple[tuple[str, float | None, float, float, str], ...] = (
        ("port", spec.port, 1024, 65535, "Use a port from 1024 to 65535."),
        ("cluster_port", spec.cluster_port, 1024, 65535, "Use a port from 1024 to 65535, or leave it empty."),
        ("tensor_parallel", spec.tensor_parallel, 1, 1024, "Use 1 or more: the number of GPUs that share the model."),
        ("max_model_len", spec.max_model_len, 1, 1 << 26, "Use a number of tokens, e.g. 131072, or leave it empty."),
        ("os_floor_gib", spec.os_floor_gib, 0, 1024, "Use GiB, e.g. 8."),
        ("smoke_max_tokens", spec.smoke_max_tokens, 1, 100000, "Use a number of tokens, e.g. 50."),
    )
    for name, value, low, high, remedy in ranges:
        if value is None and name in ("max_model_len", "cluster_port"):
            continue
        whole = name == "os_floor_gib" or isinstance(value, int)
        if isinstance(value, bool) or not isinstance(value, int | float) or not whole or not low <= value <= high:
            yield FieldError(name, f"{shown(str(value))} is out of range", remedy)
    if spec.cluster_port is not None and spec.cluster_port == spec.port:
        yield FieldError("cluster_port", "is the API's port too", "Use another port, or leave it empty.")
    share = spec.gpu_memory_utilization
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1):
        yield FieldError(
            "gpu_memory_utilization", f"{shown(str(share))} is out of range", "Use a share between 0 and 1, e.g. 0.85."
        )


def _nodes(spec: Spec) -> Iterator[FieldError]:
    if not spec.nodes:
        yield FieldError("nodes", "none is chosen", "Choose at least one node.")
    if len(spec.nodes) > MOST_NODES:
        yield FieldError("nodes", f"{len(spec.nodes)} are too many", f"Choose at most {MOST_NODES}.")
    if len(set(spec.nodes)) != len(spec.nodes):
        yield FieldError("nodes", "a node is named twice", "Name each node once.")
    for node in spec.nodes:
        if not _NODE.fullmatch(node):
            yield FieldError("nodes", f"{shown(node)} is no node's name", "Choose nodes of the inventory.")


def _words(spec: Spec) -> Iterator[FieldError]:
    for word in spec.arguments:
        if not word or not word.isprintable():  # also what turns the direction of text: a plan must read as it runs
            yield FieldError(
                "arguments", f"{shown(word)} is empty or holds control characters", "Write one word per argument."
            )
    if spec.engine == "command" and spec.arguments and spec.arguments[0].startswith("-"):
        yield FieldError("arguments", "the first word must be a program", "Begin with the program's name or path.")
    if spec.engine != "command" and spec.arguments and not spec.arguments[0].startswith("-"):
        yield FieldError(
            "arguments",
            f"{shown(spec.arguments[0])} belongs to no option",
            "Begin with an option, e.g. --max-num-seqs.",
        )
    for name, value in spec.environment:
        if not _VARIABLE.fullmatch(name):
            yield FieldError(
                "environment", f"{shown(name)} is no variable's name", "Use letters, digits and underscores."
            )
        elif name.startswith("SPARKWEB_"):
            yield FieldError("environment", f"{name} is ours", "Names that begin with SPARKWEB_ are taken.")
        if not value.replace("\t", " ").isprintable():
            yield FieldError(
                "environment", f"the value of {shown(name)} holds a line break or control characters", "Use one line."
            )
    for secret in spec.secrets:
        if not _VARIABLE.fullmatch(secret.variable) or secret.variable.startswith("SPARKWEB_"):
            yield FieldError(
                "secrets", f"{shown(secret.variable)} is no variable's name", "Use letters, digits and underscores."
            )
    yield from _open_secrets(spec)
    given_twice = {name for name, _ in spec.environment} & {secret.variable for secret in spec.secrets}
    if given_twice:
        yield FieldError("environment", f"{', '.join(sorted(given_twice))} is also a secret", "Keep only the secret.")


FREE_TEXTS = ("model", "model_path", "image", "container", "executable", "served_model_name")


def _open_secrets(spec: Spec) -> Iterator[FieldError]:
    """A secret in a word or value would stand in the audit trail, on pages and in the list of processes of a node."""
    remedy = "Keep it under Settings, Secrets, and name it in the field secrets with its variable, e.g. VLLM_API_KEY."
    words = " ".join(spec.arguments)
    if MASK.decode() in words:
        yield FieldError("arguments", "a secret that was not kept stands in them as [masked]", remedy)
    elif mask_text(words) != words or given_away(spec.arguments):
        yield FieldError("arguments", "one of them looks like a secret, or follows an option that takes one", remedy)
    for field_name in FREE_TEXTS:
        value = getattr(spec, field_name)
        if isinstance(value, str) and (mask_text(value) != value or next(in_line(value), None) is not None):
            yield FieldError(field_name, "looks like a secret, or holds one", remedy)
    for secret in spec.secrets:
        if mask_text(secret.name) != secret.name:
            yield FieldError("secrets", f"the name for {shown(secret.variable)} looks like the secret itself", remedy)
    for name, value in spec.environment:
        telling = _SECRET_NAME.fullmatch(name) or (is_telling(name) and is_value(value))
        if value and (telling or mask_text(value) != value or next(in_line(value), None) is not None):
            yield FieldError("environment", f"the value of {shown(name)} looks like a secret", remedy)
