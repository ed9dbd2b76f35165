"""Host keys before anybody trusts them: which ones a door shows, and a test of a door step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paramiko.ssh_exception import IncompatiblePeer

from apps.remote import hops
from apps.remote.ssh import ParamikoTransport, connect, fingerprint, handshake
from apps.remote.transport import Endpoint, HostKeyFound, RemoteError
from apps.remote.wire import ECDSA, ED25519, RSA_SIGNATURES, Limits

__all__ = ["Checked", "check", "fingerprint", "scan"]

_KINDS: tuple[tuple[str, ...], ...] = ((ED25519,), ECDSA, RSA_SIGNATURES)


def scan(endpoints: Endpoint | Sequence[Endpoint], *, limits: Limits | None = None) -> list[HostKeyFound]:
    """The host keys that the last endpoint shows: ed25519, ECDSA and RSA, a handshake each, nobody is authenticated
    there.

    Its `private_key` may be empty. The way there is its `via`, or the endpoints before it in the sequence (outermost
    first), all of which must have their keys pinned. Raises RemoteError when no key at all could be had, ValueError
    for an empty sequence.
    """
    limits = limits or Limits()
    last = _joined(endpoints)
    parent = _parent_of(last, limits)
    try:
        found: list[HostKeyFound] = []
        for algorithms in _KINDS:
            try:
                wire = handshake(last, parent, limits=limits, algorithms=algorithms, step=lambda name: None)
            except IncompatiblePeer:
                continue
            key = wire.get_remote_server_key()
            wire.close()
            text = key.get_base64()
            found.append(HostKeyFound(last.name, key.get_name(), text, fingerprint(text)))
        return found
    finally:
        if parent is not None:
            parent.close()


@dataclass(frozen=True)
class Checked:
    """One step of the test of a door: jump, dns, tcp, host_key, auth, shell. `reason` and `evidence` when it is not
    ok.
    """

    step: str
    ok: bool
    reason: str | None = None
    evidence: str = ""


def check(endpoint: Endpoint, *, limits: Limits | None = None) -> list[Checked]:
    """Go through the door step by step; the list ends with the first step that failed. Raises nothing of
    RemoteError.
    """
    steps: list[str] = []
    try:
        with connect(endpoint, limits=limits, step=steps.append) as transport:
            steps.append("shell")
            result = transport.run("echo here", timeout_s=20.0)
            if result.exit_code != 0 or result.stdout.strip() != b"here":
                said = (result.stdout + result.stderr)[:500].decode(errors="replace")
                return [
                    *_fine(steps[:-1]),
                    Checked("shell", False, "ssh_auth", f"exit code {result.exit_code}: {said}"),
                ]
    except RemoteError as error:
        return [*_fine(steps[:-1]), Checked(steps[-1], False, error.reason, f"{error.hop}: {error.evidence}")]
    return _fine(steps)


def _fine(steps: list[str]) -> list[Checked]:
    return [Checked(name, True) for name in steps]


def _joined(endpoints: Endpoint | Sequence[Endpoint]) -> Endpoint:
    if isinstance(endpoints, Endpoint):
        return endpoints
    if not endpoints:
        raise ValueError("a scan needs at least one endpoint")
    way = endpoints[0]
    for endpoint in endpoints[1:]:
        way = replace(endpoint, via=way)
    return way


def _parent_of(endpoint: Endpoint, limits: Limits) -> ParamikoTransport | None:
    if endpoint.via is None:
        return None
    try:
        return connect(endpoint.via, limits=limits)
    except RemoteError as error:
        raise hops.jump_failure(error) from error
