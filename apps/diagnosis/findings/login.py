"""What sshd and the login allow: forwarding, channels, limits, time."""

from __future__ import annotations

from collections.abc import Iterator

from apps.diagnosis.findings.finding import GIB, Finding, gib, listed, seen
from apps.diagnosis.findings.table import NOTE
from apps.facts.sheet import Sheet

SESSIONS = 4  # channels of one connection that a launch keeps busy at the same time
STARTUPS = 5  # workers that may knock at the same moment
OPEN_FILES = 4096
LOCKED_BYTES = 1 * GIB  # RDMA locks its buffers


def of_node(sheet: Sheet, *, runtime: str | None) -> Iterator[Finding]:
    """`runtime`: what a deployment would use, None when none is asked for."""
    yield from ssh(sheet)
    yield from time_service(sheet)
    if runtime == "process":
        yield from limits(sheet)


def ssh(sheet: Sheet) -> Iterator[Finding]:
    server = sheet.ssh_server
    if server is None:
        return
    asked = f"{server.source or 'sshd'}: "
    if server.tcp_forwarding in ("no", "remote") or server.permit_open == "none":
        closed = server.tcp_forwarding in ("no", "remote")
        yield seen(
            "ssh_forwarding_off",
            sheet,
            f"sshd of {sheet.node} does not forward TCP",
            severity=NOTE if server.conditional else "",
            evidence=asked + (f"AllowTcpForwarding {server.tcp_forwarding}" if closed else "PermitOpen none"),
            section="sshd",
            tcp_forwarding=server.tcp_forwarding,
            permit_open=server.permit_open,
        )
    few = []
    if server.max_sessions is not None and server.max_sessions < SESSIONS:
        few.append(f"MaxSessions {server.max_sessions}")
    if server.startups_begin is not None and server.startups_begin < STARTUPS:
        few.append(f"MaxStartups {server.startups_begin}")
    if few:
        yield seen(
            "ssh_limits_low",
            sheet,
            f"sshd of {sheet.node} allows little at a time: {listed(few)}",
            evidence=asked + ", ".join(few),
            section="sshd",
            max_sessions=server.max_sessions,
            startups_begin=server.startups_begin,
        )


def time_service(sheet: Sheet) -> Iterator[Finding]:
    """A clock that nothing keeps right. In a container it is the host's."""
    known = sheet.time_sync
    if known is not None and known.synchronized is False and not known.service:
        yield seen(
            "clock_unsynchronized",
            sheet,
            f"Nothing keeps the clock of {sheet.node} right",
            evidence=f"synchronized: no, service: {'on' if known.ntp else 'off' if known.ntp is False else 'unknown'}",
            section="time",
            ntp=known.ntp,
        )


def limits(sheet: Sheet) -> Iterator[Finding]:
    """Of a plain process; containers are given their own."""
    rights = sheet.privileges
    low = []
    if rights is None:
        return
    if rights.open_files is not None and 0 <= rights.open_files < OPEN_FILES:
        low.append(f"{rights.open_files} open files")
    locked, rdma = rights.memlock_bytes, any(port.active for port in sheet.fabric or ())
    if locked is not None and 0 <= locked < LOCKED_BYTES and rdma:
        low.append(f"{gib(locked)} of locked memory")
    if low:
        user = (sheet.machine.user if sheet.machine else None) or "USER"
        yield seen(
            "limits_low",
            sheet,
            f"{user} on {sheet.node} may have {listed(low)}",
            remedy=f"In /etc/security/limits.d: `{user} - nofile 65536` and `{user} - memlock unlimited`; log in again.",
            section="privileges",
            open_files=rights.open_files,
            memlock_bytes=rights.memlock_bytes,
        )
