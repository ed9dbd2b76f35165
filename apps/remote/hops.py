"""How one gets to a door: names, TCP, direct-tcpip through the node before, each with its own limit and reason.

Endpoints are chained by `via` to any depth. Whoever opens a chain owns all of it and closes the inner connection
first, because closing a jump host's connection kills what runs through it.
"""

from __future__ import annotations

import errno
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from apps.remote.transport import CannotReach, Endpoint, RemoteError
from apps.remote.wire import ChannelLate, ChannelRefused, Led, Limits, spoken

if TYPE_CHECKING:
    from apps.remote.ssh import ParamikoTransport

PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED, RFC 4254 section 5.1

_NO_ROUTE = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
    errno.EACCES,
    errno.EPERM,
}

# What sshd's say (strerror and gai_strerror texts, in lower case) when the target of a forwarding can't be reached.
_WORDS = (
    ("no route to host", "no_route"),
    ("network is unreachable", "no_route"),
    ("host is down", "no_route"),
    ("host is unreachable", "no_route"),
    ("connection refused", "ssh_refused"),
    ("timed out", "ssh_timeout"),
    ("name or service not known", "dns"),
    ("name resolution", "dns"),
    ("no address associated", "dns"),
    ("unknown host", "dns"),
    ("nodename nor servname", "dns"),
)


def chain(endpoint: Endpoint) -> list[Endpoint]:
    """The endpoints in the order they are passed, outermost first.

    Raises ValueError for a chain that is deeper than 16, which only a mistake makes.
    """
    hops = [endpoint]
    while (before := hops[0].via) is not None:
        hops.insert(0, before)
        if len(hops) > 16:
            raise ValueError(f"{endpoint.name}: more than 16 jump hosts in a row")
    return hops


def resolve(endpoint: Endpoint, *, limits: Limits) -> list[tuple[Any, ...]]:
    """Addresses of the endpoint as `getaddrinfo` gives them. Raises CannotReach(dns).

    The C library's resolver has no time limit that we could set, so it gets a thread that may be left behind.
    """
    answers: queue.Queue[list[tuple[Any, ...]] | str] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(list(socket.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM)))
        except UnicodeError:
            answers.put(f"{endpoint.address}: not a valid host name")
        except (OSError, ValueError, OverflowError) as error:
            answers.put(f"{endpoint.address}: {spoken(error)}")

    threading.Thread(target=ask, name=f"resolve {endpoint.name}", daemon=True).start()
    try:
        answer = answers.get(timeout=limits.name_s)
    except queue.Empty:
        answer = f"{endpoint.address}: no answer from the resolver within {limits.name_s:g} s"
    if isinstance(answer, str):
        raise CannotReach("dns", hop=endpoint.name, evidence=answer)
    return answer


def dial(endpoint: Endpoint, addresses: list[tuple[Any, ...]], *, limits: Limits) -> socket.socket:
    """A connected TCP socket to the first address that answers, within `limits.tcp_s` for all of them.

    Raises CannotReach(ssh_refused, no_route, ssh_timeout); when all addresses fail, the first failure is told.
    """
    deadline = time.monotonic() + limits.tcp_s
    first: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            sock.connect(address)
        except OSError as error:
            sock.close()
            first = first or error
            continue
        _watch_over(sock)
        return sock
    failure = first or OSError("no address")
    evidence = f"{endpoint.address} port {endpoint.port}: {spoken(failure)}"
    raise CannotReach(_tcp_reason(failure), hop=endpoint.name, evidence=evidence)


def through(parent: ParamikoTransport, endpoint: Endpoint, *, limits: Limits) -> Any:
    """A direct-tcpip channel to the endpoint as the parent sees it.

    Raises CannotReach: jump_refused or jump_unreachable at the parent's door, no_route, ssh_refused, ssh_timeout or
    dns at the endpoint's when the parent names the cause.
    """
    where = f"{endpoint.address} port {endpoint.port} through {parent.name}"
    try:
        return Led(parent.open_direct(endpoint.address, endpoint.port, timeout_s=limits.channel_s))
    except ChannelRefused as refusal:
        reason = refusal_reason(refusal)
        hop = parent.name if reason == "jump_refused" else endpoint.name
        raise CannotReach(reason, hop=hop, evidence=f"{where}: {refusal.text}") from None
    except ChannelLate:
        evidence = f"{where}: no answer within {limits.channel_s:g} s"
        raise CannotReach("ssh_timeout", hop=endpoint.name, evidence=evidence) from None
    except RemoteError as error:
        raise jump_failure(error) from error


def refusal_reason(refusal: ChannelRefused) -> str:
    """The reason that a refused forwarding stands for; `jump_refused` when it is about the jump host itself."""
    if refusal.code == PROHIBITED:
        return "jump_refused"
    said = refusal.text.lower()
    return next((reason for words, reason in _WORDS if words in said), "jump_refused")


def jump_failure(error: RemoteError) -> RemoteError:
    """What a failure at a jump host means for the node behind it. Wrong keys stay what they are: they are never
    retried.
    """
    if error.reason in ("ssh_auth", "host_key_unknown", "host_key_changed", "jump_unreachable", "jump_refused"):
        return error
    return CannotReach("jump_unreachable", hop=error.hop, evidence=f"{error.reason}: {error.evidence}")


def _tcp_reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "ssh_timeout"
    return "no_route" if error.errno in _NO_ROUTE else "ssh_refused"


def _watch_over(sock: socket.socket) -> None:
    """Let the kernel notice a dead path: unacknowledged data for 30 s, or 3 keepalives unanswered."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_USER_TIMEOUT", 30_000), ("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)  # Linux names; other systems keep their own defaults
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
