"""A program in the node's python3 reaches what listens on its node, and nothing else."""

from __future__ import annotations

from tests.lab.visit import Visit

PROGRAM = """
import asyncio, sys
async def ask(port):
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as problem:
        return type(problem).__name__
    writer.write(b"GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    return (await reader.read(-1)).decode().split("\\r\\n")[0]
for port in sys.argv[1:]:
    print(port, asyncio.run(ask(int(port))))
"""


def test_what_listens_answers_and_the_rest_is_refused(look: Visit) -> None:
    done = look.run(f"python3 -u - 8000 1 22 <<'END'\n{PROGRAM}\nEND")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [
        "8000 HTTP/1.1 200 OK",
        "1 ConnectionRefusedError",
        "22 ConnectionRefusedError",
    ]
