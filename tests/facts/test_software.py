"""What is inside environments and images without starting anything of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from apps.facts import probe
from apps.facts.sheet import Evidence
from apps.facts.software import found_in, from_history
from apps.facts.values import Software

NONCE = "n0nce4thesoftware"

# docker history --no-trunc, the lines that the probe keeps; BuildKit's and the old builder's wording
HISTORY = """\
@in image:vllm-node:latest\tsha256:aaaa
RUN |2 TORCH_CUDA_ARCH_LIST=12.1a VLLM_REF=v0.17.1rc1 /bin/sh -c uv pip install "ray[default]==2.53.0" transformers==5.0.0rc3 # buildkit
ENV TORCH_CUDA_ARCH_LIST=12.1a
RUN /bin/sh -c pip install --no-cache-dir vllm==0.14.0 torch==2.9.1+cu130 nvidia-nccl-cu13==2.28.3 # buildkit
RUN /bin/sh -c pip install vllm==0.10.0 # buildkit
ENV CUDA_VERSION=13.0.2
@in image:sg:1\tsha256:bbbb
/bin/sh -c #(nop)  ENV SGLANG_VERSION=0.5.7
/bin/sh -c #(nop)  ENV TORCH_CUDA_ARCH_LIST="9.0 10.0+PTX"
@in image:empty:1\tsha256:cccc
RUN /bin/sh -c test "$a" == "$b" # buildkit
"""


def test_what_a_build_pinned_the_newest_layer_first() -> None:
    first, second = from_history(HISTORY)
    assert first == Software(
        "image:vllm-node:latest",
        {
            "ray": "2.53.0",
            "transformers": "5.0.0rc3",
            "vllm": "0.14.0",
            "torch": "2.9.1+cu130",
            "nccl": "2.28.3",
            "cuda": "13.0.2",
        },
        "12.1a",
        "sha256:aaaa",
        whole=False,
    )
    assert second == Software("image:sg:1", {"sglang": "0.5.7"}, "9.0 10.0+PTX", "sha256:bbbb", whole=False)


def test_an_images_own_words_before_those_of_its_build() -> None:
    image = (
        '[{"Id": "sha256:aaaa", "RepoTags": ["vllm-node:latest"], "Architecture": "arm64",'
        ' "Config": {"Env": ["VLLM_VERSION=0.17.1", "CUDA_VERSION=13.1.0"]}}]'
    )
    sections = {"image-details": Evidence(image, "", 0), "image-history": Evidence(HISTORY, "", 0)}
    found = {one.where: one for one in probe.sheet_from("a", 1.0, sections).software or ()}
    one = found["image:vllm-node:latest"]
    assert (one.versions["vllm"], one.versions["cuda"], one.versions["torch"]) == ("0.17.1", "13.1.0", "2.9.1+cu130")
    assert (one.cuda_arch_list, one.image_id, one.whole) == ("12.1a", "sha256:aaaa", False)
    assert "image:sg:1" in found


def test_a_container_that_runs_is_asked_and_its_image_is_not_told_twice() -> None:
    inside = "@in container:a\tsha256:aaaa\nvllm==0.17.1\ntorch==2.9.1\ncuda==13.0\nenv NCCL_VERSION=2.27.7-1\nenv CUDA_VERSION=13.0.2\n"
    sections = {"software": Evidence(inside, "", 0), "image-history": Evidence(HISTORY, "", 0)}
    found = {one.where: one for one in probe.sheet_from("a", 1.0, sections).software or ()}
    assert set(found) == {"container:a", "image:sg:1"}
    assert found["container:a"].versions == {"vllm": "0.17.1", "torch": "2.9.1", "cuda": "13.0", "nccl": "2.27.7-1"}
    assert found["container:a"].whole


@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta"])
def test_environments_of_both_kinds(tmp_path: Path, marker: str) -> None:
    root = tmp_path / ("engine" if marker == "pyvenv.cfg" else "miniconda3/envs/engine")
    packages = root / "lib/python3.12/site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch-2.9.1+cu130.dist-info").mkdir()
    (packages / "vllm-0.17.1.dist-info").mkdir()
    (packages / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.1+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    if marker == "pyvenv.cfg":
        (root / marker).write_text("home = /usr/bin\nversion = 3.12.3\n")
    else:
        (root / marker).mkdir()
    (tmp_path / ".local/lib/python3.12/site-packages/ray-2.53.0.dist-info").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    text = probe.script(["software"], nonce=NONCE)
    done = subprocess.run(["/bin/sh", "-s"], input=text.encode(), capture_output=True, timeout=60, env=env)
    found = {
        one.where: one.versions for one in probe.sheet_from("x", 0.0, probe.read(NONCE, done.stdout)).software or ()
    }
    python = {"python": "3.12.3"} if marker == "pyvenv.cfg" else {}
    assert found[f"venv:{root}"] == {"torch": "2.9.1+cu130", "vllm": "0.17.1", "cuda": "13.0", **python}
    assert found[f"user:{tmp_path}/.local"] == {"ray": "2.53.0"}


def test_lines_before_a_place_belong_to_nobody() -> None:
    assert found_in("vllm==1.0\nenv CUDA_VERSION=13\n@in venv:/a\n") == ()
