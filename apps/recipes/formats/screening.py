"""What in a body would run code, reach beyond its container, or is a secret: taken out of it before anybody can deploy it."""

from __future__ import annotations

import json
import re
from typing import Any

from apps.diagnosis.masking import MASK, mask_text
from apps.diagnosis.open_secrets import given_away, in_line, in_words, is_telling, is_value, takes_secret
from apps.plan.options import canonical, group
from apps.recipes.formats.imported import MAIN, Draft
from apps.recipes.formats.vllm_serve import KEYS, SECRET_OPTIONS, add_secret, is_key

# Options that make an engine run code which is not its own.
# fmt: off
CODE_OPTIONS = frozenset(
    [
        "--trust-remote-code", "--middleware", "--tool-parser-plugin", "--reasoning-parser-plugin", "--worker-cls",
        "--worker-extension-cls", "--scheduler-cls", "--logits-processors", "--enable-custom-logit-processor",
        "--custom-weight-loader", "--io-processor-plugin", "--forward-hooks", "--plugin-path", "--tools", "--tool-server",
        "--runner-cls",
    ]
)
# Options that open files to whoever asks its API, take further options from a file that nobody here has seen, or send data
# to another machine.
REACH_OPTIONS = frozenset(
    [
        "--allowed-local-media-path", "--media-path", "--slot-save-path", "--path", "--enable-prompt-embeds", "--config",
        "--models-preset", "--webui-mcp-proxy", "--otlp-traces-endpoint", "--rpc",
    ]
)
# fmt: on
WHOLE = (
    "--runner",
    "--model",
    "--webui",
)  # options of engines that are the beginning of one above, and mean something else
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
# Members of an option's JSON that name code: kv_connector_module_path, worker_cls, inductor_passes, auto_map.
_CODE_MEMBER = re.compile(r"(?i)module(?!s_to)|_cls$|class_name|plugin|trust_remote_code|auto_map|_passes$|_hooks?$")
_BACKEND = re.compile(r"(?i)(?:.*_)?backend")  # a compiler's: a module's dotted name is imported
# Variables that make a program load code, take options from elsewhere, or trust another place.
CODE_VARIABLES = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|BASH_ENV|ENV|PATH|SHELL|IFS|PERL5.*|RUBY.*|NODE_OPTIONS|GIT_.*|JAVA_TOOL_OPTIONS|.*_PRELOAD|"
    r"GLIBC_TUNABLES|GCONV_PATH|LOCPATH|HOSTALIASES|LIBRARY_PATH|.*_LIBRAR(?:Y|IES)(?:_PATH)?|.*_SO_PATH|.*_MODULES?(?:_(?:DIR|PATH|CACHE))?|"
    r"OMPI_.*|PMIX_.*|PRTE_.*|OMP_TOOL.*|CUDA_HOME|CUDA_PATH|TRITON_(?:PTXAS|LIBCUDA|CUOBJDUMP|NVDISASM|LIBDEVICE).*_PATH|"
    r".*_CONFIG_PATH|RAY_ADDRESS|.*_(?:URL|URI|ENDPOINT|REPOSITORY|MIRROR)|"
    r"VLLM_PLUGINS|VLLM_USE_MODELSCOPE|VLLM_ALLOW_INSECURE_SERIALIZATION|VLLM_ALLOW_RUNTIME_LORA_UPDATING|"
    r"VLLM_SERVER_DEV_MODE|VLLM_WORKER_.*CLS|VLLM_MODEL_REDIRECT_PATH|.*TRUST_REMOTE_CODE|"
    r"SGLANG_.*(?:PLUGIN|EXTERNAL|CUSTOM).*|.*_PROXY|CUDA_INJECTION.*|.*_PLUGINS?(?:_.*)?|NCCL_CONF_FILE|RAY_.*HOOK.*|"
    r"RAY_JOB_CONFIG.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|TORCH_EXTENSIONS_DIR|"
    r"TORCHINDUCTOR_.*_DIR|UV_.*|PIP_.*|CC|CXX|NVCC_.*",
    re.IGNORECASE,
)
_AS_OPTION = re.compile(r"LLAMA_ARG_(?P<name>[A-Z0-9_]+)")  # llama-server takes its options from the environment too
_OPTION_NAMES = {"--static-path": "--path", "--mcp-proxy": "--webui-mcp-proxy"}
# Variables whose value is another on every node: sparkweb takes them from each node's own facts.
# fmt: off
PER_NODE = frozenset(
    [
        "VLLM_HOST_IP", "VLLM_DP_MASTER_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
        "UCX_NET_DEVICES", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "OMPI_MCA_btl_tcp_if_include", "MN_IF_NAME",
        "ETH_IF", "IB_IF", "RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS", "MASTER_ADDR", "MASTER_PORT",
        "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "HOST_IP", "SGLANG_HOST_IP",
    ]
)
# fmt: on
# Variables that sparkweb sets too; a recipe's own value wins.
MANAGED = frozenset(
    [
        "NCCL_DEBUG",
        "NCCL_DEBUG_SUBSYS",
        "RAY_memory_monitor_refresh_ms",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "HF_HUB_OFFLINE",
    ]
)
SECRET = re.compile(
    r"(?:.*_)?(?:TOKEN|API_?KEY|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|ACCESS_KEY|PRIVATE_KEY)", re.IGNORECASE
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PROGRAMS = ("vllm", "sglang", "llama-server", "python", "python3")
ARGUMENT_SIZE = 8192  # characters of one word


def screen(draft: Draft) -> None:
    """Screen the main service and every further one. Call it once, when all bodies are filled."""
    _service(draft, draft.body, MAIN, "")
    for place, one in enumerate(draft.body.get("services", ())):
        _service(draft, one, place, f"services[{place}].")


def _service(draft: Draft, body: dict[str, Any], place: int, path: str) -> None:
    _environment(draft, body, place, path)
    _arguments(draft, body, place, path)
    _held_field(draft, body, place, path, "model_path", "path")
    if body.get("runtime") == "process" and body.get("executable") not in PROGRAMS:
        _held_field(draft, body, place, path, "executable", "program")
    for name in ("arguments", "environment", "secrets"):
        if not body.get(name):
            body.pop(name, None)


# The environment


def _environment(draft: Draft, body: dict[str, Any], place: int, path: str) -> None:
    entries = body.pop("environment", [])
    body["environment"] = []
    for entry in entries:
        name, value, where, line, expands = entry if len(entry) == 5 else (*entry, f"{path}environment", 0, False)
        _variable(draft, body, name, value, where=where, line=line, expands=expands, place=place)
    if len({name for name, _ in body["environment"]}) < len(body["environment"]):
        body["environment"] = [[name, value] for name, value in dict(map(tuple, body["environment"])).items()]


def _variable(
    draft: Draft,
    body: dict[str, Any],
    name: str,
    value: str | None,
    *,
    where: str,
    line: int,
    expands: bool,
    place: int,
) -> None:
    kept = f"{where}.{name}"
    if not _VARIABLE.fullmatch(name) or name.startswith("SPARKWEB_"):
        draft.keep(kept, value)
        draft.note(where, f"{name[:60]!r} is no variable's name that can be set; it was left out.", line=line)
    elif _is_secret(name, value) or (value and _looks_secret(value)):
        if value and not expands:
            draft.hide(value, line)
        add_secret(draft, body, name, path=where, line=line)
    elif value is None or expands:
        draft.keep(kept, value)
        said = f"{name} takes its value from whoever starts it; here nobody does."
        draft.note(where, said, "Add it to the environment with its value.", line=line)
    elif name in PER_NODE or CODE_VARIABLES.fullmatch(name) or _is_option(name):
        kind = "node" if name in PER_NODE else "environment"
        at = len(body["environment"]) + _held_before(draft, "environment", place)
        takes = {"environment": [[name, value]]}
        draft.hold(kind, where, f"{name}={value}", line=line, takes=takes, place=place, at=at)
    elif not value.replace("\t", " ").isprintable() or len(value) > ARGUMENT_SIZE:
        draft.keep(kept, value[:2000])
        draft.note(where, f"The value of {name} has several lines, or is too long; it was left out.", line=line)
    else:
        if name in MANAGED:
            draft.note(where, f"{name} is set by sparkweb too; this value wins.", line=line)
        body["environment"].append([name, value])


def _is_option(variable: str) -> bool:
    """Whether a variable stands for an option that would wait by itself."""
    found = _AS_OPTION.fullmatch(variable)
    if not found:
        return False
    option = "--" + found["name"].lower().replace("_", "-")
    return waits(_OPTION_NAMES.get(option, option), []) is not None


def _held_before(draft: Draft, name: str, place: int) -> int:
    """How many entries of this list are held already: where the next one will stand when all are taken."""
    return sum(len(one.takes.get(name, ())) for one in draft.held if one.place == place)


def _is_secret(name: str, value: str | None) -> bool:
    return bool(SECRET.fullmatch(name)) or (is_telling(name) and (value is None or is_value(value)))


def _looks_secret(value: str) -> bool:
    return MASK.decode() in value or mask_text(value) != value or next(in_line(value), None) is not None


# The engine's words


def _arguments(draft: Draft, body: dict[str, Any], place: int, path: str) -> None:
    words = [str(word) for word in body.pop("arguments", ())]
    body["arguments"] = []
    if body.get("engine") == "command":
        if words:
            draft.hold("command", f"{path}arguments", " ".join(words), takes={"arguments": words}, place=place)
        return
    for flag, parts in group(words):
        _option(draft, body, canonical(flag), list(parts), place=place, path=f"{path}arguments")


def _option(draft: Draft, body: dict[str, Any], option: str, words: list[str], *, place: int, path: str) -> None:
    text = " ".join(words)
    line = draft.lines.get(option, 0)
    if is_key(option) or option in SECRET_OPTIONS:
        _named_secret(draft, body, option, words, path)
    elif _looks_secret(text) or given_away(words) or (len(words) == 1 and takes_secret(words[0])):
        for value in in_words(words):
            draft.hide(value, line)
        draft.hide(words[-1].rpartition("=")[2] if len(words) == 1 else words[-1])
        draft.note(path, f"{option[:60]} holds what looks like a secret; it was left out.", line=line)
    elif any(not word or not word.isprintable() or len(word) > ARGUMENT_SIZE for word in words):
        draft.keep(f"{path}.{option[:60]}", text[:2000])
        draft.note(path, f"{option[:60]} holds an empty word, a line break or a control character; it was left out.")
    elif not option.startswith("-"):
        draft.keep(f"{path}.{option[:60]}", text[:2000])
        draft.note(path, f"{option[:60]!r} belongs to no option; it was left out.")
    elif (kind := waits(option, words)) is not None:
        at = len(body["arguments"]) + _held_before(draft, "arguments", place)
        draft.hold(kind, path, text, line=line, takes={"arguments": words}, place=place, at=at)
    else:
        body["arguments"] += words


def _named_secret(draft: Draft, body: dict[str, Any], option: str, words: list[str], path: str) -> None:
    _, mark, value = words[0].partition("=")
    for one in [value] if mark else words[1:]:
        draft.hide(one)
    variable = SECRET_OPTIONS.get(option) or KEYS.get(str(body.get("engine", "vllm")), "API_KEY")
    add_secret(draft, body, variable, path=path)


def waits(option: str, words: list[str]) -> str | None:
    """Why an option (canonical) with its words waits for a decision: trust, where it makes the engine run code that is not its
    own; reach, where it reads or sends what is not its own; None, where it does neither."""
    whole, _, members = option.partition(".")
    for kind, known in (("trust", CODE_OPTIONS), ("reach", REACH_OPTIONS)):
        if whole in known or (whole not in WHOLE and len(whole) > 3 and any(one.startswith(whole) for one in known)):
            return kind  # argparse takes a beginning for the whole
    value = words[0].partition("=")[2] if words and "=" in words[0] else words[1] if len(words) > 1 else ""
    if _names_code(members.rpartition(".")[2].replace("-", "_"), value):
        return "trust"
    if any(_CODE_MEMBER.search(one.replace("-", "_")) for one in members.split(".")):
        return "trust"
    if option == "--distributed-executor-backend" and _MODULE.fullmatch(value):
        return "trust"
    return "trust" if any(_holds_code(word) for word in words) else None


def _names_code(member: str, value: Any) -> bool:
    """Whether a member of an option's value names a module, class or plugin, or trusts code."""
    backend = _BACKEND.fullmatch(member) and isinstance(value, str) and _MODULE.fullmatch(value)
    return bool(_CODE_MEMBER.search(member) or backend)


def _holds_code(word: str) -> bool:
    """JSON with such a member, at any depth."""
    if "{" not in word:
        return False
    try:
        value = json.loads(word.partition("=")[2] if word.startswith("-") else word)
    except (ValueError, RecursionError):
        return bool(re.search(r"(?i)module_path|trust_remote_code|_cls\b|plugin|auto_map|_passes\b", word))
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if any(_names_code(str(key), inner) for key, inner in item.items()):
                return True
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return False


def _held_field(draft: Draft, body: dict[str, Any], place: int, path: str, name: str, kind: str) -> None:
    value = body.pop(name, None)
    if value not in (None, ""):
        line = draft.lines.get(f"{path}{name}", 0)
        draft.hold(kind, f"{path}{name}", str(value), line=line, takes={name: value}, place=place)


def is_masked(value: Any) -> bool:
    """Whether a value is our own mark of a secret: unquoted in YAML, `[masked]` is a list of one word."""
    return bool(value == [MASK.decode()[1:-1]]) or value == MASK.decode()
