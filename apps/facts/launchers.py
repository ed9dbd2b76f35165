# ruff: noqa: E501 (shell lines stay on one line)
"""Launch scripts, compose files and git checkouts that are on the node already, and what they would start."""

from __future__ import annotations

import re
from collections.abc import Mapping

from apps.facts.commands import in_script
from apps.facts.fact import Fact, fact
from apps.facts.masking import masked
from apps.facts.sheet import Evidence
from apps.facts.values import Checkout, Launcher

_COMMIT = re.compile(r"[0-9a-f]{7,64}\Z")


def found_in(text: str) -> tuple[tuple[Launcher, ...], tuple[Checkout, ...]]:
    """`@checkout PATH` with `key<TAB>value` lines (remote, branch, head, commit, changed), `@script PATH` with the file's lines behind `|`."""
    scripts: dict[str, list[str]] = {}
    places: dict[str, dict[str, str]] = {}
    lines: list[str] | None = None
    place: dict[str, str] | None = None
    for line in text.splitlines():
        if line.startswith("@script "):
            lines, place = scripts.setdefault(line[8:], []), None
        elif line.startswith("@checkout "):
            lines, place = None, places.setdefault(line[10:].rstrip("/"), {})
        elif lines is not None and line.startswith("|"):
            lines.append(line[1:])
        elif place is not None and "\t" in line:
            key, _, value = line.partition("\t")
            place.setdefault(key, value.strip())
    checkouts = tuple(_checkout(path, about) for path, about in places.items())
    made = tuple(_launcher(path, body, places) for path, body in scripts.items())
    return tuple(each for each in made if any(starts.engine for starts in each.starts)), checkouts


def _launcher(path: str, lines: list[str], places: Mapping[str, object]) -> Launcher:
    """The innermost checkout counts."""
    inside = max((place for place in places if path.startswith(f"{place}/")), key=len, default=None)
    return Launcher(path=path, starts=in_script(masked("\n".join(lines) + "\n")), checkout=inside)


def _checkout(path: str, about: Mapping[str, str]) -> Checkout:
    commit, _, rest = about.get("commit", "").partition(" ")
    moment, _, subject = rest.partition(" ")
    changed, branch = about.get("changed", ""), about.get("branch", "")
    return Checkout(
        path=path,
        remote=masked(about["remote"])[:300] if about.get("remote") else None,
        branch=branch.removeprefix("ref: refs/heads/") if branch.startswith("ref: ") else None,
        commit=next((each for each in (commit, about.get("head", ""), branch) if _COMMIT.match(each)), None),
        committed_at=moment or None,
        subject=masked(subject)[:200] or None,
        changed=int(changed[:6]) if changed.isascii() and changed.isdecimal() else None,
    )


@fact
class LaunchersFact(Fact):
    """Scripts and compose files that start engines, and checkouts such as spark-vllm-docker, in homes, /opt, /srv and /usr/local/bin.

    Four folders deep, on one file system, no hidden folders; the first 24 files (16 KiB each) and 16 checkouts.
    Nothing is changed: git takes no lock and runs no hook.
    """

    name = "launchers"
    reads = "find HOME /opt /srv; git log -1; scripts that start engines, as `@checkout PATH` and `@script PATH` with `|` lines"
    timeout_s = 12
    script = r"""
starts='docker (compose|run)|podman run|vllm +serve|vllm[.]entrypoints|sglang[. ]|llama-server|ray +start|trtllm-serve|ollama +serve|torchrun|launch-cluster[.]sh|image: .*(vllm|sglang|llama|ollama|tgi|tensorrt|triton)'
kinds='vllm|sglang|spark|llama|ollama|dgx|tensorrt|trtllm|playbook|inference|lmdeploy|exllama|qwen|nemo|(^|[/_-])ray([/_-]|$)'
set --
for place in "$HOME" /home/*/ /opt /srv /usr/local/bin; do
  place=${place%/}
  [ -d "$place" ] && [ -r "$place" ] || continue
  [ "$place" != "$HOME" ] || [ $# = 0 ] || continue
  set -- "$@" "$place"
done
[ $# -gt 0 ] || exit 0
all=$(find "$@" -maxdepth 4 -xdev \( -type d \( -name node_modules -o -name site-packages -o -name dist-packages -o -name __pycache__ -o -name snap -o -name 'models--*' -o -name third_party -o \( -name '.?*' ! -name .git \) \) -prune \) \
  -o -name .git -prune -print -o -type f -size -129 \( -name '*.sh' -o -name '*.bash' -o -name '*compose*.yml' -o -name '*compose*.yaml' \) -print 2>/dev/null | head -n 2000)
printf '%s\n' "$all" | grep '/[.]git$' | sed 's:/[.]git$::' | head -n 200 | while IFS= read -r path; do
  remote=; branch=
  [ ! -d "$path/.git" ] || remote=$(sed -n 's/^[[:space:]]*url = //p' "$path/.git/config" 2>/dev/null | head -n 1)
  printf '%s %s\n' "${path##*/}" "$remote" | grep -qiE "$kinds" || continue
  printf '@checkout %s\nremote\t%s\n' "$path" "$remote"
  { read -r branch <"$path/.git/HEAD"; } 2>/dev/null
  printf 'branch\t%s\n' "$branch"
  case $branch in 'ref: refs/'*) { read -r head <"$path/.git/${branch#ref: }"; } 2>/dev/null && printf 'head\t%s\n' "$head" ;; esac
  command -v git >/dev/null 2>&1 || continue
  GIT_OPTIONAL_LOCKS=0; GIT_TERMINAL_PROMPT=0; export GIT_OPTIONAL_LOCKS GIT_TERMINAL_PROMPT
  commit=$(timeout 3 git -C "$path" -c core.fsmonitor=false log -1 --format='%H %cI %s' 2>/dev/null) && printf 'commit\t%s\n' "$commit"
  changed=$(timeout 3 git -C "$path" -c core.fsmonitor=false status --porcelain --untracked-files=no --ignore-submodules 2>/dev/null) || continue
  printf 'changed\t%s\n' "$(printf '%s' "$changed" | grep -c .)"
done | awk '/^@checkout / && ++n > 16 { exit } { print }' | sed -e "$SPARKWEB_MASK"
printf '%s\n' "$all" | grep -v '/[.]git$' | grep -vE '/(tests?|benchmarks?|[.]buildkite|docs)/' | head -n 800 | tr '\n' '\000' | xargs -0 grep -lE "$starts" /dev/null 2>/dev/null | head -n 24 | while IFS= read -r path; do
  printf '@script %s\n' "$path"
  head -c 16384 "$path" | tr -d '\000\r' | sed -e '/^[[:space:]]*#/d' -e '/^[[:space:]]*$/d' | sed -e "$SPARKWEB_MASK" | sed 's/^/|/'
  echo
done
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[tuple[Launcher, ...], tuple[Checkout, ...]] | None:
        found = found_in(evidence.stdout)
        return found if any(found) or evidence.exit_code == 0 else None
