# ruff: noqa: E501 (texts of real tools stay on one line)
"""Model folders on the node's own paths: how big, how complete, and their config."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.sheet import Evidence
from apps.facts.values import ModelFolder

_OF = re.compile(r"^(?P<stem>.*?)-?(?P<number>\d{3,6})-of-(?P<count>\d{3,6})(?P<rest>.*)$")
_WEIGHTS = (".safetensors", ".gguf", ".pth")
MOST_GGUF = 200
_HUB = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/")


@dataclass
class _Folder:
    files: dict[str, int] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)
    tensors: dict[str, tuple[int, int]] = field(default_factory=dict)
    config: str = ""
    partial: int | None = None
    total: int | None = None


def folders(text: str) -> tuple[ModelFolder, ...]:
    """`@folder PATH`, then `SIZE<TAB>PATH` of each file (symlinks followed), `@expected NAME`, `@total BYTES`, `@partial BYTES`,
    `@tensor BYTES COUNT NAME` out of the headers (numbers in the name as N) and the lines of config.json behind `|`."""
    found: dict[str, _Folder] = {}
    current: _Folder | None = None
    for line in text.splitlines():
        if line.startswith("@folder "):
            current = found.setdefault(line[8:], _Folder())
        elif current is not None:
            _take(current, line)
    return tuple(_made(path, folder) for path, folder in found.items() if folder.files or folder.expected)


def _take(folder: _Folder, line: str) -> None:
    if line.startswith("|"):
        folder.config += line[1:] + "\n"
    elif line.startswith("@expected "):
        folder.expected.add(line[10:].strip())
    elif line.startswith("@tensor "):
        _take_tensor(folder, line)
    elif line.startswith(("@total ", "@partial ")):
        word, _, number = line[1:].partition(" ")
        if number.strip().isdecimal():
            setattr(folder, word, int(number.strip()[:18]))
    else:
        size, tab, path = line.partition("\t")
        if tab and size.isdecimal() and len(size) < 19:
            folder.files[path.removeprefix("./")] = int(size)


def _take_tensor(folder: _Folder, line: str) -> None:
    size, count, name = [*line[8:].split(" ", 2), "", ""][:3]
    if (
        name
        and size.isdecimal()
        and count.isdecimal()
        and len(size) < 19
        and len(count) < 10
        and len(folder.tensors) < 1000
    ):
        folder.tensors[name[:300]] = (int(count), int(size))


def _loaded(folder: _Folder, weights: dict[str, int]) -> dict[str, int]:
    """The weight files that an engine loads: those of the index, where there is one; else all but a copy in another
    layout (`consolidated`) beside them."""
    if folder.expected:
        return {name: size for name, size in weights.items() if name in folder.expected} or weights
    plain = {name: size for name, size in weights.items() if not name.startswith("consolidated")}
    return plain or weights


def _made(path: str, folder: _Folder) -> ModelFolder:
    weights = {name: size for name, size in folder.files.items() if is_weight(name)}
    expected = folder.expected or by_names(set(weights))
    present = {name for name, size in weights.items() if size > 0}
    missing = sorted(expected - present)
    hub = _HUB.search(path)
    complete: bool | None = None
    if expected:
        complete = not missing and not _short(folder, weights)
    elif weights:
        complete = not folder.partial and all(weights.values())
    return ModelFolder(
        path=path,
        bytes=sum(folder.files.values()),
        shards=len(expected & present) if expected else len(present),
        shards_expected=len(expected) or (len(present) if complete else None),
        complete=complete,
        config=_config(folder.config),
        weights_bytes=sum(_loaded(folder, weights).values()),
        tensors=tuple(sorted((name, count, size) for name, (count, size) in folder.tensors.items())),
        name=f"{hub.group(1)}/{hub.group(2)}" if hub else None,
        missing=tuple(missing[:200]),
        partial_bytes=folder.partial,
        index_total_bytes=folder.total,
        gguf=tuple(sorted(one for one in weights.items() if one[0].lower().endswith(".gguf")))[:MOST_GGUF],
    )


def _short(folder: _Folder, weights: dict[str, int]) -> bool:
    """Files smaller than the tensors that the index says are in them."""
    return (
        folder.total is not None
        and sum(size for name, size in weights.items() if name in folder.expected) < folder.total
    )


def is_weight(name: str) -> bool:
    """A weight file of the model itself; `original/`, `consolidated` duplicates and optimizer states are not loaded."""
    if "/" in name and not name.startswith("transformer/"):
        return False
    base = name.rsplit("/", 1)[-1]
    return base.endswith(_WEIGHTS) or (base.startswith("pytorch_model") and base.endswith(".bin"))


def by_names(names: set[str]) -> set[str]:
    """What `model-00001-of-00039.safetensors` says about its siblings."""
    expected: set[str] = set()
    for name in sorted(names):
        found = _OF.match(name) if name not in expected and len(expected) < 20_000 else None
        if found and 0 < int(found["count"]) <= 10_000:
            width = len(found["number"])
            stem = name[: found.start("number")]
            expected |= {
                f"{stem}{number:0{width}d}-of-{found['count']}{found['rest']}"
                for number in range(1, int(found["count"]) + 1)
            }
    return expected


def _config(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@fact
class ModelsFact(Fact):
    """Folders that hold a model: /models, the Hub cache, and the paths that the caller names (`extra={"models": "one a line"}`)."""

    name = "models"
    reads = "find -L FOLDER, config.json, *.index.json and the headers of *.safetensors of each model folder"
    timeout_s = 25
    script = r"""
left=400
sum='{ if (!match($0, /"data_offsets" *: *\[[0-9]+ *, *[0-9]+/)) next
  at = substr($0, RSTART, RLENGTH); sub(/.*\[/, "", at); split(at, ends, /, */)
  name = $0; sub(/^[ ,{]*"/, "", name); sub(/".*/, "", name)
  gsub(/\.[0-9]+\./, ".N.", name); gsub(/\.[0-9]+\./, ".N.", name)
  bytes[name] += ends[2] - ends[1]; count[name]++ }
END { for (name in bytes) printf "@tensor %.0f %d %s\n", bytes[name], count[name], name }'
headers() {
  set -- "$1"/*.safetensors
  [ -f "$1" ] && left=$((left - $#)) && [ "$left" -ge 0 ] || return 0
  for file; do
    case $file in */consolidated*) continue ;; esac
    long=$(od -An -v -t u8 -N 8 "$file" 2>/dev/null | tr -d ' ')
    case $long in ''|*[!0-9]*|????????*) continue ;; esac
    tail -c +9 "$file" 2>/dev/null | head -c "$long" | tr '}' '\n'
  done | awk "$sum" | sort -k 2,2nr | head -n 400
}
hub=${HF_HUB_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}/hub}
one() {
  [ -d "$1" ] || return 0
  printf '@folder %s\n' "${1%/}"
  depth=3
  case $1 in /models|"$HOME"/models) depth=1 ;; esac
  ( cd "$1" && find -L . -maxdepth $depth -type f -exec stat -L -c '%s	%n' {} + 2>/dev/null | head -n 3000 )
  for index in "$1"/*.index.json; do
    [ -f "$index" ] || continue
    grep -oE '"[^"]+\.(safetensors|bin)"' "$index" | sort -u | sed -e 's/^"/@expected /' -e 's/"$//'
    sed -n 's/.*"total_size": *\([0-9][0-9]*\).*/@total \1/p' "$index" | head -n 1
    break
  done
  case $1 in */snapshots/*)
    part=$(find "${1%/snapshots/*}/blobs" -name '*.incomplete' -type f -exec stat -c %s {} + 2>/dev/null | awk '{ n += $1 } END { if (NR) printf "%.0f", n }')
    [ -z "$part" ] || printf '@partial %s\n' "$part" ;;
  esac
  headers "$1"
  [ ! -f "$1/config.json" ] || { head -c 262144 "$1/config.json" | tr -d '\000\r' | sed 's/^/|/'; echo; }
}
{
  printf '%s\n' "$SPARKWEB_MODELS"
  for path in /models/ /models/*/ /models/*/*/ "$HOME"/models/ "$HOME"/models/*/; do
    for file in "$path"config.json "$path"*.gguf "$path"*.safetensors; do [ -e "$file" ] && { printf '%s\n' "$path"; break; }; done
  done
  for path in "$hub"/models--*/snapshots/*/; do [ -d "$path" ] && printf '%s\n' "$path"; done
} | sed -e 's:/*$::' -e 's:/[^/]*\.gguf$::' | awk 'NF && !seen[$0]++' | head -n 80 | while IFS= read -r path; do one "$path"; done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[ModelFolder, ...] | None:
        found = folders(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None
