"""Forwards connections of an inherited listening socket to an address: `real_nodes_door.py DESCRIPTOR ADDRESS PORT`.

A socket belongs to the network namespace that it was made in. So one process can listen on this machine's loopback and
connect inside the nodes' namespace, and nothing else needs to be open between the two.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading

CONNECT_WITHIN_S = 5.0


def forward(source: socket.socket, target: socket.socket) -> None:
    """Bytes of one direction, until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)


def serve(caller: socket.socket, address: str, port: int) -> None:
    with caller:
        try:
            called = socket.create_connection((address, port), timeout=CONNECT_WITHIN_S)
        except OSError:
            return
        with called:
            called.settimeout(None)
            back = threading.Thread(target=forward, args=(called, caller), daemon=True)
            back.start()
            forward(caller, called)
            back.join()


def main(descriptor: str, address: str, port: str) -> None:
    listener = socket.socket(fileno=int(descriptor))
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=serve, args=(caller, address, int(port)), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:4])
