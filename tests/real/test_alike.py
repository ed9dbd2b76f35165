"""The same questions to a pretend Spark and to a real node: where the shapes of the answers differ, the pretence is wrong."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.facts import probe
from apps.lab import Lab
from scripts.real_nodes import ENGINE_IMAGE, Nodes
from tests.lab.visit import Visit

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
NONCE = "a1b2c3d4e5f6a7b8"


class Pair:
    """Asks both as the user that the product logs in as."""

    def __init__(self, nodes: Nodes, visit: Visit, key: Path) -> None:
        self.nodes, self.visit, self.key = nodes, visit, key
        self.images = {"real": ENGINE_IMAGE, "pretend": "vllm-node:latest"}

    def ask(self, which: str, script: str) -> subprocess.CompletedProcess[str]:
        script = script.replace("IMAGE", self.images[which])
        if which == "pretend":
            return self.visit.run(script, timeout_s=120)
        words = ["ssh", *self.visit.options(), "-p", str(self.nodes.port), "spark@127.0.0.1", "/bin/sh -s"]
        return subprocess.run(words, input=script, capture_output=True, text=True, timeout=120)

    def both(self, script: str) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
        return self.ask("real", script), self.ask("pretend", script)


@pytest.fixture(scope="module")
def pair(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("alike")
    key = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    public = key.with_suffix(".pub").read_text()
    nodes.authorize(public)
    with Lab.start(folder / "lab", factor=150, timeout_s=120) as lab:
        lab.authorize(public)
        made = Pair(nodes, Visit(lab, key), key)
        yield made
        made.ask("real", GONE)


GONE = "docker rm -f alike >/dev/null 2>&1"
START = "docker run -d --name alike --network host IMAGE sleep 300 >/dev/null"
# name: (question, how its answer is brought into a shape)
QUESTIONS = {
    "docker run prints an id": ("docker run -d --name alike IMAGE sleep 300", "id"),
    "docker run of a name that is taken": (f"{START}; {START}", "error"),
    "docker run of an image that is not there": ("docker run -d no/such:image true", "code"),
    "docker ps, a row": (f"{START}; docker ps -a --filter name=alike --format '{{{{json .}}}}'", "keys"),
    "docker inspect of a container": (f"{START}; docker inspect alike", "keys"),
    "docker inspect, state": (
        f"{START}; docker inspect --format '{{{{.State.Status}}}} {{{{.State.ExitCode}}}}' alike",
        "text",
    ),
    "docker inspect of nothing": ("docker inspect --type container no-such", "error"),
    "docker exec in nothing": ("docker exec no-such true", "error"),
    "docker stop": (f"{START}; docker stop -t 1 alike; docker inspect --format '{{{{.State.Status}}}}' alike", "text"),
    "docker rm of a running one": (f"{START}; docker rm alike", "code"),
    "docker rm of nothing": ("docker rm no-such", "error"),
    "docker rm -f of nothing": ("docker rm -f no-such", "code"),
    "docker logs of nothing": ("docker logs no-such", "error"),
    "docker version": ("docker version --format '{{json .}}'", "keys"),
    "docker image": ("docker image inspect IMAGE", "keys"),
    "systemctl is-active of nothing": ("systemctl is-active no-such.service", "text"),
    "systemctl is-active": ("systemctl is-active docker.service", "text"),
    "systemctl is-enabled": ("systemctl is-enabled docker.service", "text"),
    "systemctl is-enabled of nothing": ("systemctl is-enabled no-such.service", "code"),
    "systemctl show": ("systemctl show docker.service -p Id,ActiveState,SubState,LoadState,MainPID", "names"),
    "systemctl show of nothing": ("systemctl show no-such.service -p LoadState,ActiveState", "text"),
    "systemctl stop of nothing": ("sudo -n systemctl stop no-such.service", "error"),
    "sudo": ("sudo -n true", "code"),
    "ray without a cluster": (f"{START}; docker exec alike ray status", "code"),
    "a program that is not there": ("no-such-program", "code"),
}


# The pretend Sparks have Docker 29, the real nodes Debian's 20.10: what the newer one says otherwise.
NEWER_KEYS = {"HealthStatus", "Platform", "Variant"}
NEWER_WORDS = {"Error response from daemon: No such container: no-such": "Error: No such container: no-such"}


def shaped(done: subprocess.CompletedProcess[str], how: str) -> object:
    text = done.stdout.strip()
    if how == "keys":
        value = json.loads(text)
        value = value[0] if isinstance(value, list) else value
        return done.returncode, sorted(value)
    if how == "id":
        return done.returncode, bool(re.fullmatch(r"[0-9a-f]{64}", text))
    if how == "names":
        return done.returncode, [line.partition("=")[0] for line in text.splitlines()]
    if how == "error":
        said = re.sub(r"[0-9a-f]{64}", "ID", done.stderr.strip().splitlines()[0] if done.stderr.strip() else "")
        return done.returncode, NEWER_WORDS.get(said, said)
    return (done.returncode, text) if how == "text" else done.returncode


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_have_the_same_shape(pair: Pair, name: str) -> None:
    question, how = QUESTIONS[name]
    real, pretend = pair.both(f"{GONE}\n{question}")
    wanted, got = shaped(real, how), shaped(pretend, how)
    if how == "keys":  # the pretence may say less than Docker, but nothing that Docker does not say
        assert wanted[0] == got[0] and set(got[1]) - NEWER_KEYS <= set(wanted[1]), (got, wanted)
        return
    assert got == wanted, (real.stderr, pretend.stderr)


def test_the_same_probe_answers_the_same_questions(pair: Pair) -> None:
    script = probe.script(probe.PROBE, nonce=NONCE)
    sheets = [probe.sheet_from("x", 0.0, probe.read(NONCE, done.stdout.encode())) for done in pair.both(script)]
    real, pretend = sheets
    assert set(real.evidence) == set(pretend.evidence)
    codes = {name: (real.evidence[name].exit_code, pretend.evidence[name].exit_code) for name in real.evidence}
    differ = {name: pair for name, pair in codes.items() if pair[0] != pair[1]}
    assert differ == {}, differ
    known = [{name for name, value in vars(sheet).items() if value is not None} for sheet in sheets]
    # Whether there is a way out is not a matter of shape; the kernel's log of a container is its host's, closed to this login.
    assert known[0] - known[1] <= {"internet"}
    assert known[1] - known[0] <= {"internet", "killed", "gpu_errors"}
