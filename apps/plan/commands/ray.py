"""ray start on the fabric, and the question who is in the cluster."""

from __future__ import annotations

from apps.shell import Command

PORT = 6379
OBJECT_STORE_BYTES = 1 << 30  # the default takes 30 % of the memory that the model needs
ADDRESSES = "--- addresses"  # what the gate looks for between the two answers

# `ray status` does not name addresses, and `ray list nodes` needs the dashboard, which is off. One line of JSON.
NODES_PROGRAM = (
    "import json, ray; "
    "ray.init(address='auto', log_to_driver=False, logging_level='ERROR'); "
    "print(json.dumps([{'address': n['NodeManagerAddress'], 'alive': n['Alive'], 'gpus': n['Resources'].get('GPU', 0)} "
    "for n in ray.nodes()]))"
)


def head(address: str, *, gpus: int, port: int = PORT) -> Command:
    return Command.of(
        "ray",
        "start",
        "--head",
        "--block",
        f"--node-ip-address={address}",
        f"--port={port}",
        f"--num-gpus={gpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--include-dashboard=false",
    )


def worker(address: str, head_address: str, *, gpus: int, port: int = PORT) -> Command:
    return Command.of(
        "ray",
        "start",
        "--block",
        f"--address={head_address}:{port}",
        f"--node-ip-address={address}",
        f"--num-gpus={gpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    )


def status() -> Command:
    return Command.of("ray", "status")


def nodes() -> Command:
    return Command.of("python3", "-c", NODES_PROGRAM)
