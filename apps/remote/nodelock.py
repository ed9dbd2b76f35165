"""A small file on a node that says which installation of sparkweb works there, so that two of them see each other.

`sparkweb-INSTALLATION.lock` in /run/lock, or in /tmp where that can't be written to (or only in $SPARKWEB_LOCKS, where the
environment of our logins on the node names a folder): one line

    sparkweb 1 INSTALLATION RUN BOOT-ID SINCE WORDS…

SINCE in unix seconds by the node's own clock; its time of change is the last sign of life. Each installation writes its own
file first and then looks at the others': of two that meet, the one that came first stays and the other takes its file back; of
two that come in the same second neither stays. A file of another boot, one without a sign of
life for STALE_S, and one whose sign of life lies so far ahead (the node's clock was set back) is nobody's.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex

from apps.remote.transport import BadAnswer, ConnectionLost, RemoteError, Transport

PLACES = ("/run/lock", "/tmp")  # noqa: S108 - only names that are ours, and never followed as links
STALE_S = 600  # ten times as long as a run goes without a sign of life
ALIVE_S = 150  # who gave a sign of life since then is at work
LONGEST_WORDS = 200

_ID = re.compile(r"[a-z0-9]{1,40}")
_ANSWER = re.compile(r"held (?P<since>[0-9]{1,12}) (?P<age>-?[0-9]{1,12}) (?P<file>[^\t]*)\t(?P<words>.*)")

# `minds FILE`: 0 when it is a lock of another installation that counts, 2 when it is one that is nobody's, else 1. Nothing in a
# file or its name is taken for more than words; of a long one no more is read than a line of ours can have.
_COMMON = r"""
umask 022
boot=
{{ read -r boot < {boot_id_path}; }} 2>/dev/null
boot=${{boot:--}}
now=$(date +%s)
set -- {places}
[ -z "$SPARKWEB_LOCKS" ] || set -- "$SPARKWEB_LOCKS"
mine=
printable() {{ printf %s "$1" | LC_ALL=C tr -c ' -~' '?' | cut -c "1-$2"; }}
age_of() {{ age=$((now - $(stat -c %Y "$1" 2>/dev/null || echo 0))); }}
read_of() {{
  word= version= id= run= theirs= was= words=
  read -r word version id run theirs was words <<END
$(head -c 1000 "$1" 2>/dev/null | head -n 1 | LC_ALL=C tr -c ' -~\n' '?')
END
}}
minds() {{
  if [ ! -f "$1" ] || [ -L "$1" ] || [ "$1" = "$mine" ]; then return 1; fi
  read_of "$1"
  if [ "$word" != sparkweb ] || [ "$id" = {installation} ]; then return 1; fi
  case $was in ''|*[!0-9]*|?????????????*) return 1 ;; esac
  if [ "$was" -gt "$now" ]; then was=$now; fi
  age_of "$1"
  if [ "$theirs" != "$boot" ] || [ $age -ge {stale} ] || [ $age -le -{stale} ]; then return 2; fi
}}
"""

_HOLD = (
    _COMMON
    + r"""
place= since=$now fresh=yes written=no
for each; do if [ -d "$each" ] && [ -w "$each" ]; then place=$each; break; fi; done
if [ -n "$place" ]; then
  mine=$place/sparkweb-{installation}.lock
  if [ -L "$mine" ]; then rm -f "$mine" 2>/dev/null; fi
  if [ -f "$mine" ] && [ ! -L "$mine" ]; then
    age_of "$mine"
    read_of "$mine"
    case $was in ''|*[!0-9]*|?????????????*) run= ;; esac
    if [ "$run" = {run} ] && [ "$theirs" = "$boot" ] && [ $age -lt {stale} ]; then since=$was fresh=no; fi
  fi
  new=$place/.sparkweb-{nonce}
  if [ ! -d "$mine" ] && [ ! -L "$mine" ] \
    && printf 'sparkweb 1 %s %s %s %s %s\n' {installation} {run} "$boot" "$since" {words} > "$new" && mv -f "$new" "$mine"
  then written=yes; else rm -f "$new"; since=$now fresh=yes; fi
fi
for each; do for file in "$each"/sparkweb-*.lock; do
  minds "$file"
  case $? in 1) continue ;; 2) rm -f "$file" 2>/dev/null; continue ;; esac
  if [ "$was" -lt "$since" ] || {{ [ "$was" -eq "$since" ] && [ $fresh = yes ]; }}; then
    if [ $written = yes ]; then rm -f "$mine"; fi
    printf '%s held %s %s %s\t%s\n' {nonce} "$was" "$age" "$(printable "$file" 300)" "$(printable "$words" 300)"
    exit 0
  fi
done; done
if [ $written = yes ]; then echo "{nonce} ours"; else echo "{nonce} none"; fi
"""
)

_LET_GO = r"""
set -- {places}
[ -z "$SPARKWEB_LOCKS" ] || set -- "$SPARKWEB_LOCKS"
for each; do
  file=$each/sparkweb-{installation}.lock
  if [ ! -f "$file" ] || [ -L "$file" ]; then continue; fi
  {{ read -r word version id run rest < "$file"; }} 2>/dev/null
  if [ "$run" = {run} ]; then rm -f "$file"; fi
done
:
"""

_REMOVE = (
    _COMMON
    + r"""
gone=0 lives= stays=
for each; do for file in "$each"/sparkweb-*.lock; do
  minds "$file" || continue
  shown=$(printable "$file" 300) about="$(printable "$words" 300) (last sign of life $age s ago)"
  if [ $age -lt {alive} ]; then
    echo "$shown stays: $about"
    lives="$shown is of an installation that lives: its last sign of life came $age s ago"
  elif {{ rm -f "$file" || sudo -n rm -f -- "$file"; }} 2>/dev/null; then
    gone=$((gone + 1))
    echo "removed $shown: $about"
  else
    echo "$shown stays: $about"
    stays="$shown could not be removed: it is neither this user's nor may sudo be used without a password"
  fi
done; done
if [ -n "$lives" ]; then echo "sparkweb: foreign_installation: $lives"; exit 1; fi
if [ -n "$stays" ]; then echo "sparkweb: permission_denied: $stays"; exit 1; fi
if [ $gone = 0 ]; then echo "no lock of another installation stands in the way"; else echo "$gone removed"; fi
"""
)


class NodeHeld(RemoteError):
    """`foreign_installation`: another one of sparkweb works on the node; the evidence says which, since when and why."""


@dataclass(frozen=True)
class Holding:
    """What is written: the installation's id (not its key), the run's code, and words for whoever is refused."""

    installation: str
    run: str
    words: str

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.installation) or not _ID.fullmatch(self.run):
            raise ValueError(f"{self.installation!r}, {self.run!r}: an id is up to 40 small letters and digits")


class NodeLock:
    """The lock of one node. `places` and `boot_id_path` are for tests."""

    def __init__(
        self,
        transport: Transport,
        *,
        places: tuple[str, ...] = PLACES,
        boot_id_path: str = "/proc/sys/kernel/random/boot_id",
        timeout_s: float = 30.0,
    ) -> None:
        self._transport, self._places, self._boot_id_path = transport, places, boot_id_path
        self._timeout_s = timeout_s

    def hold(self, holding: Holding) -> bool:
        """Take it, or give a sign of life. False where the node has no place for it. Raises NodeHeld, RemoteError.

        Another's is respected also where ours can't be written: the disk is full, or somebody put something else at its place.
        """
        nonce = token_hex(8)
        script = _HOLD.format(
            nonce=nonce,
            installation=holding.installation,
            run=holding.run,
            words=shlex.quote(" ".join(holding.words.split())[:LONGEST_WORDS]),
            **_where(self._places, self._boot_id_path),
        )
        result = self._transport.run(script, timeout_s=self._timeout_s)
        if result.exit_code is None:
            raise ConnectionLost("ssh_timeout", hop=self._transport.name, evidence="no answer about the node's lock")
        lines = result.stdout.decode("utf-8", "replace").splitlines()
        said = next((line.removeprefix(f"{nonce} ") for line in lines if line.startswith(f"{nonce} ")), "")
        if said in ("ours", "none"):
            return said == "ours"
        found = _ANSWER.fullmatch(said)
        if found is None:
            evidence = f"about its lock the node said {(said or result.stderr.decode('utf-8', 'replace'))[:200]!r}"
            raise BadAnswer("bad_answer", hop=self._transport.name, evidence=evidence)
        raise NodeHeld("foreign_installation", hop=self._transport.name, evidence=_held(found))

    def let_go(self, holding: Holding) -> None:
        """Give it back, if it is still this run's. Raises RemoteError."""
        places = " ".join(map(shlex.quote, self._places))
        script = _LET_GO.format(places=places, installation=holding.installation, run=holding.run)
        self._transport.run(script, timeout_s=self._timeout_s)


def removal(
    installation: str, *, places: tuple[str, ...] = PLACES, boot_id_path: str = "/proc/sys/kernel/random/boot_id"
) -> str:
    """The script of a job that removes other installations' locks from its node, but not those of one that lives (a sign of life
    within ALIVE_S). It prints what it did with each; exit code 1 and a last line `sparkweb: REASON: …` when one had to stay."""
    if not _ID.fullmatch(installation):
        raise ValueError(f"{installation!r}: an id is up to 40 small letters and digits")
    return _REMOVE.format(installation=installation, alive=ALIVE_S, **_where(places, boot_id_path))


def _where(places: tuple[str, ...], boot_id_path: str) -> dict[str, object]:
    return {
        "places": " ".join(map(shlex.quote, places)),
        "boot_id_path": shlex.quote(boot_id_path),
        "stale": STALE_S,
    }


def _held(found: re.Match[str]) -> str:
    since = datetime.fromtimestamp(int(found["since"]), UTC)
    return (
        f"another installation of sparkweb works there since {since:%Y-%m-%d %H:%M:%S} UTC by the node's clock: "
        f"{found['words'] or 'it does not say what'} (last sign of life {found['age']} s ago, {found['file']}). Nothing was "
        f"changed. After {STALE_S // 60} min of silence nobody minds it."
    )
