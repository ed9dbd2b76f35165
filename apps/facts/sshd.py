"""What the node's sshd allows: channels of one connection, connections at a time, forwarding."""

from __future__ import annotations

import re
from collections.abc import Iterator

from apps.facts.fact import Fact, fact
from apps.facts.sheet import Evidence
from apps.facts.values import SshServer

# sshd_config(5): what holds where nothing is said.
DEFAULTS = {
    "maxsessions": "10",
    "maxstartups": "10:30:100",
    "allowtcpforwarding": "yes",
    "disableforwarding": "no",
    "permitopen": "any",
    "logingracetime": "120",
    "clientaliveinterval": "0",
}
_LINE = re.compile(r"^[ \t]*([A-Za-z]{4,40})(?:[ \t]*=[ \t]*|[ \t]+)(\S.*?)[ \t]*$")
_VERSION = re.compile(r"OpenSSH[_ ](?:for_Windows_)?(\d{1,3}\.\d{1,3}(?:p\d{1,3})?)")
_TIMES = re.compile(r"(\d{1,7})([smhdwSMHDW]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def server(text: str) -> SshServer | None:
    """`sshd -T`, or the lines of sshd_config: there the first value of a keyword counts, its letters' case doesn't, and a
    `Match` block (which says something for some logins only) ends with its file, marked by `Match all`."""
    found: dict[str, str] = {}
    conditional = False
    for key, value, inside in _settings(text):
        conditional = conditional or inside
        if not inside:
            found.setdefault(key, value)
    effective = "@effective" in text or {"maxsessions", "logingracetime", "allowtcpforwarding", "usedns"} <= set(found)
    version = _VERSION.search(text)
    known = {key for key in found if key in DEFAULTS or key in _COMMON}
    if not known and "@files" not in text:
        return SshServer(version=version.group(1)) if version else None
    asked = found if effective else {**DEFAULTS, **found}
    begin, _, rest = asked.get("maxstartups", "").partition(":")
    forwarding = asked.get("allowtcpforwarding", "").lower() or None
    return SshServer(
        version=version.group(1) if version else None,
        max_sessions=_whole(asked.get("maxsessions")),
        startups_begin=_whole(begin),
        startups_full=_whole(rest.rpartition(":")[2]) if rest else _whole(begin),
        tcp_forwarding="no"
        if asked.get("disableforwarding", "").lower() == "yes"
        else {"all": "yes"}.get(forwarding or "", forwarding),
        permit_open=asked.get("permitopen"),
        login_grace_s=_seconds(asked.get("logingracetime")),
        alive_interval_s=_seconds(asked.get("clientaliveinterval")),
        source="sshd -T" if effective else "files",
        conditional=None if effective else conditional,
    )


_COMMON = {
    "port",
    "subsystem",
    "passwordauthentication",
    "permitrootlogin",
    "usepam",
    "include",
    "hostkey",
    "listenaddress",
}


def _settings(text: str) -> Iterator[tuple[str, str, bool]]:
    """(keyword in lower case, value, whether a Match block holds it)."""
    inside = False
    for line in text.splitlines():
        row = _LINE.match(line) if len(line) < 2000 else None
        if row is None or line.lstrip().startswith(("#", "@")):
            continue
        key, value = row.group(1).lower(), row.group(2).strip('"')
        if key == "match":
            inside = value.lower() != "all"
            continue
        yield key, value, inside


def _whole(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _seconds(text: str | None) -> int | None:
    """`120`, `2m`, `1h30m`; sshd -T prints plain seconds, `none` is no limit."""
    text = (text or "").strip()
    parts = _TIMES.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return 0 if text.lower() == "none" else None
    return sum(int(number) * _SECONDS[unit.lower()] for number, unit in parts)


@fact
class SshServerFact(Fact):
    """As sshd itself says where this login may ask it; else as its files say, with the manual's defaults."""

    name = "sshd"
    reads = "sshd -T, or sshd_config and the files that it includes"
    timeout_s = 10
    script = r"""
sshd=$(command -v sshd) || sshd=/usr/sbin/sshd
printf '@version %s\n' "$("$sshd" -V 2>&1 | sed -n 's/.*\(OpenSSH_[^ ,]*\).*/\1/p' | head -n 1)"
out=
if [ "$(id -u)" = 0 ]; then out=$("$sshd" -T 2>/dev/null)
elif sudo -n -l "$sshd" -T >/dev/null 2>&1; then out=$(sudo -n "$sshd" -T 2>/dev/null); fi
only='^[[:space:]]*(maxsessions|maxstartups|allowtcpforwarding|disableforwarding|permitopen|logingracetime|clientaliveinterval|usedns|match|port)[[:space:]=]'
if [ -n "$out" ]; then printf '@effective\n'; printf '%s\n' "$out" | grep -iE "$only"; exit 0; fi
[ -r /etc/ssh/sshd_config ] || exit 0
printf '@files\n'
while IFS= read -r line || [ -n "$line" ]; do
  set -f; set -- $line; set +f
  case $1 in
    [Ii][Nn][Cc][Ll][Uu][Dd][Ee])
      shift
      for pattern in "$@"; do
        case $pattern in /*) ;; *) pattern=/etc/ssh/$pattern ;; esac
        for file in $pattern; do
          [ -r "$file" ] || continue
          grep -iE "$only" "$file"; ! grep -qiE '^[[:space:]]*match[[:space:]]' "$file" || echo 'Match all'
        done
      done ;;
    *) printf '%s\n' "$line" | grep -iE "$only" ;;
  esac
done </etc/ssh/sshd_config
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> SshServer | None:
        return server(evidence.stdout)
