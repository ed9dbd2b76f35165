"""SSH servers that answer every probe with a recorded one, in a process of their own: their work is not in our figures.

    python -m bench.replay COUNT [HANGING [RECORDING]]     public key on standard input, one line

The last HANGING servers let one in and then never answer. RECORDING: a file in place of the recorded probe.

prints one JSON line {"ports": [...], "host_key": [type, base64]} and serves until its input ends. Every node has a port
of its own on 127.0.0.1; all show one host key, which changes nothing for a client that pins keys by node.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncssh

ANSWER = Path(__file__).resolve().parent / "recorded" / "spark.txt"
NONCE = b"recorded0nonce0recorded0"  # in the recording

_NONCE = re.compile(rb"^nonce=([A-Za-z0-9]{8,64})$", re.MULTILINE)
_MARKER = re.compile(rb"printf %s ([0-9a-f]{16,64});")


class _Server(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True


def answered(script: bytes, recorded: bytes) -> tuple[bytes, bytes]:
    """Both outputs for what was sent to `sh -s`: the marker of the transport, then the recording under the nonce that
    the script asks for; no recording when the script is no probe.
    """
    marker, nonce = _MARKER.search(script), _NONCE.search(script)
    mark = marker[1] if marker else b""
    return mark + (recorded.replace(NONCE, nonce[1]) if nonce else b""), mark


def _session(recorded: bytes) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def serve(process: Any) -> None:
        stdout, stderr = answered(await process.stdin.read(), recorded)
        process.stdout.write(stdout)
        process.stderr.write(stderr)
        await process.stdout.drain()
        process.exit(0)

    return serve


async def _never(process: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def serve(count: int, public_key: str, hanging: int = 0, recording: Path = ANSWER) -> None:
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    session = _session(recording.read_bytes())
    servers = [
        await asyncssh.create_server(
            _Server,
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(public_key),
            process_factory=session if number < count - hanging else _never,
            encoding=None,
            sftp_factory=None,
            gss_host=None,
        )
        for number in range(count)
    ]
    key = host_key.export_public_key().decode().split()[:2]
    print(json.dumps({"ports": [each.get_port() for each in servers], "host_key": key}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for each in servers:
        each.close()


if __name__ == "__main__":
    numbers, files = [int(word) for word in sys.argv[1:3]], [Path(word) for word in sys.argv[3:4]]
    asyncio.run(serve(numbers[0], sys.stdin.readline(), *numbers[1:], *files))
