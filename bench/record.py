"""`python -m bench.record`: records the answer that bench/replay.py replays anew, from a pretend Spark of the lab."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from apps.facts import probe
from apps.lab import Lab
from bench.measure import say
from bench.replay import ANSWER, NONCE
from tests.openssh import make_key

NODE, USER = "spark-1a32", "aurora"  # the head node of the lab's start scene: three containers run there


def main() -> int:
    nonce = NONCE.decode()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        key = Path(folder) / "key"
        make_key(key)
        options = [
            "-F",
            "none",
            "-q",
            "-i",
            str(key),
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ]
        with Lab.start(Path(folder) / "lab") as lab:
            lab.authorize(key.with_suffix(".pub").read_text().strip())
            words = ["ssh", *options, "-p", str(lab.nodes[NODE].port), f"{USER}@127.0.0.1", "/bin/sh -s"]
            script = probe.script(probe.PROBE, nonce=nonce).encode()
            done = subprocess.run(words, input=script, capture_output=True, check=True, timeout=120)
    missing = set(probe.PROBE) - set(probe.read(nonce, done.stdout))
    if missing:
        say(f"not recorded: the answer lacks {', '.join(sorted(missing))}")
        return 1
    ANSWER.write_bytes(done.stdout)
    say(f"recorded {len(done.stdout)} bytes, {len(probe.PROBE)} sections")
    return 0


if __name__ == "__main__":
    sys.exit(main())
