"""A small file on a node that says which installation of sparkweb works there, so that two of them see each other.

`sparkweb-INSTALLATION.lock` in /run/lock, or in /tmp where that can't be written to (or only in $SPARKWEB_LOCKS, where the
environment of our logins on the node names a folder): one line

    sparkweb 1 INSTALLATION RUN BOOT-ID SINCE WORDS…

SINCE in unix seconds by the node's own clock; its time of change is the last sign of life. Each installation writes its own
file first and then looks at the others': of two that meet, the one that came first stays and the other takes its file back; of
two that come in the same second neither stays. A file of another boot, or one without a sign of life for STALE_S, is nobody's.
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
LONGEST_WORDS = 200

_ID = re.compile(r"[a-z0-9]{1,40}")
_ANSWER = re.compile(
    r"held (?P<id>[a-z0-9]{1,40}) (?P<run>[a-z0-9]{1,40}) (?P<since>[0-9]{1,12}) (?P<age>-?[0-9]{1,12}) (?P<words>.*)"
)

_HOLD = r"""
umask 022
read -r boot < {boot_id_path}
now=$(date +%s)
place=
set -- {places}
[ -z "$SPARKWEB_LOCKS" ] || set -- "$SPARKWEB_LOCKS"
for each; do if [ -d "$each" ] && [ -w "$each" ]; then place=$each; break; fi; done
[ -n "$place" ] || {{ echo "{nonce} none"; exit 0; }}
mine=$place/sparkweb-{installation}.lock since=$now fresh=yes
age_of() {{ age=$((now - $(stat -c %Y "$1" 2>/dev/null || echo 0))); }}
if [ -f "$mine" ] && [ ! -L "$mine" ]; then
  age_of "$mine"
  {{ read -r word version id run theirs was words < "$mine"; }} 2>/dev/null
  if [ "$run" = {run} ] && [ "$theirs" = "$boot" ] && [ $age -lt {stale} ]; then since=$was fresh=no; fi
fi
new=$place/.sparkweb-{nonce}
printf 'sparkweb 1 %s %s %s %s %s\n' {installation} {run} "$boot" "$since" {words} > "$new" && mv -f "$new" "$mine" \
  || {{ rm -f "$new"; echo "{nonce} none"; exit 0; }}
for each; do for file in "$each"/sparkweb-*.lock; do
  if [ ! -f "$file" ] || [ -L "$file" ] || [ "$file" = "$mine" ]; then continue; fi
  word= version= id= run= theirs= was= words=
  {{ read -r word version id run theirs was words < "$file"; }} 2>/dev/null
  if [ "$word" != sparkweb ] || [ "$id" = {installation} ]; then continue; fi
  age_of "$file"
  if [ "$theirs" != "$boot" ] || [ $age -ge {stale} ]; then rm -f "$file" 2>/dev/null; continue; fi
  case $was in ''|*[!0-9]*) continue ;; esac
  if [ "$was" -lt "$since" ] || {{ [ "$was" -eq "$since" ] && [ $fresh = yes ]; }}; then
    rm -f "$mine"
    printf '%s held %s %s %s %s %s\n' {nonce} "$id" "$run" "$was" "$age" "$words" | tr -cd ' -~\n' | cut -c 1-500
    exit 0
  fi
done; done
echo "{nonce} ours"
"""

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


class NodeHeld(RemoteError):
    """`node_reserved`: another installation of sparkweb works on the node; the evidence says which, since when and why."""


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
        """Take it, or give a sign of life. False where the node has no place for it. Raises NodeHeld, RemoteError."""
        nonce = token_hex(8)
        script = _HOLD.format(
            nonce=nonce,
            installation=holding.installation,
            run=holding.run,
            words=shlex.quote(" ".join(holding.words.split())[:LONGEST_WORDS]),
            places=" ".join(map(shlex.quote, self._places)),
            boot_id_path=shlex.quote(self._boot_id_path),
            stale=STALE_S,
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
        raise NodeHeld("node_reserved", hop=self._transport.name, evidence=_held(found, self._places))

    def let_go(self, holding: Holding) -> None:
        """Give it back, if it is still this run's. Raises RemoteError."""
        places = " ".join(map(shlex.quote, self._places))
        script = _LET_GO.format(places=places, installation=holding.installation, run=holding.run)
        self._transport.run(script, timeout_s=self._timeout_s)


def _held(found: re.Match[str], places: tuple[str, ...]) -> str:
    since = datetime.fromtimestamp(int(found["since"]), UTC)
    files = " or ".join(f"{place}/sparkweb-{found['id']}.lock" for place in places)
    return (
        f"another installation of sparkweb works there since {since:%Y-%m-%d %H:%M:%S} UTC by the node's clock: "
        f"{found['words'] or 'it does not say what'} (last sign of life {found['age']} s ago). Nothing was changed. If it "
        f"is gone for good, remove {files} on the node; after {STALE_S // 60} min of silence nobody minds it."
    )
