"""What an engine's own API says of itself, asked on the node over its own addresses, and what Docker remembers of containers that
are gone. For the watch: nothing here connects from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from apps.facts.fact import Fact, fact
from apps.facts.sheet import Evidence
from apps.facts.values import ContainerEvent, EngineApi

_ASKED = re.compile(r"@api (\d{1,5}) health=(\d{3}) metrics=(\d{3}) models=(\d{3}|-) by=([a-z]+)\Z")
_METRIC = re.compile(r"@metric (\d{1,5}) ([a-z]+):([a-z_]+)(?:\{[^\n]*\})? +([0-9.eE+-]{1,40})\Z")
TOKENS = ("generation_tokens_total", "tokens_predicted_total")
RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
WAITING = ("num_requests_waiting", "num_queue_reqs", "requests_deferred")
REFUSED = (401, 403)


def apis(text: str) -> tuple[EngineApi, ...]:
    """`@api PORT health=CODE metrics=CODE models=CODE by=TOOL`, then `@metric PORT NAME{LABELS} VALUE` lines in the text format
    of Prometheus. Values of one name are summed over their labels: one line an engine core, or a tensor rank."""
    sums: dict[tuple[str, str], float] = {}
    asked: dict[str, re.Match[str]] = {}
    for line in text.splitlines():
        if found := _ASKED.match(line):
            asked.setdefault(found[1], found)
        elif (found := _METRIC.match(line)) and (value := _number(found[4])) is not None:
            sums[found[1], found[3]] = sums.get((found[1], found[3]), 0.0) + value
    return tuple(
        EngineApi(
            port=int(port),
            health=int(found[2]),
            tokens=_first(sums, port, TOKENS),
            running=_first(sums, port, RUNNING),
            waiting=_first(sums, port, WAITING),
            keyed=_keyed(found[4]),
            asked_by=found[5],
        )
        for port, found in asked.items()
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None


def _first(sums: dict[tuple[str, str], float], port: str, names: Iterable[str]) -> float | None:
    return next((sums[port, name] for name in names if (port, name) in sums), None)


def _keyed(code: str) -> bool | None:
    """Whether the API wants a key: by the answer to a request without one. None: not asked, or no clear answer."""
    if code == "-":
        return None
    return True if int(code) in REFUSED else False if code == "200" else None


@fact
class EngineApiFact(Fact):
    """Health, tokens counter and running requests of engines of ours, and whether they want a key."""

    name = "engine-api"
    reads = "GET /health, /metrics and the status of /v1/models on the node itself, by curl, wget or bash"
    timeout_s = 9
    # SPARKWEB_APIS: `PORT HOST WANT` a line, WANT is `key` where /v1/models is to be asked, else `-`. 000 is no answer.
    script = r"""
[ -n "$SPARKWEB_APIS" ] || exit 0
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
tool=none
if command -v curl >/dev/null 2>&1; then tool=curl
elif command -v wget >/dev/null 2>&1; then tool=wget
elif command -v bash >/dev/null 2>&1; then tool=bash; fi
body=
get() {
  code=000
  case $tool in
  curl)
    body=$(curl -s -m 3 --noproxy '*' -w '\n@code %{http_code}\n' "http://$2:$1$3" 2>/dev/null)
    code=$(printf '%s\n' "$body" | sed -n 's/^@code //p' | tail -n 1) ;;
  wget)
    body=$(wget -S -t 1 -T 3 -O - "http://$2:$1$3" 2>"api-$1.head")
    code=$(sed -n 's/^.*HTTP\/[0-9.]* \([0-9][0-9][0-9]\).*/\1/p' "api-$1.head" | tail -n 1) ;;
  bash)
    host=${2#\[}; host=${host%\]}
    body=$(bash -c 'exec 3<>"/dev/tcp/$0/$1" || exit; printf "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" "$2" >&3
      while IFS= read -r -t 3 line <&3; do printf "%s\n" "$line"; done' "$host" "$1" "$3" 2>/dev/null)
    code=$(printf '%s\n' "$body" | sed -n '1s/^HTTP\/[0-9.]* \([0-9][0-9][0-9]\).*/\1/p') ;;
  esac
  code=${code:-000}
}
one() {
  get "$1" "$2" /health; health=$code
  metrics=000; text=; models=-
  if [ "$health" != 000 ]; then
    get "$1" "$2" /metrics; metrics=$code
    text=$(printf '%s\n' "$body" | tr -d '\r' | grep -E \
      -e '^vllm:(generation_tokens_total|num_requests_running|num_requests_waiting)[{ ]' \
      -e '^sglang:(generation_tokens_total|num_running_reqs|num_queue_reqs)[{ ]' \
      -e '^llamacpp:(tokens_predicted_total|requests_processing|requests_deferred)[{ ]' | head -n 64 | sed "s/^/@metric $1 /")
    if [ "$3" = key ]; then get "$1" "$2" /v1/models; models=$code; fi
  fi
  printf '@api %s health=%s metrics=%s models=%s by=%s\n%s\n' "$1" "$health" "$metrics" "$models" "$tool" "$text"
}
printf '%s\n' "$SPARKWEB_APIS" | {
  while read -r port host want; do
    [ -z "$port" ] || one "$port" "$host" "$want" &
  done
  wait
}
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[EngineApi, ...] | None:
        return apis(evidence.stdout)


def events(text: str) -> tuple[ContainerEvent, ...]:
    """`docker events --format '{{json .}}'`, one object a line, the oldest first. What is no event of a container is left out."""
    made = []
    for line in text.splitlines():
        try:
            said: Any = json.loads(line)
            attributes = said["Actor"]["Attributes"]
            action, name, at = said["Action"], attributes["name"], said["time"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if not isinstance(action, str) or not isinstance(name, str) or not isinstance(at, int | float):
            continue
        if action not in ("kill", "stop", "die", "destroy", "oom", "rename"):
            continue
        code, signal = attributes.get("exitCode"), attributes.get("signal")
        made.append(
            ContainerEvent(name=name, action=action, at=float(at), exit_code=_whole(code), signal=_whole(signal))
        )
    return tuple(made)


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None


@fact
class ContainerEventsFact(Fact):
    """What Docker remembers of containers that are gone: it keeps the last few hundred events since it was started."""

    name = "container-events"
    reads = "docker events --since … --until … --filter container=NAME --format '{{json .}}', for names that are missed"
    timeout_s = 6
    # SPARKWEB_MISSED: names of containers, one a line; without any nothing is asked.
    script = r"""
[ -n "$SPARKWEB_MISSED" ] || exit 0
now=$(date +%s)
for name in $SPARKWEB_MISSED; do
  docker events --since "$((now - 900))" --until "$now" --filter type=container --filter "container=$name" \
    --format '{{json .}}' | tail -n 20
done | sed -e "$SPARKWEB_MASK"
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[ContainerEvent, ...] | None:
        return events(evidence.stdout)
