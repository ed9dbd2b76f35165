"""A `docker run …` line, alone or in a script: https://docs.docker.com/reference/cli/docker/container/run/"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from apps.recipes.formats import command_text, vllm_serve
from apps.recipes.formats.command_text import Simple, Word
from apps.recipes.formats.imported import MAIN, Draft, Unreadable

# Options that take no value.
# fmt: off
SWITCHES = frozenset(
    [
        "-d", "--detach", "-i", "--interactive", "-t", "--tty",
        "--rm", "--init", "--privileged", "--no-healthcheck", "--oom-kill-disable", "-P", "--publish-all", "-q",
        "--quiet", "--read-only", "--sig-proxy", "--disable-content-trust", "--use-api-socket",
    ]
)
# fmt: on
LETTERS = "ditPq"  # short ones of these; several may stand in one word, the last with a value
# What sparkweb decides by itself for every container, and what has no meaning for an engine that it starts.
# fmt: off
OURS = frozenset(
    [
        "--detach", "--interactive", "--tty", "--rm", "--init", "--gpus", "--runtime", "--shm-size", "--ulimit",
        "--restart", "--pull", "--platform", "--label", "--label-file", "--hostname", "--log-driver", "--log-opt",
        "--memory", "--memory-swap", "--memory-swappiness", "--cpus", "--cpuset-cpus", "--cpu-shares", "--network",
        "--net", "--publish-all", "--quiet", "--sig-proxy", "--stop-signal", "--stop-timeout", "--no-healthcheck",
        "--workdir", "--cidfile", "--annotation", "--network-alias", "--oom-kill-disable", "--oom-score-adj",
        "--pids-limit", "--expose", "--attach", "--detach-keys", "--disable-content-trust",
    ]
)
# fmt: on
SHORT = {
    "-d": "--detach",
    "-e": "--env",
    "-v": "--volume",
    "-p": "--publish",
    "-u": "--user",
    "-w": "--workdir",
    "-h": "--hostname",
    "-l": "--label",
    "-m": "--memory",
    "-c": "--cpu-shares",
    "-i": "--interactive",
    "-t": "--tty",
    "-P": "--publish-all",
    "-q": "--quiet",
    "-a": "--attach",
}
GUARDED = {
    "--privileged": "privileged",
    "--cap-add": "capability",
    "--security-opt": "security",
    "--device": "device",
    "--device-cgroup-rule": "device",
    "--user": "user",
    "--group-add": "user",
    "--userns": "user",
    "--volumes-from": "volume",
    "--tmpfs": "volume",
    "--pid": "security",
    "--uts": "security",
    "--cgroupns": "security",
    "--cgroup-parent": "security",
    "--sysctl": "security",
    "--env-file": "path",
}
# Images whose own program is none of the engines that are known here.
OTHER_SERVERS = re.compile(
    r"ollama|text-embeddings-inference|text-generation-inference|/nim/|triton|tensorrt|trtllm|lmdeploy|localai|infinity|tabby|"
    r"xinference|aphrodite|koboldcpp|litellm|open-?webui"
)
SAFE_IPC = ("", "none", "private", "shareable")
CACHE = re.compile(r"(?:~|\$HOME|\$\{HOME\}|/root|/home/[A-Za-z0-9._-]+)/\.cache/huggingface/?")
CACHE_INSIDE = "/root/.cache/huggingface"


@dataclass(frozen=True)
class Option:
    """One option of docker, under its long name."""

    name: str
    value: str
    line: int
    expands: bool

    @property
    def shown(self) -> str:
        return f"{self.name} {self.value}".strip()


@dataclass(frozen=True)
class Mount:
    """A folder of the node and where the container sees it. `source` is a path; named volumes have another kind of name."""

    source: str
    target: str
    text: str
    line: int
    path: str


def read(text: str) -> Draft:
    """Raises Unreadable: no such line, no image, no command that starts an engine."""
    commands = command_text.split(
        re.sub(r"(?m)^[ \t]*[$#][ \t]+(?=(?:sudo[ \t]+)?(?:docker|podman|nvidia-docker)\b)", "", text)
    )
    found = next((one for one in commands if words_after_run(one) is not None), None)
    if found is None:
        raise Unreadable("there is no docker run in it", "Paste the whole line.", line=1, field="text")
    draft = Draft("docker run", text)
    for one in commands:
        if one is not found and not vllm_serve.is_idle(one):
            draft.hold("shell", f"line {one.line}", one.shown, line=one.line)
    draft.body = {"runtime": "docker", "cluster": "single", "environment": [], "secrets": [], "arguments": []}
    words = words_after_run(found) or []
    options, rest = parse(words)
    if not rest:
        raise Unreadable("the image is missing", "Paste the whole line.", line=found.line, field="image")
    _take(draft, options, rest, found)
    vllm_serve.settle(draft, draft.body)
    return draft


GLOBAL = ("-H", "--host", "-c", "--context", "--config", "-l", "--log-level")  # docker's own options that take a value


def words_after_run(one: Simple) -> list[Word] | None:
    """What stands behind `docker run` (or podman, or `docker container run`); None for another command."""
    words = vllm_serve.unwrapped(one.words)[0]
    if not words or words[0].text.rpartition("/")[2] not in ("docker", "podman", "nvidia-docker"):
        return None
    rest = words[1:]
    while rest and rest[0].text.startswith("-"):
        rest = rest[2:] if rest[0].text in GLOBAL else rest[1:]
    texts = [word.text for word in rest[:2]]
    if texts[:1] == ["run"]:
        return rest[1:]
    return rest[2:] if texts == ["container", "run"] else None


def parse(words: Sequence[Word]) -> tuple[list[Option], list[Word]]:
    """(docker's options, the image and what stands behind it). Raises Unreadable for an option without its value."""
    options: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text == "--":
            break
        if not word.text.startswith("-") or word.text == "-":
            return options, list(words[at - 1 :])
        name, value, used = _one(words, at)
        at += used
        options.append(Option(name, value, word.line, word.expands or (used == 1 and words[at - 1].expands)))
    return options, list(words[at:])


def _one(words: Sequence[Word], at: int) -> tuple[str, str, int]:
    """(long name, value, how many further words it took) of the option in front of `at`."""
    text = words[at - 1].text
    name, mark, value = text.partition("=")
    if not text.startswith("--") and text not in SWITCHES:
        letters = text[1:].lstrip(LETTERS)  # -itv/a:/b, -de A=b, -p8000:8000
        name = f"-{letters[:1]}" if letters else "-i"
        mark, value = ("=", letters[1:].removeprefix("=")) if len(letters) > 1 else ("", "")
    long = SHORT.get(name, name)
    if mark or name in SWITCHES:
        return long, value, 0
    if at >= len(words):
        raise Unreadable(f"{name[:60]} has no value", "Paste the whole line.", line=words[at - 1].line, field=name[:60])
    return long, words[at].text, 1


# What docker is told


def _take(draft: Draft, options: Sequence[Option], rest: Sequence[Word], found: Simple) -> None:
    body = draft.body
    image, command = rest[0], rest[1:]
    body["image"] = image.text
    draft.lines["image"] = image.line
    mounts = [mount for option in options for mount in mounts_of(option)]
    published: list[tuple[str, str, str]] = []
    for option in options:
        _option(draft, option, published)
    entry = [Word(option.value, option.line) for option in options if option.name == "--entrypoint" and option.value]
    take_command(draft, body, command, image=image.text, entry=entry, path="command", line=found.line)
    take_mounts(draft, body, mounts)
    take_ports(draft, body, published, path="--publish")
    for redirect in found.redirects:
        draft.note("line", f"{redirect[:80]} is left out.", line=found.line)


def _option(draft: Draft, option: Option, published: list[tuple[str, str, str]]) -> None:
    name = option.name
    if name == "--env":
        variable, mark, value = option.value.partition("=")
        given = value if mark else None
        vllm_serve.take_variable(
            draft, draft.body, variable, given, path="--env", line=option.line, expands=option.expands
        )
    elif name in ("--volume", "--mount", "--entrypoint"):
        return
    elif name == "--publish":
        published.append(port_of(option.value))
    elif name == "--name":
        draft.body["container"] = option.value
        draft.lines["container"] = option.line
    elif name == "--ipc" and option.value in SAFE_IPC:
        draft.keep(name, option.value)
    elif name == "--ipc":
        draft.hold("ipc", name, option.shown, line=option.line)
    elif name in GUARDED:
        draft.hold(GUARDED[name], name, option.shown, line=option.line)
    elif name in ("--network", "--net") and option.value != "host":
        draft.keep(name, option.value)
        draft.note(name, "Engines use the node's own network; this one is left out.", line=option.line)
    elif name in OURS:
        draft.keep(name, option.value or True)
    else:
        draft.hold("option", name, option.shown, line=option.line)


def mounts_of(option: Option) -> Iterator[Mount]:
    if option.name == "--volume":
        source, _, target = option.value.partition(":")
        yield Mount(source, target.partition(":")[0], option.shown, option.line, "--volume")
    elif option.name == "--mount":
        parts = dict(part.partition("=")[::2] for part in option.value.split(","))
        source = parts.get("source") or parts.get("src") or ""
        target = parts.get("target") or parts.get("destination") or parts.get("dst") or ""
        yield Mount(source, target, option.shown, option.line, "--mount")


def take_mounts(draft: Draft, body: dict[str, Any], mounts: Sequence[Mount], *, place: int = MAIN) -> None:
    """Folders: the hub's cache is shown by sparkweb itself; the model's becomes its path on the node, once approved."""
    inside = str(body.get("model_path", ""))
    for mount in mounts:
        if CACHE.fullmatch(mount.source) and mount.target.rstrip("/") == CACHE_INSIDE:
            draft.keep(mount.path, mount.text)
            draft.note(mount.path, "The hub's cache is shown to the container by sparkweb itself.", line=mount.line)
            continue
        target = mount.target.rstrip("/")
        holds_model = bool(target) and f"{inside}/".startswith(f"{target}/") and mount.source.startswith("/")
        takes = {}
        if holds_model:
            takes = {"model_path": mount.source.rstrip("/") + inside[len(target) :]}
            body.pop("model_path", None)
        draft.hold("volume", mount.path, mount.text, line=mount.line, takes=takes, place=place)
    if body.get("model_path"):
        path = body.pop("model_path")
        said = (
            f"{path[:200]} lies in the image or is mounted in another way; it was not taken for a folder of the nodes."
        )
        draft.note("command", said, "Give the folder on the nodes, if the weights are there.")
        draft.keep("model", path)


def port_of(text: str) -> tuple[str, str, str]:
    """(address, port on the node, port inside) of 127.0.0.1:8000:8000/tcp."""
    parts = text.partition("/")[0].rsplit(":", 2)
    address, outside, inside = ("", "", parts[0]) if len(parts) == 1 else ("", *parts) if len(parts) == 2 else parts
    return address.strip("[]"), outside or inside, inside


def take_ports(draft: Draft, body: dict[str, Any], published: Sequence[tuple[str, str, str]], *, path: str) -> None:
    """On the node's own network the engine listens where its port was published."""
    for address, outside, inside in published:
        port = vllm_serve.amount(outside)
        if body.get("engine") == "command" and "port" not in body and vllm_serve.amount(inside):
            body["port"] = vllm_serve.amount(inside)
            draft.note(path, f"The program listens on {inside}: it uses the node's own network, nothing is mapped.")
            continue
        if inside != str(body.get("port")) or port is None:
            draft.keep(path, f"{address}:{outside}:{inside}".lstrip(":"))
            continue
        if outside != inside:
            draft.note(path, f"The engine listens on {outside}: it uses the node's own network, nothing is mapped.")
        body["port"] = port
        if address:
            body["api_host"] = address


def take_command(
    draft: Draft,
    body: dict[str, Any],
    command: Sequence[Word],
    *,
    image: str,
    entry: Sequence[Word] = (),
    path: str,
    line: int,
    place: int = MAIN,
) -> None:
    """The container's command, behind the image's own program where it is only options. Raises Unreadable when there is
    none."""
    words = [*entry, *command]
    if OTHER_SERVERS.search(image) and (not words or words[0].text.startswith("-")):
        raise Unreadable(
            f"the image {image[:80]} starts a server of its own, whose command is not in the text",
            "Write the program before its options, as the image's documentation names it; it becomes a recipe of a command.",
            line=line,
            field="image",
        )
    if not words or words[0].text.startswith("-") or (not entry and _bare_model(words, image)):
        words = [Word(one, line) for one in program_of(image)] + words
    commands = [Simple(tuple(words), line)]
    found, exported, others = vllm_serve.find(commands)
    if found is None:
        found = vllm_serve.engine_line(commands[0])
        others = ()
    if found is None:
        raise Unreadable("the command is missing", "Paste the whole line.", line=line, field=path)
    for one in others:
        draft.hold("shell", path, one.shown, line=one.line, place=place)
    for word in (*exported, *found.environment):
        name, _, value = word.text.partition("=")
        vllm_serve.take_variable(draft, body, name, value, path=path, line=word.line, expands=word.expands)
    vllm_serve.take(draft, body, found, path=path, place=place)


def _bare_model(words: Sequence[Word], image: str) -> bool:
    """`vllm/vllm-openai MODEL --options`: the image's program is `vllm serve`."""
    return (
        "vllm-openai" in image and vllm_serve.engine_line(Simple(tuple(words), 1)) is not None and "/" in words[0].text
    )


def program_of(image: str) -> tuple[str, ...]:
    """What an image runs when it is given only options."""
    if "llama" in image and "vllm" not in image:
        return ("llama-server",)
    return ("sglang", "serve") if "sglang" in image else ("vllm", "serve")
