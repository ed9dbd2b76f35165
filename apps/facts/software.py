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
    "cuda": "cuda",
    "lmdeploy": "lmdeploy",
    "flash-attn": "flash-attn",
    "xformers": "xformers",
    "compressed-tensors": "compressed-tensors",
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

# Lines of `NAME==VERSION` as pip freeze prints them, and `env NAME=VALUE`. torch is not imported: that would take seconds.
_ASK = """
import importlib.util, os, platform, re
from importlib import metadata
print("python==" + platform.python_version())
for name in ("vllm", "sglang", "transformers", "torch", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "flashinfer-python", "triton",
             "huggingface-hub", "litellm", "tensorrt-llm", "sgl-kernel", "lmdeploy", "flash-attn", "xformers", "compressed-tensors", "llama-cpp-python"):
    try:
        print(name + "==" + metadata.version(name))
    except Exception:
        pass
try:
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    print("cuda==" + re.search("^cuda.*= *'([0-9.]+)'", open(torch + "/version.py").read(), re.M).group(1))
except Exception:
    pass
for name in ("TORCH_CUDA_ARCH_LIST", "CUDA_VERSION", "NCCL_VERSION", "NVIDIA_REQUIRE_CUDA"):
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
    for where, told in environment.items():  # a package says more exactly what is loaded than the base image does
        for variable in ("CUDA_VERSION", "NCCL_VERSION"):
            if told.get(variable):
                versions[where].setdefault(_IMAGE_VARIABLES[variable], told[variable])
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
                    where=f"image:{image.ref or image.id}",
                    versions=versions,
                    cuda_arch_list=arch,
                    image_id=image.id,
                    whole=False,
                )
            )
    return tuple(found)


@fact
class SoftwareFact(Fact):
    """Versions inside running containers (by their own python3) and in environments of the node (by the names of folders)."""

    name = "software"
    reads = "docker exec CONTAINER python3 -c …, *.dist-info of virtual and conda environments, of the user and the system, as `@in WHERE` and `NAME==VERSION` lines"
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
seen=
inside() {
  case $seen in *"|$2|"*) return ;; esac
  seen="$seen|$2|"; told=
  for info in "$2"/lib/python3*/site-packages/*.dist-info "$2"/lib/python3*/dist-packages/*.dist-info; do
    base=${info##*/}; base=${base%.dist-info}
    case $base in vllm-*|sglang-*|torch-*|ray-*|transformers-*|nvidia_nccl*|flashinfer*|triton-*|litellm-*|huggingface_hub-*|sgl_kernel-*|tensorrt_llm-*|lmdeploy-*|flash_attn-*|xformers-*|compressed_tensors-*|llama_cpp_python-*)
      [ -n "$told" ] || printf '@in %s:%s\n' "$1" "$2"
      told=1; printf '%s==%s\n' "${base%%-*}" "${base#*-}" ;; esac
  done
  [ -n "$told" ] || return
  sed -n 's/^version\(_info\)\{0,1\} *= *\([0-9.]*[0-9]\).*/python==\2/p' "$2/pyvenv.cfg" 2>/dev/null | head -n 1
  for file in "$2"/lib/python3*/site-packages/torch/version.py "$2"/lib/python3*/dist-packages/torch/version.py; do
    [ ! -f "$file" ] || sed -n "s/^cuda.*= *'\([0-9.]*\)'.*/cuda==\1/p" "$file"
  done
}
for config in "$HOME"/pyvenv.cfg "$HOME"/*/pyvenv.cfg "$HOME"/.*/pyvenv.cfg "$HOME"/*/*/pyvenv.cfg "$HOME"/*/*/.venv/pyvenv.cfg "$HOME"/*/.venv/pyvenv.cfg /opt/*/pyvenv.cfg /opt/*/.venv/pyvenv.cfg /srv/*/pyvenv.cfg; do
  [ -f "$config" ] && inside venv "${config%/pyvenv.cfg}"
done
for root in $(ps -ww -eo args= 2>/dev/null | sed -n 's|^\(/[^ ]*\)/bin/python[0-9.]* .*|\1|p' | sort -u | head -n 32); do
  [ -f "$root/pyvenv.cfg" ] && inside venv "$root"
done
for root in "$HOME"/*conda3 "$HOME"/miniforge3 "$HOME"/*conda3/envs/* "$HOME"/miniforge3/envs/* /opt/conda /opt/conda/envs/*; do
  [ -d "$root/conda-meta" ] && inside venv "$root"
done
inside user "$HOME/.local"; inside system /usr/local; inside system /usr
:
"""
    )

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Software, ...] | None:
        found = found_in(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None


_PINNED = re.compile(r"(?<![\w.-])([A-Za-z0-9][A-Za-z0-9_-]{1,40})(?:\[[^\]\s]{0,60}\])?==([0-9][\w.+!-]{0,60})")
_ARGUMENT = re.compile(r"\b(VLLM|SGLANG|PYTORCH|TORCH|TRANSFORMERS|RAY|NCCL|CUDA)_VERSION[= ]\"?v?([0-9][\w.+-]{0,60})")
_ARCHITECTURES = re.compile(r"\bTORCH_CUDA_ARCH_LIST[= ](?:\"([^\"\n]{1,80})\"|'([^'\n]{1,80})'|([0-9][\w.;+]{0,80}))")


def from_history(text: str) -> tuple[Software, ...]:
    """`docker history` of images, newest layer first, in `@in image:REF<TAB>ID` parts: what their build pinned or was given."""
    found = []
    for part in re.split(r"^@in ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        where, _, image = head.partition("\t")
        versions: dict[str, str] = {}
        for name, version in _PINNED.findall(body):
            if (known := _NAMES.get(_normal(name))) and known != "python":
                versions.setdefault(known, version)
        for name, version in _ARGUMENT.findall(body):
            versions.setdefault({"PYTORCH": "torch"}.get(name, name.lower()), version)
        arch = _ARCHITECTURES.search(body)
        built = next((each for each in arch.groups() if each), None) if arch else None
        if versions or built:
            found.append(Software(where, versions, built, image or None, whole=False))
    return tuple(found)


def with_history(known: Iterable[Software], history: Iterable[Software]) -> tuple[Software, ...]:
    """What images say themselves, with what only their build says filled in."""
    built = {each.where: each for each in history}
    found = [
        Software(
            where=each.where,
            versions={**built[each.where].versions, **each.versions},
            cuda_arch_list=each.cuda_arch_list or built[each.where].cuda_arch_list,
            image_id=each.image_id,
            whole=each.whole,
        )
        if each.where in built
        else each
        for each in known
    ]
    there = {each.where for each in found}
    return (*found, *(each for each in built.values() if each.where not in there))


@fact
class ImageHistoryFact(Fact):
    """What the builds of images pinned, for those that look like engines: no container is started for it."""

    name = "image-history"
    reads = "docker history --no-trunc --format '{{.CreatedBy}}' IMAGE, as `@in image:REF<TAB>ID` parts"
    timeout_s = 12
    script = r"""
docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}' 2>/dev/null | grep -v '<none>' |
grep -iE 'vllm|sglang|llama|ollama|trt|tensorrt|triton|tgi|text-generation|lmdeploy|nim|gb10|spark|qwen|glm|gpt-oss|nemotron|torch' | head -n 16 |
while read -r name id; do
  printf '@in image:%s\t%s\n' "$name" "$id"
  docker history --no-trunc --format '{{.CreatedBy}}' "$id" 2>/dev/null </dev/null | grep -E '==[0-9]|_VERSION[= ]|TORCH_CUDA_ARCH_LIST' | cut -c 1-2000 | head -n 60
done | sed -e "$SPARKWEB_MASK"
:
"""

    @classmethod
    def parse(cls, evidence: Evidence) -> tuple[Software, ...] | None:
        found = from_history(evidence.stdout)
        return found if found or evidence.exit_code == 0 else None
