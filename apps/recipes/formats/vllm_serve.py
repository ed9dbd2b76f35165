"""The engine's command line -> Spec fields: `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, `sglang serve`,
`python -m sglang.launch_server`, `llama-server`. What has a field goes there, what sparkweb sets on each node by itself is left
out with a note, all other options stay as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.plan.options import canonical, group
from apps.recipes.formats import command_text
from apps.recipes.formats.command_text import Simple, Word
from apps.recipes.formats.imported import MAIN, Draft, Unreadable

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python(?:3(?:\.[0-9]+)?)?")
_SNAPSHOT = re.compile(r"/hub/models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/")
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SUFFIXED = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG])")
_SCALE = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Names of folders that hold models and are nobody's name at a hub.
SHELVES = ("models", "model", "weights", "data", "hub", "gguf", "llm", "llms", "checkpoints", "cache", "huggingface")
# Programs that only start another one: their options that take a value, and how many words of their own follow.
WRAPPERS: dict[str, tuple[tuple[str, ...], int]] = {
    "exec": (("-a",), 0),
    "nohup": ((), 0),
    "time": (("-f", "-o"), 0),
    "command": ((), 0),
    "sudo": (("-u", "-g", "--user", "--group"), 0),
    "env": (("-u", "-C", "--unset", "--chdir"), 0),
    "timeout": (("-k", "-s", "--kill-after", "--signal"), 1),
    "nice": (("-n",), 0),
    "ionice": (("-c", "-n"), 0),
    "numactl": (("-N", "-m", "-C", "-i", "-p"), 0),
    "taskset": ((), 1),
    "chrt": ((), 1),
    "setsid": ((), 0),
    "stdbuf": (("-i", "-o", "-e"), 0),
}
UV_VALUES = ("--with", "--env-file", "--project", "--python", "-p", "--extra", "--group", "--directory", "--index-url")
QUIET = ("exec", "nohup", "time", "command", "env")  # that change nothing which a person should know

# Options of each engine that are fields of a Spec.
FIELDS = {
    "vllm": {
        "--model": "model",
        "--served-model-name": "served_model_name",
        "--host": "api_host",
        "--port": "port",
        "--tensor-parallel-size": "tensor_parallel",
        "--gpu-memory-utilization": "gpu_memory_utilization",
        "--max-model-len": "max_model_len",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--attention-backend": "attention_backend",
        "--reasoning-parser": "reasoning_parser",
        "--tool-call-parser": "tool_call_parser",
    },
    "sglang": {
        "--model-path": "model",
        "--model": "model",
        "--served-model-name": "served_model_name",
        "--host": "api_host",
        "--port": "port",
        "--tp-size": "tensor_parallel",
        "--tp": "tensor_parallel",
        "--tensor-parallel-size": "tensor_parallel",
        "--mem-fraction-static": "gpu_memory_utilization",
        "--context-length": "max_model_len",
        "--kv-cache-dtype": "kv_cache_dtype",
        "--attention-backend": "attention_backend",
        "--reasoning-parser": "reasoning_parser",
        "--tool-call-parser": "tool_call_parser",
    },
    "llamacpp": {
        "--model": "model",
        "-m": "model",
        "--alias": "served_model_name",
        "-a": "served_model_name",
        "--host": "api_host",
        "--port": "port",
        "--ctx-size": "max_model_len",
        "-c": "max_model_len",
        "--reasoning-format": "reasoning_parser",
    },
}
WHOLE, NUMBER = ("port", "tensor_parallel", "max_model_len"), ("gpu_memory_utilization",)
# What sparkweb says to each rank by itself.
OURS = {
    "vllm": ("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"),
    "sglang": ("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr"),
    "llamacpp": (),
}
PORTS = {"vllm": 8000, "sglang": 30000, "llamacpp": 8080}  # where each listens when nobody says
HOSTS = {"vllm": "0.0.0.0", "sglang": "127.0.0.1", "llamacpp": "127.0.0.1"}  # noqa: S104 - what the engine itself does
USUAL = {"vllm": ("vllm",), "sglang": ("python3", "python"), "llamacpp": ("llama-server",)}  # found by PATH
KEYS = {"vllm": "VLLM_API_KEY", "sglang": "SGLANG_API_KEY", "llamacpp": "LLAMA_API_KEY"}
SECRET_OPTIONS = {"--hf-token": "HF_TOKEN", "-hft": "HF_TOKEN"}
SWITCHES = ("--enforce-eager", "--enable-prefix-caching", "--enable-auto-tool-choice", "--enable-chunked-prefill")


@dataclass(frozen=True)
class EngineLine:
    """The command that starts an engine, among all commands of a text."""

    engine: str  # vllm, sglang, llamacpp, command
    program: str
    words: tuple[Word, ...]  # after the program
    environment: tuple[Word, ...]  # NAME=value
    redirects: tuple[str, ...]
    line: int
    wrappers: tuple[str, ...] = ()  # what stood before it and only starts it: sudo -E, numactl -N 0


def find(commands: Sequence[Simple]) -> tuple[EngineLine | None, tuple[Word, ...], tuple[Simple, ...]]:
    """(the engine's line or None, what was exported before it, all other commands)."""
    found: EngineLine | None = None
    exported: list[Word] = []
    others: list[Simple] = []
    for one in _unwrapped(commands):
        made = engine_line(one)
        if made is not None and found is None and made.engine != "command":
            found = made
        elif one.words and all(_ASSIGNED.fullmatch(word.text) for word in _after_export(one)):
            exported += _after_export(one)
        elif not is_idle(one):
            others.append(one)
    return found, tuple(exported), tuple(others)


def is_idle(one: Simple) -> bool:
    """Whether a command by itself does nothing: `true`, `:`, and the shell's own `set -eu`."""
    return one.texts in (("true",), (":",)) or (one.texts[:1] == ("set",) and not any(w.expands for w in one.words))


def _after_export(one: Simple) -> tuple[Word, ...]:
    return one.words[1:] if one.texts[0] == "export" else one.words


def _unwrapped(commands: Sequence[Simple], depth: int = 0) -> list[Simple]:
    """With the text of `bash -c TEXT` in the place of that command."""
    made: list[Simple] = []
    for one in commands:
        inner = _shell_text(one.words)
        if inner is None or depth > 2:
            made.append(one)
        else:
            made += _unwrapped(command_text.split(inner.text, first_line=inner.line), depth + 1)
    return made


def _shell_text(words: Sequence[Word]) -> Word | None:
    """The text that `sh -c` is given, or None for another command."""
    words = unwrapped(words)[0]
    texts = [word.text for word in words]
    if len(texts) < 3 or texts[0].rpartition("/")[2] not in ("sh", "bash", "dash", "zsh"):
        return None
    for place, text in enumerate(texts[1:-1], 1):
        if re.fullmatch(r"-[a-z]*c", text):
            return words[place + 1]
        if not text.startswith("-"):
            return None
    return None


def unwrapped(words: Sequence[Word]) -> tuple[list[Word], list[Word], list[str]]:
    """(the words from the program on, what was assigned before it, the programs that only start it)."""
    rest, assigned, wrappers = list(words), [], []
    while rest:
        wrapper = WRAPPERS.get(rest[0].text.rpartition("/")[2])
        if _ASSIGNED.fullmatch(rest[0].text):
            assigned.append(rest.pop(0))
        elif wrapper is not None:
            taken = _wrapper(rest, *wrapper)
            said, rest = " ".join(word.text for word in rest[:taken]), rest[taken:]
            wrappers += [said] if said not in QUIET else []
        elif [word.text for word in rest[:2]] == ["uv", "run"]:
            rest = rest[1 + _wrapper(rest[1:], UV_VALUES, 0) :]
        else:
            break
    return rest, assigned, wrappers


def _wrapper(words: Sequence[Word], values: Sequence[str], own: int) -> int:
    """How many words such a program takes for itself."""
    at = 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "-":
        at += 2 if words[at].text in values else 1
        if words[at - 1].text == "--":
            break
    return min(at + own, len(words))


def engine_line(one: Simple) -> EngineLine | None:
    """What kind of engine a command starts; None for an empty one. Of an unknown program the engine is `command`."""
    words, environment, wrappers = unwrapped(one.words)
    if not words:
        return None
    engine, program, rest = _program(words)
    return EngineLine(engine, program, tuple(rest), tuple(environment), one.redirects, words[0].line, tuple(wrappers))


def _program(words: Sequence[Word]) -> tuple[str, str, Sequence[Word]]:
    texts = [word.text for word in words[:4]]
    base = texts[0].rpartition("/")[2]
    if base == "vllm" and texts[1:2] == ["serve"]:
        return "vllm", texts[0], words[2:]
    if base == "sglang" and texts[1:2] == ["serve"]:
        return "sglang", texts[0], words[2:]
    if base in ("llama-server", "llama-server.exe"):
        return "llamacpp", texts[0], words[1:]
    if _PYTHON.fullmatch(base):
        unbuffered = 1 + (texts[1:2] == ["-u"])
        if texts[unbuffered : unbuffered + 1] == ["-m"]:
            module, rest = "".join(texts[unbuffered + 1 : unbuffered + 2]), words[unbuffered + 2 :]
            if module == "vllm.entrypoints.openai.api_server":
                return "vllm", texts[0][: -len(base)] + "vllm", rest  # it lies beside its Python
            if module in ("sglang.launch_server", "sglang.srt.server"):
                return "sglang", texts[0], rest
    return "command", texts[0], words[1:]


def take(draft: Draft, body: dict[str, Any], line: EngineLine, *, path: str, place: int = MAIN) -> None:
    """Fill a service's body from the engine's words. `path`: where the command stands in the text."""
    body["engine"] = line.engine
    _redirected(draft, line, path, place)
    for one in line.wrappers:
        draft.note(path, f"{one[:80]} is left out: sparkweb starts the engine by itself.", line=line.line)
    if line.engine == "command":
        words = [line.program, *(word.text for word in line.words)]
        draft.hold("command", path, " ".join(words), line=line.line, takes={"arguments": words}, place=place)
        return
    if line.program not in USUAL[line.engine]:
        body["executable"] = line.program
        draft.lines["executable" if place == MAIN else f"services[{place}].executable"] = line.line
    words_, expanded = _literal(line.words)
    for option in expanded:
        shown = " ".join(word.text for word in option)
        name = option[0].text.partition("=")[0]
        if is_key(name) or name in SECRET_OPTIONS:
            add_secret(draft, body, SECRET_OPTIONS.get(name, KEYS[line.engine]), path=path, line=option[0].line)
        elif name in OURS[line.engine]:
            draft.note(path, f"{shown[:80]} is left out: sparkweb sets it on each node.", line=option[0].line)
        else:
            draft.hold("shell", path, shown, line=option[0].line, place=place)
    _Options(draft, body, line.engine, words_, path, place).take()


def _redirected(draft: Draft, line: EngineLine, path: str, place: int) -> None:
    for one in line.redirects:
        draft.note(path, f"{one[:80]} is left out: sparkweb keeps every line that the engine prints.", line=line.line)


def _literal(words: Sequence[Word]) -> tuple[list[Word], list[list[Word]]]:
    """(words without those options that a shell would have filled in, these options)."""
    options: list[list[Word]] = []
    for word in words:
        if not options or _starts(word.text):
            options.append([word])
        else:
            options[-1].append(word)
    plain = [word for option in options if not any(one.expands for one in option) for word in option]
    return plain, [option for option in options if any(one.expands for one in option)]


def _starts(text: str) -> bool:
    return len(text) > 1 and text[0] == "-" and not text[1].isdigit() and text[1] != "."


def amount(text: str) -> int | None:
    """131072, 128k (thousands) or 128K (1024s), as vLLM reads them; None for anything else."""
    if text.isascii() and text.isdecimal() and len(text) < 12:
        return int(text)
    found = _SUFFIXED.fullmatch(text) if len(text) < 12 else None
    return int(float(found[1]) * _SCALE[found[2]]) if found else None


class _Options:
    """The options of one engine's line, taken one after the other."""

    def __init__(
        self, draft: Draft, body: dict[str, Any], engine: str, words: Sequence[Word], path: str, place: int
    ) -> None:
        self._draft, self._body, self._engine, self._path, self._place = draft, body, engine, path, place
        self._words = list(words)
        self._lines = {word.text: word.line for word in words}
        self._kept: list[str] = []

    def take(self) -> None:
        model = self._positional()
        for flag, words in group([word.text for word in self._words]):
            option = canonical(flag) if self._engine == "vllm" else flag.replace("_", "-") if flag[:2] == "--" else flag
            self._option(option, words)
        if model is not None:
            self._model(model.text, model.line)
        self._defaults()
        self._body["arguments"] = self._kept

    def _positional(self) -> Word | None:
        """The model of `vllm serve MODEL`, which may stand first, or last behind an option."""
        words = self._words
        if words and not words[0].text.startswith("-"):
            return words.pop(0)
        groups = group([word.text for word in words])
        if self._engine != "vllm" or any(canonical(flag) == "--model" for flag, _ in groups):
            return None
        spare = words[-1] if words else None
        if groups and spare and (len(groups[-1][1]) > 2 or (len(groups[-1][1]) == 2 and groups[-1][0] in SWITCHES)):
            return words.pop()
        return None

    def _option(self, option: str, words: tuple[str, ...]) -> None:
        _, mark, value = words[0].partition("=")
        values = [value] if mark else list(words[1:])
        line = self._lines.get(words[0], 0)
        field = FIELDS[self._engine].get(option)
        if is_key(option) or option in SECRET_OPTIONS:
            self._secret(option, values, line)
        elif option in OURS[self._engine]:
            self._ours(option, values, line)
        elif option == "--distributed-executor-backend" and values[:1] == ["ray"]:
            self._body["cluster"] = "ray"
        elif option in ("-hf", "--hf-repo", "-hfr") and self._engine == "llamacpp" and values:
            name, mark, tag = values[0].partition(":")
            self._body.setdefault("model", name)
            self._kept += words
            if mark:
                self._draft.note(
                    self._path, f"Of {name[:80]} the file {tag[:40]} is meant.", "Give the file's path.", line=line
                )
        elif field is not None and not values:
            self._draft.note(self._path, f"{option} has no value and is left out.", line=line)
        elif field is None:
            self._draft.lines.setdefault(option, line)
            self._kept += words
        elif field == "model":
            self._model(values[0], line)
        else:
            self._field(field, values, line)

    def _field(self, field: str, values: list[str], line: int) -> None:
        value: Any = values[0]
        if field in WHOLE:
            value = self._whole(field, values[0], line)
        elif field in NUMBER:
            value = _number(values[0])
        if len(values) > 1:
            said = f"{' '.join(values[1:])[:80]} is left out: the API answers with one name."
            self._draft.note(self._path, said, line=line)
        if value is not None:
            self._body[field] = value
            self._draft.lines[self._named(field)] = line

    def _whole(self, field: str, text: str, line: int) -> int | str | None:
        if field == "max_model_len" and text in ("auto", "-1", "0"):
            self._draft.note(self._path, f"The longest context is {text}: the engine's own.", line=line)
            return None
        made = amount(text)
        return text[:100] if made is None else made

    def _named(self, field: str) -> str:
        return field if self._place == MAIN else f"services[{self._place}].{field}"

    def _model(self, text: str, line: int) -> None:
        if text.startswith(("/", "~/", "./", "../")):
            self._body["model_path"] = text.rstrip("/") if text.startswith("/") else text
            self._body["model"] = model_of_path(text)
            self._draft.lines[self._named("model_path")] = line
        else:
            self._body["model"] = text
        self._draft.lines[self._named("model")] = line

    def _secret(self, option: str, values: list[str], line: int) -> None:
        variable = SECRET_OPTIONS.get(option, KEYS[self._engine])
        for value in values:
            self._draft.hide(value, line)
        add_secret(self._draft, self._body, variable, path=self._path, line=line)

    def _ours(self, option: str, values: list[str], line: int) -> None:
        if option in ("--nnodes", "-n") and values and amount(values[0]):
            self._body["nnodes"] = amount(values[0])
        words = " ".join((option, *values))[:80]
        self._draft.note(self._path, f"{words} is left out: sparkweb sets it on each node.", line=line)

    def _defaults(self) -> None:
        """What the engine does where nobody says otherwise; a Spec's own defaults are others."""
        self._body.setdefault("port", PORTS[self._engine])
        self._body.setdefault("api_host", HOSTS[self._engine])
        if self._body.get("tool_call_parser") and self._engine == "vllm":
            self._kept = [word for word in self._kept if word != "--enable-auto-tool-choice"]


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[0-9]{0,6}\.?[0-9]{1,12}", text) else text[:100]


def model_of_path(path: str) -> str:
    """A name for what lies at a path: the hub's, where the path is one of its snapshots; else the folder's or file's."""
    found = _SNAPSHOT.search(f"{path}/")
    if found:
        return f"{found['owner']}/{found['name']}"
    parts = [part for part in path.rstrip("/").split("/") if part not in ("", "~", ".", "..")]
    last = parts[-1] if parts else ""
    both = "/".join(parts[-2:])
    if last.endswith(".gguf") or not _HUB.fullmatch(both) or len(parts) < 3 or parts[-2].lower() in SHELVES:
        return re.sub(r"[^A-Za-z0-9._-]", "-", last.removesuffix(".gguf")).lstrip("._-")[:96]
    return both


def is_key(option: str) -> bool:
    """--api-key, or a beginning of it that no other option has: argparse takes that for the whole."""
    return len(option) > 4 and "--api-key".startswith(option)


def secret_name(variable: str) -> str:
    """HF_TOKEN -> hf-token, a name that the store of secrets takes."""
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")[:63].strip("-") or "secret"


def add_secret(draft: Draft, body: dict[str, Any], variable: str, *, path: str, line: int = 0) -> None:
    """The variable takes a secret by name; the value is for a person to keep under Settings."""
    secrets = body.setdefault("secrets", [])
    if any(one["variable"] == variable for one in secrets):
        return
    name = secret_name(variable)
    secrets.append({"variable": variable, "name": name})
    draft.note(
        path,
        f"{variable} is a secret: its value was not kept.",
        f"Keep it under Settings, Secrets, as {name}.",
        line=line,
    )


def read(text: str) -> Draft:
    """A plain command line. The engine then runs as a process on the node, since nothing names an image. Raises Unreadable."""
    commands = command_text.split(re.sub(r"(?m)^[ \t]*\$[ \t]+", "", text))
    line, exported, others = find(commands)
    if line is None:
        line = next((made for made in map(engine_line, commands) if made is not None), None)
        if line is None:
            raise Unreadable("there is no command", "Paste the line that starts the engine.", line=1, field="text")
        others = tuple(one for one in others if one.words and one.words[0].line != line.line)
    draft = Draft("command", text)
    draft.body = {"runtime": "process", "cluster": "single", "environment": [], "secrets": [], "arguments": []}
    for one in others:
        draft.hold("shell", f"line {one.line}", one.shown, line=one.line)
    for word in (*exported, *line.environment):
        take_variable(draft, draft.body, *_pair(word), path=f"line {word.line}", line=word.line, expands=word.expands)
    take(draft, draft.body, line, path=f"line {line.line}")
    settle(draft, draft.body)
    return draft


def _pair(word: Word) -> tuple[str, str]:
    name, _, value = word.text.partition("=")
    return name, value


def take_variable(
    draft: Draft,
    body: dict[str, Any],
    name: str,
    value: str | None,
    *,
    path: str,
    line: int = 0,
    expands: bool = False,
) -> None:
    """One variable of the engine's environment; None where the value comes from who starts it. Judged by screening later."""
    body.setdefault("environment", []).append([name, value, path, line, expands])


def settle(draft: Draft, body: dict[str, Any]) -> None:
    """How many nodes the words ask for, when nothing around them says it."""
    nodes = int(body.pop("nnodes", 0) or 0)
    ranks = body.get("tensor_parallel") or 1
    if nodes > 1:
        body["cluster"] = "ray" if body.get("cluster") == "ray" else "native"
    elif body.get("cluster") == "ray":
        nodes = ranks if isinstance(ranks, int) else 1
    draft.world_size = min(max(1, nodes), 64)
    if draft.world_size == 1 and body.get("cluster") in ("ray", "native"):
        body["cluster"] = "single"
