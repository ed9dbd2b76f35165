"""Launch scripts and checkouts: by hand-made kinds of them, and in a home of this machine with a real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from apps.facts import boot_jobs, probe
from apps.facts.commands import in_script
from apps.facts.values import Checkout, Launcher, Starts

NONCE = "n0nce4thelaunchers"

CLUSTER = """#!/bin/bash
IMAGE=vllm-node
MODEL="Qwen/Qwen3.5-122B-A10B-FP8"
PORT=${PORT:-30000}
docker run -d --rm --gpus all --network host --ipc=host -v ~/.cache:/root/.cache -e HF_TOKEN=$HF_TOKEN \\
  --name vllm_node $IMAGE bash -c "ray start --head && vllm serve $MODEL --port $PORT -tp 2"
ssh spark-2 "docker run -d --name worker $IMAGE ray start --address=192.168.200.12:6379 --block"
"""
COMPOSE = """services:
  chat:
    image: vllm/vllm-openai:v0.17.0
    container_name: qwen
    ports: ["9000:8000"]
    command: >
      --model Qwen/Qwen3-8B
      --tensor-parallel-size 2
  embed:
    image: lmsysorg/sglang:latest
    ports:
      - "30001:30000"
    command: python3 -m sglang.launch_server --model-path /m --port 30000
  gguf:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: ["-m", "/models/a.gguf", "--port", "8080"]
  listed:
    image: ${IMAGE:-nvcr.io/nvidia/vllm:25.11-py3}
    command:
      - vllm
      - serve
      - a/b
      - --port
      - "8001"
  cache:
    image: ollama/ollama
  database:
    image: postgres:17
volumes:
  data:
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CLUSTER,
            (
                Starts("vllm", "Qwen/Qwen3.5-122B-A10B-FP8", None, 30000, 2, "vllm-node", "vllm_node"),
                Starts("ray", image="vllm-node", container="worker"),
            ),
        ),
        (
            COMPOSE,
            (
                Starts("vllm", "Qwen/Qwen3-8B", None, None, 2, "vllm/vllm-openai:v0.17.0", "qwen"),
                Starts("sglang", "/m", None, 30001, None, "lmsysorg/sglang:latest", "embed"),
                Starts("llama.cpp", "/models/a.gguf", None, 8080, None, "ghcr.io/ggml-org/llama.cpp:server-cuda", "gguf"),
                Starts("vllm", "a/b", None, 8001, None, "nvcr.io/nvidia/vllm:25.11-py3", "listed"),
                Starts("ollama", image="ollama/ollama", container="cache"),
            ),
        ),
        (
            "docker run -it -p 9001:8000 vllm/vllm-openai openai/gpt-oss-120b --tensor-parallel-size ${TP:-1}\n",
            (Starts("vllm", "openai/gpt-oss-120b", None, 9001, 1, "vllm/vllm-openai"),),
        ),
        (
            "docker run --entrypoint python3 img -m sglang.launch_server --model-path /m --tp 2\n",
            (Starts("sglang", "/m", None, None, 2, "img"),),
        ),
        (
            "./launch-cluster.sh -t vllm-node --solo exec vllm serve /m --port 8000\n",
            (Starts("vllm", "/m", None, 8000, None, "vllm-node"),),
        ),
        ("docker exec -d vllm_node vllm serve a/b\n", (Starts("vllm", "a/b", container="vllm_node"),)),
        ("sudo nohup vllm serve a/b --port 8000 > log 2>&1 &\n", (Starts("vllm", "a/b", None, 8000),)),
        ("if true; then vllm serve a/b; fi\n", (Starts("vllm", "a/b"),)),
        ("vllm serve $(cat model) --port `cat port`\n", (Starts("vllm"),)),
        ("# vllm serve a/b\necho vllm serve a/b\n", ()),
        ("docker stop vllm_node\ndocker run 'unfinished\n", (Starts(image="unfinished"),)),
        ("services:\n", ()),
        ("docker run -d --name vllm_node vllm-node sleep infinity\n", (Starts("vllm", image="vllm-node", container="vllm_node"),)),
    ],
)  # fmt: skip
def test_what_a_file_starts(text: str, expected: tuple[Starts, ...]) -> None:
    assert in_script(text) == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_a_home_with_a_checkout_and_scripts(tmp_path: Path) -> None:
    kit = tmp_path / "spark-vllm-docker"
    kit.mkdir()

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(kit), "-c", "user.name=a", "-c", "user.email=a@b", *words],
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()

    git("init", "-q", "-b", "main")
    git("remote", "add", "origin", "https://bob:t0ken@github.com/eugr/spark-vllm-docker.git")
    (kit / "run.sh").write_text("./launch-cluster.sh -t vllm-node exec vllm serve a/b --api-key s3cr3tvalue\n")
    git("add", ".")
    git("commit", "-q", "-m", "Serve a model")
    with (kit / "run.sh").open("a") as script:
        script.write("# changed by hand\n")
    stack = tmp_path / "my stack"
    stack.mkdir()
    (stack / "docker-compose.yml").write_text(COMPOSE)
    (tmp_path / "backup.sh").write_text("#!/bin/sh\ntar c . | gzip >x\n")
    for hidden in (".cache/kit", "deep/1/2/3/4"):
        (tmp_path / hidden).mkdir(parents=True)
        (tmp_path / hidden / "run.sh").write_text("vllm serve hidden/model\n")
    (tmp_path / "notes/.git").mkdir(parents=True)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    hook.chmod(0o755)
    git("config", "core.fsmonitor", str(hook))
    before = (kit / ".git/index").stat().st_mtime_ns

    text = probe.script(["launchers"], nonce=NONCE)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60, env=env)
    sheet = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout))

    assert b"s3cr3t" not in done.stdout and b"t0ken" not in done.stdout
    (found,) = [one for one in sheet.checkouts or () if one.path.startswith(str(tmp_path))]
    assert found == Checkout(
        str(kit),
        "https://bob:***@github.com/eugr/spark-vllm-docker.git",
        "main",
        git("rev-parse", "HEAD"),
        git("log", "-1", "--format=%cI"),
        "Serve a model",
        1,
    )
    scripts = {one.path: one for one in sheet.launchers or () if one.path.startswith(str(tmp_path))}
    assert set(scripts) == {str(kit / "run.sh"), str(stack / "docker-compose.yml")}
    assert scripts[str(kit / "run.sh")] == Launcher(
        str(kit / "run.sh"), (Starts("vllm", "a/b", image="vllm-node"),), str(kit)
    )
    assert len(scripts[str(stack / "docker-compose.yml")].starts) == 5
    assert not (tmp_path / "was-run").exists() and (kit / ".git/index").stat().st_mtime_ns == before


def test_without_git_the_files_of_the_checkout_tell(tmp_path: Path) -> None:
    kit = tmp_path / "dgx-spark-playbooks/.git"
    (kit / "refs/heads").mkdir(parents=True)
    (kit / "HEAD").write_text("ref: refs/heads/main\n")
    (kit / "refs/heads/main").write_text("c" * 40 + "\n")
    (kit / "config").write_text('[remote "origin"]\n\turl = https://github.com/NVIDIA/dgx-spark-playbooks\n')
    tools = tmp_path / ".bin"
    tools.mkdir()
    for name in (
        "sh",
        "sed",
        "grep",
        "find",
        "head",
        "awk",
        "xargs",
        "tr",
        "cat",
        "rm",
        "mktemp",
        "mkfifo",
        "mv",
        "wc",
        "timeout",
        "setsid",
        "sleep",
    ):
        (tools / name).symlink_to(os.path.realpath(shutil.which(name) or ""))
    text = probe.script(["launchers"], nonce=NONCE)
    text = text.replace("PATH=$PATH:/usr/sbin:/sbin:/snap/bin", f"PATH={tools}")
    done = subprocess.run(
        ["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60, env={"HOME": str(tmp_path), "PATH": ""}
    )
    sheet = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout))
    (found,) = [one for one in sheet.checkouts or () if one.path.startswith(str(tmp_path))]
    assert (found.branch, found.commit, found.changed, found.committed_at) == ("main", "c" * 40, None, None)
    assert found.remote == "https://github.com/NVIDIA/dgx-spark-playbooks"


BOOT = """\
@crontab bob
@reboot sleep 30 && /home/bob/kit/run.sh >/tmp/log 2>&1
  @reboot docker run -d --name vllm_node vllm/vllm-openai --model a/b --api-key abcdef
# @reboot nothing
0 4 * * * /usr/bin/backup
@file /etc/cron.d/llama
@reboot llama /usr/local/bin/llama-server -m /models/a.gguf --port 8080
@file /etc/rc.local
/opt/start.sh &
"""


def test_what_cron_and_rc_local_start() -> None:
    script = Launcher("/home/bob/kit/run.sh", (Starts("vllm", "m"),))
    found = boot_jobs.joined(boot_jobs.jobs(BOOT), [script])
    assert [(one.where, one.user) for one in found] == [
        ("crontab", "bob"),
        ("crontab", "bob"),
        ("/etc/cron.d/llama", "llama"),
        ("/etc/rc.local", "root"),
    ]
    assert [one.starts for one in found] == [
        (Starts("vllm", "m"),),
        (Starts("vllm", "a/b", image="vllm/vllm-openai", container="vllm_node"),),
        (Starts("llama.cpp", "/models/a.gguf", None, 8080),),
        (),
    ]
    assert "abcdef" not in found[1].command and found[3].command == "/opt/start.sh &"


def test_the_boot_jobs_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "cron.d").mkdir()
    (tmp_path / "cron.d/engine").write_text("SHELL=/bin/sh\n@reboot root vllm serve a/b --api-key s3cr3tvalue\n")
    (tmp_path / "cron.d/other").write_text("5 * * * * root true\n")
    (tmp_path / "rc.local").write_text("#!/bin/sh -e\n# by hand\nollama serve &\nexit 0\n")
    (tmp_path / "rc.local").chmod(0o755)
    text = probe.script(["boot-jobs"], nonce=NONCE)
    for name in ("cron.d", "rc.local", "crontab"):
        text = text.replace(f"/etc/{name}", str(tmp_path / name))
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60)
    found = probe.sheet_from("here", 0.0, probe.read(NONCE, done.stdout)).boot_jobs or ()
    ours = [one for one in found if one.where != "crontab"]
    assert [(one.where, one.user, one.starts) for one in ours] == [
        (str(tmp_path / "cron.d/engine"), "root", (Starts("vllm", "a/b"),)),
        (str(tmp_path / "rc.local"), "root", (Starts("ollama"),)),
    ]
    assert b"s3cr3t" not in done.stdout
