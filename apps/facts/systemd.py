# ruff: noqa: E501 (texts of real tools stay on one line)
"""Service units: which there are, which come back by themselves, and which containers they start."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.masking import masked
from apps.facts.sheet import Evidence
from apps.facts.values import Unit

_LOADS = {"loaded", "not-found", "error", "masked", "bad-setting", "stub", "merged"}
_ABSENT = re.compile(
    r"System has not been booted with systemd|Failed to connect to (?:user scope )?bus|systemctl['\"]?: (?:command )?not found|systemctl: not found|"
    r"Unknown command:? '?systemctl"
)
_NO_UNIT = re.compile(r"Unit (\S{1,200}) (?:could not be found|not found)")
_STATUS = re.compile(
    r"^(?:[●*○×x↻] )?(?P<name>[\w@:.\\-]{1,200}\.(?:service|socket|timer|mount|target))(?: - (?P<description>.*))?$"
)
_STATUS_LOADED = re.compile(r"^\s+Loaded: (?P<load>\S+)(?: \((?P<fragment>[^;)]*)(?:; (?P<enabled>[\w-]+))?)?")
_STATUS_ACTIVE = re.compile(r"^\s+Active: (?P<active>\S+)(?: \((?P<sub>[\w-]+)\))?(?: \(Result: (?P<result>[\w-]+)\))?")
_STATUS_PID = re.compile(r"^\s+Main PID: (?P<pid>\d{1,9}) \((?!code=)")
_STATUS_RUNS = re.compile(r"^\s+Process: \d+ ExecStart=(?P<run>.*?)(?: \(code=[^)]*\))?$")
_INTERESTING = re.compile(
    r"docker|podman|vllm|sglang|\bray\b|llama|python|uvicorn|compose|litellm|trtllm|ollama|\.sh\b", re.IGNORECASE
)


def problem(evidence: Evidence) -> tuple[str, str] | None:
    """("no_systemd", line) where PID 1 is something else or systemctl isn't there: that breaks nothing, there are no units."""
    found = _ABSENT.search(evidence.stderr) or _ABSENT.search(evidence.stdout[:4096])
    if found:
        return "no_systemd", found.string[found.start() :].splitlines()[0][:300]
    return ("no_systemd", evidence.stderr.strip()[:300]) if evidence.exit_code == 127 else None


def from_list_units(text: str) -> tuple[Unit, ...]:
    """`systemctl list-units` with or without --plain and legend; a marker (●, *, ○, ×) may stand first."""
    found = []
    for line in text.splitlines():
        words = line.strip().split(None, 1)
        if words and words[0] in {"●", "*", "○", "×", "x", "↻"} and len(words) == 2:
            line = words[1]
        cells = line.strip().split(None, 4)
        if len(cells) < 4 or cells[1] not in _LOADS or "." not in cells[0]:
            continue
        found.append(
            Unit(
                name=cells[0],
                load=cells[1],
                active=cells[2],
                sub=cells[3],
                description=cells[4].strip() if len(cells) > 4 else None,
            )
        )
    return tuple(found)


def from_json(text: str) -> tuple[Unit, ...]:
    """`systemctl list-units -o json`; unit files in JSON have other keys."""
    if text.lstrip()[:1] != "[":
        return ()
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    found = []
    for row in rows if isinstance(rows, list) else []:
        name = row.get("unit") or row.get("unit_file") if isinstance(row, dict) else None
        if isinstance(name, str):
            said = {key: row[key] for key in ("load", "active", "sub", "description") if isinstance(row.get(key), str)}
            enabled = row.get("state")
            found.append(Unit(name=name, enabled=enabled if isinstance(enabled, str) else None, **said))
    return tuple(found)


def from_status(text: str) -> tuple[Unit, ...]:
    """`systemctl status UNIT…` as people see it."""
    found: list[Unit] = []
    for line in text.splitlines():
        if len(line) > 4096:
            continue
        head = _STATUS.match(line)
        if head:
            found.append(Unit(name=head["name"], description=head["description"]))
        elif found:
            found[-1] = _with_status(found[-1], line)
    return tuple(unit for unit in found if unit.active is not None)


def _with_status(unit: Unit, line: str) -> Unit:
    loaded, active = _STATUS_LOADED.match(line), _STATUS_ACTIVE.match(line)
    pid, runs = _STATUS_PID.match(line), _STATUS_RUNS.match(line)
    if loaded:
        return replace(unit, load=loaded["load"], enabled=loaded["enabled"], fragment=loaded["fragment"])
    if active:
        return replace(unit, active=active["active"], sub=active["sub"], result=active["result"])
    if pid:
        return replace(unit, pid=int(pid["pid"]))
    return (
        replace(unit, exec_start=masked(runs["run"])[:4000], containers=started_containers([runs["run"]]))
        if runs
        else unit
    )


def from_unit_files(text: str) -> dict[str, str]:
    """`systemctl list-unit-files`: name -> enabled, disabled, static, masked, generated …"""
    rows = (line.split() for line in text.splitlines())
    return {
        row[0]: row[1]
        for row in rows
        if len(row) >= 2
        and "." in row[0]
        and row[1].removesuffix("-runtime").isalpha()
        and row[0].rsplit(".", 1)[1] in {"service", "socket", "timer", "mount", "target", "path", "slice", "scope"}
    }


def from_show(text: str) -> tuple[tuple[Unit, ...], dict[str, str]]:
    """`systemctl show` blocks and the `@file UNIT<TAB>PATH` parts: (units, text of the files that each unit runs)."""
    units: list[Unit] = []
    files: dict[str, list[str]] = {}
    block: dict[str, str] = {}
    current: str | None = None
    for line in [*text.splitlines(), ""]:
        if line.startswith("@file "):
            current = line[6:].split("\t")[0]
            files.setdefault(current, [])
            continue
        if current is not None and line.startswith("|"):
            files[current].append(line[1:])
            continue
        current = None if line else current
        name, equals, value = line.partition("=")
        if equals and name.isalnum():
            if name == "Id" and "Id" in block:
                units.append(_shown(block))
                block = {}
            block[name] = f"{block[name]}\n{value}" if name.startswith("Exec") and name in block else value
        elif not line and "Id" in block:
            units.append(_shown(block))
            block = {}
    return tuple(units), {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def _shown(block: dict[str, str]) -> Unit:
    fragment = block.get("FragmentPath") or None
    starts = "\n".join(block.get(name, "") for name in ("ExecStartPre", "ExecStart", "ExecStartPost"))
    argv, main = _arguments(starts), _arguments(block.get("ExecStart", ""))
    pid, restarts = block.get("MainPID", ""), block.get("NRestarts", "")
    return Unit(
        name=block["Id"],
        description=block.get("Description") or None,
        load=block.get("LoadState") or None,
        active=block.get("ActiveState") or None,
        sub=block.get("SubState") or None,
        enabled=block.get("UnitFileState") or None,
        containers=started_containers(argv),
        exec_start=masked(main[0])[:4000] if main else None,
        pid=int(pid[:12]) if pid.isdecimal() and int(pid[:12]) > 0 else None,
        fragment=fragment,
        restarts=int(restarts[:12]) if restarts.isdecimal() else None,
        result=block.get("Result") or None,
        vendor=None if fragment is None else not fragment.startswith(("/etc/", "/run/", "/home/", "/root/")),
    )


def _arguments(starts: str) -> list[str]:
    """The command lines of `{ path=… ; argv[]=docker start x ; ignore_errors=no ; … }`."""
    pieces = [piece.partition(" ; ignore_errors=") for piece in starts.split("argv[]=")[1:]]
    return [words.strip() for words, end, _ in pieces if end]


CONTAINER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_LONGEST_SCRIPT = 262144
_TOOLS = re.compile(r"docker|podman|nerdctl")
_COMPOSE_NAME = re.compile(
    r"^[ \t]*container_name:[ \t]*[\"']?([A-Za-z0-9][A-Za-z0-9_.-]*)[\"']?[ \t]*(?:#.*)?$", re.MULTILINE
)
_VARIABLE = re.compile(
    r"^[ \t]*(?:(?:export|readonly|local)[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)="
    r"(?:\"([^\"\n$`]*)\"|'([^'\n]*)'|([^\s;&|\"'$`]*)|\"?\$\{\w+:?-([^}$\n]*)\}\"?)[ \t]*(?:#.*)?$",
    re.MULTILINE,
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::?-([^}$]*))?\}|\$([A-Za-z_][A-Za-z0-9_]*)")
# Options of `docker start` and `docker restart` that take a value.
_TAKES_VALUE = {"-t", "--time", "--timeout", "-s", "--signal", "--checkpoint", "--checkpoint-dir", "--detach-keys"}


def started_containers(commands: list[str], script: str = "") -> tuple[str, ...]:
    """Names of the containers that command lines, and the script or compose file behind them, start.

    Reads `docker run|create --name X`, `docker start X …`, `docker compose` files' `container_name`; plain assignments
    (`NAME=vllm_node`) and `${NAME:-default}` are put in. What a shell would compute is not guessed.
    """
    found: dict[str, None] = {}
    script = script[:_LONGEST_SCRIPT]
    variables = variables_of(script)
    text = "\n".join([*commands, script.replace("\\\n", " ")])
    for line in text.splitlines():
        if len(line) > 16384 or not _TOOLS.search(line) or line.lstrip().startswith("#"):
            continue
        for piece in re.split(r"&&|\|\||[;|]", line):
            for name in _names(substituted(piece, variables)):
                if CONTAINER_NAME.match(name):
                    found.setdefault(name)
    if "services:" in script:
        for name in _COMPOSE_NAME.findall(script):
            found.setdefault(name)
    return tuple(found)


def variables_of(script: str) -> dict[str, str]:
    """Plain assignments of a shell script, the first one of each name that is not empty."""
    found: dict[str, str] = {}
    for name, *values in _VARIABLE.findall(script):
        found[name] = found.get(name) or next((value for value in values if value), "")
    return found


def substituted(text: str, variables: dict[str, str]) -> str:
    """The text with `$NAME` and `${NAME:-default}` put in; one that is not known becomes a bare `$`."""
    return _REFERENCE.sub(lambda found: _value(found, variables), text)


def _value(found: re.Match[str], variables: dict[str, str]) -> str:
    name = found.group(1) or found.group(3)
    return variables.get(name) or found.group(2) or "$"


def _names(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.replace("'", " ").replace('"', " ").split()  # one half of a quoted `a && b`
    at = next(
        (index for index, word in enumerate(words) if word.rsplit("/", 1)[-1] in {"docker", "podman", "nerdctl"}), None
    )
    if at is None:
        inner = [word for word in words if "docker " in word and " " in word]  # bash -c "docker start x"
        return [name for word in inner if word != command for name in _names(word)]
    rest = words[at + 1 :]
    if rest[:1] == ["container"]:
        rest = rest[1:]
    verb = next((index for index, word in enumerate(rest) if word in {"run", "create", "start", "restart"}), None)
    if verb is None or any(
        word in {"exec", "compose", "rm", "stop", "logs", "inspect", "ps", "image", "network", "pull"}
        for word in rest[:verb]
    ):
        return []
    tail = rest[verb + 1 :]
    if rest[verb] in {"run", "create"}:
        named = [tail[index + 1] for index, word in enumerate(tail[:-1]) if word == "--name"]
        return named[:1] or [word[7:] for word in tail if word.startswith("--name=")][:1]
    names, skip = [], False
    for word in tail:
        if skip or word.startswith("-"):
            skip = not skip and word in _TAKES_VALUE
            continue
        if word in {">", ">>", "2>", "&"} or word.startswith((">", "2>", "&")):
            break
        names.append(word)
    return names


def joined(
    listed: tuple[Unit, ...], files: dict[str, str], shown: tuple[Unit, ...], scripts: dict[str, str]
) -> tuple[Unit, ...]:
    """One list: every unit that is loaded or installed, with details where `systemctl show` gave them."""
    details = {unit.name: unit for unit in shown}
    order = list(
        dict.fromkeys([*(unit.name for unit in listed), *(name for name in files if "@." not in name), *details])
    )
    by_name = {unit.name: unit for unit in listed}
    found = []
    for name in order:
        unit, detail = by_name.get(name), details.get(name)
        if detail is not None:
            unit = replace(
                detail,
                load=(unit or detail).load,
                active=(unit or detail).active,
                sub=(unit or detail).sub,
                description=(unit.description if unit else None) or detail.description,
            )
        unit = unit or Unit(name=name)
        more = started_containers([], scripts[name]) if name in scripts else ()
        found.append(
            replace(
                unit,
                enabled=unit.enabled or files.get(name),
                containers=tuple(dict.fromkeys([*unit.containers, *more])),
            )
        )
    return tuple(found)


def matters(unit: Unit) -> bool:
    """Whether a person who deploys cares: it is not the vendor's, it starts containers, or it runs an engine."""
    text = f"{unit.name} {unit.description or ''} {unit.exec_start or ''}"
    return bool(unit.containers) or unit.vendor is False or bool(_INTERESTING.search(text))


def describe(evidence: Evidence) -> dict[str, Any]:
    """The names of the cases."""
    wrong = problem(evidence)
    units = from_list_units(evidence.stdout) or from_json(evidence.stdout) or from_status(evidence.stdout)
    if not units:
        shown, scripts = from_show(evidence.stdout)
        units = joined((), {}, shown, scripts)
    if not units:
        units = tuple(Unit(name=name, enabled=state) for name, state in from_unit_files(evidence.stdout).items())
    absent = _NO_UNIT.findall(evidence.stdout[:65536] + evidence.stderr)
    units += tuple(Unit(name=name.rstrip("."), load="not-found") for name in dict.fromkeys(absent))
    return {
        "failed": [unit.name for unit in units if unit.active == "failed"],
        "restarting": [unit.name for unit in units if unit.sub == "auto-restart" or unit.sub == "auto-restart-queued"],
        "not_found": [unit.name for unit in units if unit.load == "not-found"],
        "units": [
            {
                "name": unit.name,
                "load": unit.load,
                "active": unit.active,
                "sub": unit.sub,
                "description": unit.description,
                "enabled": unit.enabled,
                "containers": list(unit.containers),
                "exec_start": unit.exec_start,
                "pid": unit.pid,
                "restarts": unit.restarts,
                "result": unit.result,
            }
            for unit in units
        ],
        "systemd": wrong is None,
        "problem": wrong[0] if wrong else None,
        "evidence": wrong[1] if wrong else None,
    }


@fact
class UnitsFact(Fact):
    """Loaded service units."""

    name = "units"
    reads = "systemctl list-units --type=service --all --no-legend --plain --no-pager"
    timeout_s = 10
    script = "systemctl list-units --type=service --all --no-legend --plain --no-pager"

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Unit, ...] | None:
        if evidence.timed_out:
            return None
        found = from_list_units(evidence.stdout)
        return () if not found and problem(evidence) else found or None


@fact
class UnitFilesFact(Fact):
    """Installed service units: which are enabled."""

    name = "unit-files"
    reads = "systemctl list-unit-files --type=service --no-legend --no-pager"
    timeout_s = 10
    script = "systemctl list-unit-files --type=service --no-legend --no-pager"

    @classmethod
    def parse(cls, evidence: Evidence) -> dict[str, str]:
        return from_unit_files(evidence.stdout)


# `$manager` asks, `kept` says which units are told; the scripts and compose files that command lines name follow.
_DETAILS = r"""
names=$({ $manager list-unit-files --type=service --no-legend --no-pager 2>/dev/null | awk '$1 !~ /@\./ && $2 !~ /^(static|alias|masked|generated|indirect)/ {print $1}'
          $manager list-units --type=service --all --plain --no-legend --no-pager | awk '{ name = ($1 ~ /\.service$/) ? $1 : $2; if (name ~ /\.service$/) print name }'; } | sort -u | head -n 1000)
[ -n "$names" ] || exit 0
shown=$($manager show --no-pager -p Id,Description,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,MainPID,NRestarts,Result,ExecStartPre,ExecStart,ExecStartPost,WorkingDirectory $names)
printf '%s\n\n' "$shown" | kept | sed -e "$SPARKWEB_MASK"
printf '%s\n' "$shown" | awk '
  BEGIN { RS = ""; FS = "\n" }
  {
    id = folder = file = run = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^Id=/) id = substr($i, 4)
      else if ($i ~ /^WorkingDirectory=/) { folder = substr($i, 18); sub(/^!/, "", folder) }
      else if ($i ~ /^FragmentPath=/) file = substr($i, 14)
      else if ($i ~ /^ExecStart/) run = run " " $i
    }
    if (run != "" && (file !~ /^\/(usr\/)?lib\// || run ~ /docker|vllm|sglang|ray |llama|python/)) print id "\t" (folder == "" ? "/" : folder) "\t" run
  }' |
while IFS='	' read -r id folder run; do
  seen=; set -f; set -- $run; set +f
  for word in "$@"; do
    word=${word#argv\[\]=}; word=${word#path=}
    case $word in
      /*) path=$word ;;
      *.sh|*.yml|*.yaml|*.py) path=$folder/$word ;;
      *) continue ;;
    esac
    case $path in *.sh|*.yml|*.yaml|*.bash) ;; /usr/bin/*|/usr/sbin/*|/bin/*|/sbin/*|/usr/lib/*|/lib/*|/proc/*|/dev/*) continue ;; esac
    case $seen in *" $path "*) continue ;; esac
    seen="$seen $path "
    [ -f "$path" ] && [ -r "$path" ] || continue
    case $path in
      *.yml|*.yaml|*.sh|*.bash) ;;
      *) case $(head -c 2 "$path" 2>/dev/null | tr -d '\000') in '#!') ;; *) continue ;; esac ;;
    esac
    printf '@file %s\t%s\n' "$id" "$path"
    head -c 65536 "$path" | tr -d '\000\r' | sed -e "$SPARKWEB_MASK" | sed 's/^/|/'
    echo
  done
  for path in "$folder/docker-compose.yml" "$folder/compose.yaml" "$folder/docker-compose.yaml" "$folder/compose.yml"; do
    case $run in *compose*) ;; *) continue ;; esac
    [ -f "$path" ] && [ -r "$path" ] || continue
    printf '@file %s\t%s\n' "$id" "$path"; head -c 65536 "$path" | tr -d '\000\r' | sed -e "$SPARKWEB_MASK" | sed 's/^/|/'; echo
  done
done
:
"""


@fact
class UnitDetailsFact(Fact):
    """What the units run, with the scripts and compose files (up to 64 KiB each) that their command lines name."""

    name = "unit-details"
    reads = "systemctl show UNITS; the files that ExecStart names"
    timeout_s = 15
    script = "manager=systemctl; kept() { cat; }\n" + _DETAILS

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[tuple[Unit, ...], dict[str, str]]:
        return from_show(evidence.stdout)


@fact
class UserUnitsFact(Fact):
    """Services of the login's own systemd (`systemctl --user`) that are not the vendor's, or that run an engine."""

    name = "user-units"
    reads = "systemctl --user show UNITS; the files that ExecStart names"
    timeout_s = 10
    script = (
        r"""
[ -n "$XDG_RUNTIME_DIR" ] || XDG_RUNTIME_DIR=/run/user/$(id -u); export XDG_RUNTIME_DIR
manager='systemctl --user'
kept() {
  awk 'BEGIN { RS = ""; FS = "\n"; ORS = "\n\n" } {
    file = run = ""
    for (i = 1; i <= NF; i++) { if ($i ~ /^FragmentPath=/) file = substr($i, 14); else if ($i ~ /^ExecStart/) run = run " " $i }
    if ((file != "" && file !~ /^\/(usr\/)?lib\//) || run ~ /docker|podman|vllm|sglang|ray |llama/) print
  }'
}
"""
        + _DETAILS
    )

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Unit, ...] | None:
        """() where there is no user manager; None where nothing is known."""
        shown, scripts = from_show(evidence.stdout)
        if shown:
            return tuple(each for each in joined((), {}, shown, scripts) if matters(each))
        return () if problem(evidence) or (evidence.exit_code == 0 and not evidence.stderr.strip()) else None
