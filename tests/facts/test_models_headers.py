"""The headers of real safetensors files, read by the real script; and which files an engine loads."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path

import pytest

from apps.facts.models import ModelsFact, folders
from apps.facts.values import ModelFolder


def write(path: Path, tensors: dict[str, int]) -> None:
    """A safetensors file: 8 bytes of length, the header, then the bytes of the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [2, size // 4], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_headers_are_summed_by_name(tmp_path: Path, shell: str) -> None:
    for shard in range(2):
        tensors = {f"model.layers.{shard * 3 + layer}.self_attn.q_proj.weight": 4000 for layer in range(3)}
        tensors[f"model.layers.{shard}.mlp.experts.17.up_proj.weight"] = 900
        write(tmp_path / f"model-0000{shard + 1}-of-00002.safetensors", tensors)
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 64)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    found = probed(tmp_path, shell)
    assert found.tensors == (
        ("model.layers.N.mlp.experts.N.up_proj.weight", 2, 1800),
        ("model.layers.N.self_attn.q_proj.weight", 6, 24000),
    )


def probed(folder: Path, shell: str) -> ModelFolder:
    script = f"SPARKWEB_MODELS='{folder}'\nHOME=/nonexistent\n{ModelsFact.script}"
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return next(one for one in folders(done.stdout) if one.path == str(folder))


def test_a_copy_in_another_layout_is_not_loaded() -> None:
    """Mistral publishes its weights twice; the index names those that are loaded."""
    both = "@folder /models/m\n1000\t./consolidated.safetensors\n600\t./model-00001-of-00002.safetensors\n"
    both += "400\t./model-00002-of-00002.safetensors\n"
    assert folders(both)[0].weights_bytes == 1000
    one = "@folder /models/m\n1000\t./consolidated.safetensors\n1000\t./model.safetensors\n"
    assert folders(one)[0].weights_bytes == 1000
    alone = "@folder /models/m\n1000\t./consolidated.safetensors\n"
    assert folders(alone)[0].weights_bytes == 1000


def test_each_gguf_is_known_by_its_name() -> None:
    text = "@folder /models/g\n70\t./a-Q4_K_M.gguf\n90\t./a-Q8_0.gguf\n@tensor x y z\n@tensor 5\n@tensor 7 1 a b\n"
    found = folders(text)[0]
    assert found.gguf == (("a-Q4_K_M.gguf", 70), ("a-Q8_0.gguf", 90))
    assert found.tensors == (("a b", 1, 7),), "what is no line of ours is let go"
