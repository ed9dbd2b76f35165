# ruff: noqa: E501 (texts of real tools stay on one line)
"""Which inference software is inside running containers, images and virtual environments, without touching a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable

from apps.facts.fact import Fact, fact
from apps.facts.sheet import Evidence
from apps.facts.values import Image, Software

_NAMES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "transformers": "transformers",
    "torch": "torch",
    "ray": "ray",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
    "nvidia-nccl": "nccl",
    "flashinfer-python": "flashinfer",
    "flashinfer": "flashinfer",
    "llama-cpp-python": "llama-cpp-python",
    "triton": "triton",
    "huggingface-hub": "huggingface-hub",
    "python": "python",
    "litellm": "litellm",
    "tensorrt-llm": "tensorrt-llm",
    "xgrammar": "xgrammar",
    "sgl-kernel": "sgl-kernel",
    "nccl": "nccl",
}
_VERSION = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})==(\S{1,100})$")
_IMAGE_VARIABLES = {
    "VLLM_VERSION": "vllm",
    "PYTORCH_VERSION": "torch",
    "SGLANG_VERSION": "sglang",
    "NCCL_VERSION": "nccl",
    "CUDA_VERSION": "cuda",
    "NVIDIA_PYTORCH_VERSION": "nvidia-pytorch",
}

# Lines of `NAME==VERSION` as pip freeze prints them, and `env NAME=VALUE`.
_ASK = """
import os, platform
from importlib import metadata
print("python==" + platform.python_version())
for name in ("vllm", "sglang", "transformers", "torch", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "flashinfer-python", "triton",
             "huggingface-hub", "litellm", "tensorrt-llm", "sgl-kernel"):
    try:
        print(name + "==" + metadata.version(name))
    except Exception:
        pass
for name in ("TORCH_CUDA_ARCH_LIST", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"):
    if os.environ.get(name):
        print("env " + name + "=" + os.environ[name])
""".strip()


def found_in(text: str) -> tuple[Software, ...]:
    """`@in WHERE<TAB>IMAGE_ID` parts of `name==version` lines, `name-version.dist-info` names and `env NAME=VALUE`."""
    versions: dict[str, dict[str, str]] = {}
    environment: dict[str, dict[str, str]] = {}
    images: dict[str, str] = {}
    where = ""
    for line in text.splitlines():
        if line.startswith("@in "):
            where, _, image = line[4:].partition("\t")
            versions.setdefault(where, {})
            images[where] = image
            continue
        if not where:
            continue
        exact = _VERSION.match(line.strip())
        if exact and _NAMES.get(_normal(exact.group(1))):
            versions[where].setdefault(_NAMES[_normal(exact.group(1))], exact.group(2))
        elif line.startswith("env "):
            name, _, value = line[4:].partition("=")
            environment.setdefault(where, {})[name] = value.strip()
    return tuple(
        Software(
            where=where,
            versions=found,
            cuda_arch_list=environment.get(where, {}).get("TORCH_CUDA_ARCH_LIST"),
            image_id=images.get(where) or None,
        )
        for where, found in versions.items()
        if found
    )


def _normal(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def in_images(images: Iterable[Image]) -> tuple[Software, ...]:
    """What an image's own variables and labels say, for those that no container runs."""
    found = []
    for image in images:
        versions = {name: image.env[variable] for variable, name in _IMAGE_VARIABLES.items() if image.env.get(variable)}
        label = image.labels.get("org.opencontainers.image.version")
        reference = (image.ref or "").lower()
        if label and re.match(r"v?\d+\.\d+", label):
            for engine in ("vllm", "sglang"):
                if f"{engine}" in reference.rsplit(":", 1)[0]:
                    versions.setdefault(engine, label.removeprefix("v"))
        arch = image.env.get("TORCH_CUDA_ARCH_LIST")
        if versions or arch:
            found.append(
                Software(
                    where=f"image:{image.ref or image.id}", versions=versions, cuda_arch_list=arch, image_id=image.id
                )
            )
    return tuple(found)


@fact
class SoftwareFact(Fact):
    """Versions inside running containers (by their own python3) and in virtual environments of the login (by folder names)."""

    name = "software"
    reads = "docker exec CONTAINER python3 -c …, *.dist-info of virtual environments, as `@in WHERE` and `NAME==VERSION` lines"
    timeout_s = 25
    script = (
        r"""
ask='"""
        + _ASK.replace("'", "'\\''")
        + r"""'
limit=; timeout 5 true 2>/dev/null && limit='timeout 12'
ids=$(docker ps -q --no-trunc 2>/dev/null | head -n 24)
work=$(mktemp -d 2>/dev/null) || work=
[ -n "$ids" ] && [ -n "$work" ] && docker inspect --format '{{.Name}} {{.Image}} {{.Id}}' $ids 2>/dev/null | {
  while read -r name image id; do
    ( { printf '@in container:%s\t%s\n' "${name#/}" "$image"; $limit docker exec "$id" python3 -c "$ask" </dev/null 2>/dev/null; } >"$work/$id" ) &
  done
  wait
}
[ -n "$work" ] && { cat "$work"/* 2>/dev/null; rm -rf "$work"; }
for config in "$HOME"/pyvenv.cfg "$HOME"/*/pyvenv.cfg "$HOME"/.*/pyvenv.cfg "$HOME"/*/*/pyvenv.cfg "$HOME"/*/.venv/pyvenv.cfg /opt/*/pyvenv.cfg; do
  [ -f "$config" ] || continue
  root=${config%/pyvenv.cfg}
  printf '@in venv:%s\n' "$root"
  for info in "$root"/lib/python3*/site-packages/*.dist-info; do
    base=${info##*/}; base=${base%.dist-info}
    case $base in vllm-*|sglang-*|torch-*|ray-*|transformers-*|nvidia_nccl*|flashinfer*|triton-*|litellm-*|huggingface_hub-*|sgl_kernel-*)
      printf '%s==%s\n' "${base%%-*}" "${base#*-}" ;; esac
  done
done
printf '@in user:%s\n' "$HOME"
for info in "$HOME"/.local/lib/python3*/site-packages/*.dist-info; do
  base=${info##*/}; base=${base%.dist-info}
  case $base in vllm-*|sglang-*|torch-*|ray-*|transformers-*|nvidia_nccl*|flashinfer*|litellm-*|huggingface_hub-*)
    printf '%s==%s\n' "${base%%-*}" "${base#*-}" ;; esac
done
:
"""
    )

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Software, ...] | None:
        found = found_in(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None
