"""What a command line, a script or a compose file starts: which engine, model, port, tensor parallel size, image."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from apps.facts.systemd import CONTAINER_NAME, substituted, variables_of
from apps.facts.values import Starts

# Programs by the name of their file.
ENGINES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-server": "llama.cpp",
    "llama-box": "llama.cpp",
    "ollama": "ollama",
    "ollama_llama_server": "ollama",
    "ray": "ray",
    "raylet": "ray",
    "gcs_server": "ray",
    "torchrun": "torchrun",
    "trtllm-serve": "trt-llm",
    "trtllm-llmapi-launch": "trt-llm",
    "tritonserver": "triton",
    "text-generation-launcher": "tgi",
    "text-generation-server": "tgi",
    "text-generation-router": "tgi",
    "lmdeploy": "lmdeploy",
    "mlc_llm": "mlc-llm",
    "aphrodite": "aphrodite",
    "litellm": "litellm",
    "koboldcpp": "llama.cpp",
    "local-ai": "localai",
    "infinity_emb": "infinity",
    "tabbyapi": "exllama",
}
# Modules of `python -m`, by their beginning.
_MODULES = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("torch.distributed", "torchrun"),
    ("ray", "ray"),
    ("llama_cpp", "llama.cpp"),
    ("tensorrt_llm", "trt-llm"),
    ("lmdeploy", "lmdeploy"),
    ("mlc_llm", "mlc-llm"),
    ("aphrodite", "aphrodite"),
    ("litellm", "litellm"),
    ("text_generation_server", "tgi"),
    ("fastchat", "fastchat"),
    ("mii", "deepspeed"),
)
# Titles that processes give themselves: `VLLM::EngineCore`, `sglang::scheduler_TP0`, `ray::IDLE`.
_TITLES = (("vllm::", "vllm"), ("sglang::", "sglang"), ("ray::", "ray"), ("trtllm", "trt-llm"))
# Programs that only start another one, with how many words of their own they take after their options.
_WRAPPERS = {
    "exec": 0,
    "nohup": 0,
    "setsid": 0,
    "env": 0,
    "sudo": 0,
    "time": 0,
    "nice": 0,
    "ionice": 0,
    "stdbuf": 0,
    "numactl": 0,
    "taskset": 1,
    "timeout": 1,
    "chrt": 1,
    "uv": 0,
    "poetry": 0,
    "run": 0,
    "mpirun": 0,
    "then": 0,
    "do": 0,
    "else": 0,
    "if": 0,
    "!": 0,
}
_WRAPPER_VALUES = {
    "-u",
    "-g",
    "-n",
    "-c",
    "-p",
    "-np",
    "-o",
    "-e",
    "-i",
    "--user",
    "--cpunodebind",
    "--membind",
    "-N",
    "-m",
    "--signal",
    "-s",
    "-k",
    "--project",
    "--with",
    "--env-file",
}
_CLIENTS = {
    "status",
    "stop",
    "list",
    "ls",
    "ps",
    "bench",
    "chat",
    "complete",
    "collect-env",
    "pull",
    "push",
    "run",
    "rm",
    "show",
    "create",
    "logs",
    "job",
    "--version",
    "-v",
    "--help",
    "-h",
}
_SHELLS = {"sh", "bash", "dash", "zsh", "ash", "fish", "ksh"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python\d*(?:\.\d+)?\Z")
_MODEL = ("--model", "--model-path", "--model_path", "--model-tag", "-m", "--hf-repo", "-hf", "-hfr", "--model-id")
_NAME = ("--served-model-name", "--served_model_name", "--alias", "-a")
_PORT = ("--port", "--http-port", "--http_port", "-p")
_TP = ("--tensor-parallel-size", "--tensor_parallel_size", "--tp-size", "--tp_size", "-tp", "--tp")
# Options of `docker run` that take no value.
_FLAGS = {
    "--rm",
    "--privileged",
    "--init",
    "--read-only",
    "--detach",
    "--interactive",
    "--tty",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--publish-all",
    "--quiet",
}
_FLAG_LETTERS = frozenset("ditPq")
_CONTAINER_TOOLS = {"docker", "podman", "nerdctl"}
_MODEL_NAME = re.compile(r"(?:[A-Za-z0-9][\w.-]*/[\w.-]+|/(?:models?|root|data|mnt|cache)/\S+)\Z")
LONGEST = 65536  # characters of a script that are looked at
MOST = 32  # things that one script starts


def engine_of(words: Sequence[str]) -> str | None:
    """The engine whose program these words run, None when it is none: naming one as an argument does not count."""
    rest = _program(words)
    if not rest:
        return None
    for title, engine in _TITLES:
        if rest[0].lower().startswith(title):
            return engine
    base = rest[0].rsplit("/", 1)[-1]
    if base in ENGINES:
        return _serving(ENGINES[base], rest[1:])
    return _in_python(rest[1:]) if _PYTHON.match(base) else None


def _serving(engine: str, arguments: list[str]) -> str | None:
    """Not its client: `ollama run`, `vllm bench`, `ray status`."""
    return None if arguments and arguments[0] in _CLIENTS else engine


def _program(words: Sequence[str]) -> list[str]:
    """The words from the program on, without assignments and what only starts another program."""
    rest = [word for word in words if word]
    while rest:
        if _ASSIGNMENT.match(rest[0]):
            rest = rest[1:]
            continue
        own = _WRAPPERS.get(rest[0].rsplit("/", 1)[-1])
        if own is None:
            break
        rest = rest[1:]
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in _WRAPPER_VALUES else rest[1:]
        rest = rest[own:]
    return rest


def _in_python(arguments: list[str]) -> str | None:
    """`-m MODULE`, a script by its name, or one of Ray's own files."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        if rest[0] in {"-m", "-um"}:
            module = rest[1] if len(rest) > 1 else ""
            return next((name for start, name in _MODULES if module == start or module.startswith(start + ".")), None)
        if rest[0] == "-c":
            return None
        rest = rest[2:] if rest[0] in {"-X", "-W"} else rest[1:]
    if not rest:
        return None
    path = rest[0]
    if re.search(r"/ray/(?:dashboard|_private|autoscaler|util|core)/", path):
        return "ray"
    found = re.search(r"(?:^|/)(vllm|sglang|tensorrt_llm)/(?:entrypoints|launch_server|srt|serve|commands|v1)", path)
    if found:
        return "trt-llm" if found.group(1) == "tensorrt_llm" else found.group(1)
    engine = ENGINES.get(path.rsplit("/", 1)[-1].removesuffix(".py"))
    return _serving(engine, rest[1:]) if engine else None


def asked_for(words: Sequence[str]) -> Starts:
    """Engine, model, port and tensor parallel size that one command line names."""
    engine = engine_of(words)
    model = _option(words, _MODEL) if engine not in {"ray", "torchrun"} else None
    if engine == "vllm" and model is None and "serve" in words:
        after = list(words)[list(words).index("serve") + 1 :]
        model = after[0] if after and not after[0].startswith("-") else None
    return Starts(
        engine=engine,
        model=_known(model) if not (model or "").startswith("vllm.") else None,
        served_name=_known(_option(words, _NAME)),
        port=_whole(_option(words, _PORT)),
        tensor_parallel=_whole(_option(words, _TP)),
    )


def _option(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of these options; `-m` before a module belongs to Python."""
    python = bool(words) and bool(_PYTHON.match((_program(words) or [""])[0].rsplit("/", 1)[-1]))
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in names or (name == "-m" and python and at < 6):
            continue
        if equals:
            return value
        following = words[at + 1] if at + 1 < len(words) else ""
        return following if following and not following.startswith("--") else None
    return None


def _known(value: str | None) -> str | None:
    """A value that the text holds; one that only the shell would know is not."""
    value = (value or "").strip("\"'")
    return None if not value or "$" in value or "`" in value else value[:300]


def _whole(value: str | None) -> int | None:
    value = (value or "").strip("\"'")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 6 else None


def in_script(text: str) -> tuple[Starts, ...]:
    """What a shell script or a compose file starts, in order, each once.

    Plain assignments and `${NAME:-default}` are put in; what a shell would compute stays unknown.
    """
    text = text[:LONGEST].replace("\\\n", " ")
    found = _services(text) if re.search(r"^services:", text, re.MULTILINE) else _lines(text)
    return tuple(dict.fromkeys(each for each in found if each != Starts()))[:MOST]


def _lines(text: str) -> list[Starts]:
    values, found = variables_of(text), []
    for line in text.splitlines():
        if len(line) > 16384 or line.lstrip().startswith("#"):
            continue
        said: list[Starts] = []
        for piece in re.split(r"&&|\|\||[;|]", substituted(line, values)):
            said += _command(_words(piece))
        found += _joined(said)
    return [each for each in found if each.engine or each.image]


def _joined(said: list[Starts]) -> list[Starts]:
    """One of `docker run IMAGE bash -c "a && vllm serve m"`, which is cut at its `&&`."""
    if len(said) > 1 and said[0].image and not said[0].model and said[-1].engine and not said[-1].image:
        return [*said[1:-1], _at(said[-1], image=said[0].image, container=said[0].container, port=said[0].port)]
    return said


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.replace("'", " ").replace('"', " ").split()


def _command(words: list[str], depth: int = 0) -> list[Starts]:
    rest = _program(words)
    if not rest or depth > 3:
        return []
    base = rest[0].rsplit("/", 1)[-1]
    if base in _CONTAINER_TOOLS:
        return _container(rest[1:], depth)
    if base in _SHELLS or base == "ssh":
        inner = next((word for word in rest[1:] if " " in word), None)
        return _command(_words(inner), depth + 1) if inner else []
    if base.endswith(".sh") and "exec" in rest:  # spark-vllm-docker's ./launch-cluster.sh [-t IMAGE] exec vllm serve …
        at = rest.index("exec")
        image = _known(_option(rest[:at], ("-t", "--image")))
        return [_at(each, image=image) for each in _command(rest[at + 1 :], depth + 1)]
    asked = asked_for(rest)
    return [asked] if asked.engine else []


def _container(words: list[str], depth: int) -> list[Starts]:
    """`docker run … IMAGE COMMAND`, `docker exec … NAME COMMAND`."""
    rest = words[1:] if words[:1] == ["container"] else words
    verb = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
    if verb is None or rest[verb] not in {"run", "create", "exec"}:
        return []
    name, entry, port, tail = None, None, None, rest[verb + 1 :]
    while tail and tail[0].startswith("-"):
        option, equals, value = tail[0].partition("=")
        alone = option in _FLAGS or (not option.startswith("--") and set(option[1:]) <= _FLAG_LETTERS)
        attached = not option.startswith("--") and len(option) > 2 and not alone
        if not alone and not equals and not attached:
            value = tail[1] if len(tail) > 1 else ""
        name = value if option == "--name" else name
        entry = value if option == "--entrypoint" else entry
        port = value if option in {"-p", "--publish"} else port
        tail = tail[1:] if alone or equals or attached else tail[2:]
    if not tail:
        return []
    inside = _inside(([entry] if entry else []) + tail[1:], tail[0], depth)
    published = re.match(r"(?:.*:)?(\d{2,5}):\d{2,5}(?:/tcp)?\Z", port or "")
    if rest[verb] == "exec":
        return [_at(inside, container=_name(tail[0]))] if inside.engine else []
    return [
        _at(
            inside,
            image=_known(tail[0]),
            container=_name(name),
            port=int(published.group(1)) if published else inside.port,
        )
    ]


def _inside(words: list[str], image: str, depth: int) -> Starts:
    """The command of a container; images whose own command is the server are given its options alone."""
    made = _command(words, depth + 1)
    if made:
        return made[0]
    own = next(
        (engine for engine in ("vllm", "sglang", "ollama", "lmdeploy") if engine in image.rsplit(":", 1)[0]), None
    )
    own = own or ("llama.cpp" if "llama.cpp" in image else "tgi" if "text-generation-inference" in image else None)
    asked = asked_for(words)
    first = words[0] if words else ""
    model = first if own == "vllm" and _MODEL_NAME.match(first) else None
    if own is None or (first and not first.startswith("-") and not model):
        return Starts(engine=own)
    return _at(asked, engine=own, model=asked.model or model)


def _name(text: str | None) -> str | None:
    return text if text and CONTAINER_NAME.match(text) else None


def _at(starts: Starts, **more: str | int | None) -> Starts:
    fields = {name: getattr(starts, name) for name in starts.__dataclass_fields__}
    return Starts(**(fields | {name: value for name, value in more.items() if value is not None}))


_SERVICE = re.compile(r"^(  |    )([A-Za-z0-9][A-Za-z0-9_.-]*):[ \t]*(?:#.*)?$", re.MULTILINE)
_IMAGE = re.compile(r"^[ \t]+image:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_CONTAINER_LINE = re.compile(r"^[ \t]+container_name:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_COMMAND = re.compile(r"^([ \t]+)(?:command|entrypoint):[ \t]*(.*)$")
_PUBLISHED = re.compile(r"^[ \t]+-[ \t]*[\"']?(?:[\d.]+:)?(\d{2,5}):(\d{2,5})[\"']?[ \t]*$", re.MULTILINE)


def _services(text: str) -> list[Starts]:
    """The services of a compose file that run an engine; a little of YAML, read by its indentation."""
    body = text[re.search(r"^services:", text, re.MULTILINE).end() :]  # type: ignore[union-attr]
    ending = re.search(r"^[A-Za-z_-]+:", body, re.MULTILINE)
    body = body[: ending.start()] if ending else body
    heads = list(_SERVICE.finditer(body))
    heads = [head for head in heads if head.group(1) == heads[0].group(1)][:MOST]
    ends = [*(head.start() for head in heads[1:]), len(body)][: len(heads)]
    made = [_service(body[head.end() : end], head.group(2)) for head, end in zip(heads, ends, strict=True)]
    return [each for each in made if each.engine]


def _service(text: str, name: str) -> Starts:
    text = substituted(text, {})
    image, container = _IMAGE.search(text), _CONTAINER_LINE.search(text)
    inside = _inside(_compose_words(text), image.group(1) if image else "", 0)
    published = _PUBLISHED.search(text)
    return _at(
        inside,
        image=_known(image.group(1)) if image else None,
        container=_name(container.group(1) if container else name),
        port=int(published.group(1)) if published else inside.port,
    )


def _compose_words(text: str) -> list[str]:
    """The words of `entrypoint` and `command`, whether on one line, as a list or folded over several."""
    words: list[str] = []
    inside: int | None = None
    for line in text.splitlines():
        start = _COMMAND.match(line)
        indent = len(line) - len(line.lstrip())
        if start:
            inside, said = len(start.group(1)), start.group(2).strip()
        elif (
            inside is not None
            and line.strip()
            and (indent > inside or (indent == inside and line.lstrip().startswith("- ")))
        ):
            said = line.strip().removeprefix("- ")
        elif line.strip():
            inside = None
            continue
        else:
            continue
        if said in {">", "|", ">-", "|-", "[", "]"} or said.startswith("#"):
            continue
        for piece in said.strip("[]").split(", ") if said.startswith("[") else [said.removesuffix(",")]:
            words += _words(piece)
    return words
