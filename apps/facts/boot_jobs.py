"""What cron and rc.local start at every boot, past systemd's units."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from apps.facts.commands import in_script
from apps.facts.fact import Fact, fact
from apps.facts.masking import masked
from apps.facts.sheet import Evidence
from apps.facts.values import BootJob, Launcher

_JOB = re.compile(r"^[ \t]*@reboot[ \t]+(\S.*)$")
MOST = 64


def jobs(text: str) -> tuple[BootJob, ...]:
    """`@crontab USER` with the lines of a user's own table, `@file PATH` with those of a system table (a user stands before
    each command there) or of rc.local (every line is a command)."""
    found: list[BootJob] = []
    where, own, plain = "crontab", True, False
    user: str | None = None
    for line in text.splitlines():
        if line.startswith("@crontab "):
            where, own, plain, user = "crontab", True, False, line[9:].strip() or None
        elif line.startswith("@file "):
            where, own, user = line[6:].strip(), False, None
            plain = where.endswith("rc.local")
        elif plain and line.strip() and not line.lstrip().startswith("#"):
            found.append(_job(where, "root", line.strip()))
        elif row := _JOB.match(line):
            before, _, command = row.group(1).partition(" ")
            found.append(_job(where, user, row.group(1)) if own else _job(where, before, command.strip()))
    return tuple(each for each in found if each.command)[:MOST]


def _job(where: str, user: str | None, command: str) -> BootJob:
    command = masked(command)[:2000]
    return BootJob(where=where, user=user, command=command, starts=in_script(command + "\n"))


def joined(found: Iterable[BootJob], launchers: Iterable[Launcher]) -> tuple[BootJob, ...]:
    """With what the scripts start that a command names by their whole path."""
    scripts = {each.path: each.starts for each in launchers}
    return tuple(
        replace(
            job,
            starts=job.starts
            or next((scripts[word] for word in re.split(r"[\s;&|]+", job.command) if word in scripts), ()),
        )
        for job in found
    )


@fact
class BootJobsFact(Fact):
    """`@reboot` lines of cron, of this login and of the system, and the lines of rc.local."""

    name = "boot-jobs"
    reads = "crontab -l, /etc/crontab, /etc/cron.d/*: the lines with @reboot; /etc/rc.local"
    timeout_s = 5
    script = r"""
{
  printf '@crontab %s\n' "$(id -un)"
  crontab -l 2>/dev/null | grep '^[[:space:]]*@reboot'
  for file in /etc/crontab /etc/cron.d/*; do
    [ -r "$file" ] && grep -q '^[[:space:]]*@reboot' "$file" || continue
    printf '@file %s\n' "$file"; grep '^[[:space:]]*@reboot' "$file"
  done
  if [ -x /etc/rc.local ] && [ -r /etc/rc.local ]; then
    echo '@file /etc/rc.local'; head -c 16384 /etc/rc.local | grep -vE '^[[:space:]]*(#|exit([[:space:]]|$)|$)'
  fi
} | tr -d '\000' | sed -e "$SPARKWEB_MASK"
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[BootJob, ...] | None:
        found = jobs(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None
