"""What people really paste: out of scripts, pages and other shells."""

from __future__ import annotations

import pytest

from apps.recipes.formats.imported import Unreadable
from apps.recipes.formats.recognise import read

VLLM = "vllm/vllm-openai --model a/b"


@pytest.mark.parametrize(
    "text",
    [
        f"cd /x && docker run {VLLM}",
        f"docker pull vllm/vllm-openai && docker run {VLLM}",
        f"sudo -E docker run {VLLM}",
        f"HF_TOKEN=$HF_TOKEN docker run {VLLM}",
        f"docker -H tcp://10.0.0.1:2375 run {VLLM}",
        f"docker --context spark container run {VLLM}",
        f"docker run -d `\n  -p 8000:8000 `\n  {VLLM}\n",
        f"docker run -d ^\r\n  -p 8000:8000 ^\r\n  {VLLM}\r\n",
        f"docker run\u00a0--gpus all\u00a0{VLLM}",
        f"```bash\n$ docker run {VLLM}\n```\n",
        f"```\ndocker run {VLLM}\n```",
        f"docker run -itp 8000:8000 {VLLM}",
    ],
)
def test_docker_run(text: str) -> None:
    found = read(text)
    assert found.family == "docker run"
    assert (found.body["image"], found.body["model"], found.body["port"]) == ("vllm/vllm-openai", "a/b", 8000)


@pytest.mark.parametrize(
    "text",
    [
        "cd ~/vllm && source .venv/bin/activate && vllm serve a/b",
        "ulimit -n 65535; vllm serve a/b",
        "sudo vllm serve a/b",
        "env -u X CUDA_VISIBLE_DEVICES=0 vllm serve a/b",
        "timeout -k 5 60 vllm serve a/b",
        "numactl -N 0 -m 0 nice -n 5 vllm serve a/b",
        "```sh\nvllm serve a/b\n```",
        "#!/bin/sh\nset -eu\nexec vllm serve a/b\n",
    ],
)
def test_a_command(text: str) -> None:
    found = read(text)
    assert (found.family, found.body["engine"], found.body["model"]) == ("command", "vllm", "a/b")


def test_what_only_starts_it_is_named() -> None:
    notes = [one.message for one in read("sudo numactl -N 0 vllm serve a/b").notes]
    assert notes[:2] == [
        "sudo is left out: sparkweb starts the engine by itself.",
        "numactl -N 0 is left out: sparkweb starts the engine by itself.",
    ]


def test_a_command_over_several_lines_in_a_compose_file() -> None:
    text = "services:\n  a:\n    image: x/y\n    command: |\n      vllm serve a/b \\\n        --port 8001 \\\n        --seed 1\n"
    found = read(text)
    assert (found.body["port"], found.body["arguments"]) == (8001, ["--seed", "1"])


def test_an_option_without_its_value_is_no_argument() -> None:
    found = read("vllm serve a/b --seed 1 --port")
    assert found.body["port"] == 8000 and found.body["arguments"] == ["--seed", "1"]
    assert "--port has no value" in found.notes[0].message


@pytest.mark.parametrize(
    "image", ["ollama/ollama", "nvcr.io/nim/meta/llama3:1", "ghcr.io/huggingface/text-embeddings-inference:1.8"]
)
def test_the_image_of_another_server_is_not_taken_for_ours(image: str) -> None:
    with pytest.raises(Unreadable, match="starts a server of its own"):
        read(f"docker run -p 8000:8000 {image}")
    found = read(f"docker run -p 8000:8000 {image} ./serve --port 8000")
    assert found.held[0].kind == "command"
