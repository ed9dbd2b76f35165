"""What this login may do, and the traps of a login: RemoveIPC, linger, limits."""

from __future__ import annotations

import re

from apps.facts.fact import Fact, fact
from apps.facts.machine import rows
from apps.facts.sheet import Evidence
from apps.facts.values import Privileges

_PASSWORD = re.compile(
    r"a password is required|a terminal is required|no tty present|password is required", re.IGNORECASE
)
_NOT_ALLOWED = re.compile(
    r"is not in the sudoers file|may not run sudo|not allowed to (?:execute|run)|unknown user", re.IGNORECASE
)


def sudo_scope(text: str, errors: str) -> str | None:
    """all (NOPASSWD: ALL), some (a list), password (sudo exists but asks), none (not there, or not allowed)."""
    text = "\n".join(line for line in text.splitlines() if len(line) < 2000)
    if re.search(r"\([^()\n]*\)\s+NOPASSWD:\s*(?:\w+:\s*)*ALL\s*$", text, re.MULTILINE) or re.search(
        r"^root$", text, re.MULTILINE
    ):
        return "all"
    if "NOPASSWD:" in text:
        return "some"
    if _NOT_ALLOWED.search(text + errors) or re.search(r"sudo['\"]?: (?:command )?not found", text + errors):
        return "none"
    return "password" if _PASSWORD.search(text + errors) or re.search(r"may run the following commands", text) else None


@fact
class PrivilegesFact(Fact):
    """Sudo without a password, docker group, linger, RemoveIPC, limits."""

    name = "privileges"
    reads = "sudo -n -l; id -Gn; loginctl; /var/lib/systemd/linger; busctl; ulimit, as `key<TAB>value` lines"
    timeout_s = 8
    script = r"""
row() { printf '%s\t%s\n' "$1" "$2"; }
row uid "$(id -u)"
row groups "$(id -Gn)"
[ "$(id -u)" = 0 ] && echo root
sudo -n -l 2>&1 | sed 's/^/sudo	/'
row linger "$(loginctl show-user "$(id -un)" -p Linger --value 2>/dev/null)"
row remove_ipc "$(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC 2>/dev/null)"
for path in /var/lib/systemd/linger/*; do [ ! -e "$path" ] || row lingering "${path##*/}"; done
row memlock_kib "$(ulimit -l 2>/dev/null)"
row open_files "$(ulimit -n 2>/dev/null)"
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> Privileges | None:
        found = rows(evidence.stdout)
        if "uid" not in found and "sudo" not in found and "(" not in evidence.stdout:
            return None
        listing = "\n".join(found.get("sudo", [])) or evidence.stdout
        root = found.get("uid") == ["0"]
        groups = " ".join(found.get("groups", []))
        memlock, files = "".join(found.get("memlock_kib", [])), "".join(found.get("open_files", []))
        scope = "all" if root else sudo_scope(listing, evidence.stderr)
        drops = scope == "all" or bool(re.search(r"NOPASSWD:.*(?:drop_caches|sysctl|/usr/bin/tee|/bin/tee)", listing))
        return Privileges(
            sudo=scope,
            docker_group=("docker" in groups.split()) if groups else None,
            linger={"yes": True, "no": False}.get("".join(found.get("linger", []))),
            lingering=tuple(found.get("lingering", [])),
            remove_ipc={"b true": True, "b false": False}.get("".join(found.get("remove_ipc", []))),
            drop_caches=drops if scope is not None else None,
            memlock_bytes=-1 if memlock == "unlimited" else (int(memlock[:15]) * 1024 if memlock.isdecimal() else None),
            open_files=-1 if files == "unlimited" else (int(files[:15]) if files.isdecimal() else None),
        )
