"""The installer of the real engine: what it refuses, what it remembers, what it says. It installs nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import real_engine as engine


def prepared(folder: Path) -> Path:
    """A folder that looks as after a preparation of these very versions."""
    for path, recipe in (
        (folder / "venv", engine.engine_recipe()),
        (folder / "models" / engine.SERVED_MODEL_NAME, engine.model_recipe()),
    ):
        path.mkdir(parents=True)
        engine._write_stamp(path, engine._installed(recipe))
    return folder


def test_folder_prefers_the_cache_over_the_state() -> None:
    assert engine.folder_from({"SPARKWEB_CACHE": "/c", "VAR": "/v"}) == Path("/c/real")
    assert engine.folder_from({"VAR": "/v"}) == Path("/v/real")
    assert engine.folder_from({"VAR": ""}) == engine.BASE / "var" / "real"


def test_describe_tells_all_that_a_launch_needs(tmp_path: Path) -> None:
    found = engine.describe(prepared(tmp_path / "real"))
    assert found.executable == f"{tmp_path}/real/venv/bin/vllm"
    assert found.model_path == f"{tmp_path}/real/models/tiny-qwen3"
    assert found.environment["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found.environment
    assert found.environment["TMPDIR"] == found.temporary
    assert Path(found.temporary).is_dir()
    assert not any(word.startswith(("--host", "--port")) for word in found.arguments)


def test_describe_refuses_what_was_not_prepared_or_only_begun(tmp_path: Path) -> None:
    with pytest.raises(engine.NotPossible, match="prepare it"):
        engine.describe(tmp_path / "none")
    folder = prepared(tmp_path / "real")
    engine._write_stamp(folder / "venv", engine._begun(engine.engine_recipe()))
    with pytest.raises(engine.NotPossible, match="prepare it"):
        engine.describe(folder)


def test_another_lock_asks_for_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path / "real")
    other = tmp_path / "other.lock"
    other.write_bytes(engine.LOCK.read_bytes() + b"\n")
    monkeypatch.setattr(engine, "LOCK", other)
    with pytest.raises(engine.NotPossible):
        engine.describe(folder)


def test_prepare_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path / "real")
    monkeypatch.setattr(engine, "_run", lambda *words, **options: pytest.fail(f"ran {words}"))
    assert engine.prepare(folder) == engine.describe(folder)


def test_model_is_made_beside_and_moved_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two_shards(words: list[str], **options: object) -> None:
        for number in (1, 2):
            (Path(words[2]) / f"model-0000{number}-of-00002.safetensors").touch()

    monkeypatch.setattr(engine, "_run", two_shards)
    with pytest.raises(engine.NotPossible, match="2 shards"):
        engine.ensure_model(tmp_path)
    assert not (tmp_path / "models" / engine.SERVED_MODEL_NAME).exists()

    def four_shards(words: list[str], **options: object) -> None:
        for number in (1, 2, 3, 4):
            (Path(words[2]) / f"model-0000{number}-of-00004.safetensors").touch()

    monkeypatch.setattr(engine, "_run", four_shards)
    engine.ensure_model(tmp_path)
    made = tmp_path / "models" / engine.SERVED_MODEL_NAME
    assert len(list(made.glob("*.safetensors"))) == 4
    assert engine._stamp(made) == engine._installed(engine.model_recipe())


@pytest.mark.parametrize("length", [20, 40, 80, 200])
def test_sockets_fit_into_the_temporary_folder_whatever_the_path(length: int) -> None:
    folder = Path("/" + "x" * length)
    temporary = engine.temporary_folder(folder)
    assert len(os.fsencode(temporary / ("y" * 36))) <= 107
    assert (temporary.parent == folder) == (length <= 65)
    assert temporary == engine.temporary_folder(folder) != engine.temporary_folder(folder / "z")


@pytest.mark.parametrize(
    ("machine", "system", "python", "flags", "says"),
    [
        ("riscv64", "Linux", (3, 11), "flags: avx2", "Linux on riscv64"),
        ("arm64", "Darwin", (3, 12), "flags: avx2", "Darwin on arm64"),
        ("x86_64", "Linux", (3, 10), "flags: avx2", "Python 3.11 or newer"),
        ("x86_64", "Linux", (3, 11), "flags: sse4_2 avx", "no AVX2"),
    ],
)
def test_machine_that_cannot_is_refused_by_name(
    tmp_path: Path, machine: str, system: str, python: tuple[int, int], flags: str, says: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(flags)
    with pytest.raises(engine.NotPossible, match=says):
        engine.refuse_machine(machine=machine, system=system, python=python, cpuinfo=cpuinfo)


def test_machine_that_can_is_not_refused(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : sse4_2 avx avx2")
    engine.refuse_machine(machine="x86_64", system="Linux", python=(3, 12), cpuinfo=cpuinfo)
    engine.refuse_machine(machine="aarch64", system="Linux", python=(3, 11), cpuinfo=tmp_path / "none")


def test_full_disk_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(engine.NotPossible, match=r"GiB free and .* needed; .*SPARKWEB_CACHE"):
        engine._refuse_full_disk(tmp_path, 1 << 60)


def test_failed_command_is_explained_with_its_last_lines(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('one'); print('OSError: No space left on device'); raise SystemExit(3)"]
    with pytest.raises(engine.NotPossible) as caught:
        engine._run(words, log=tmp_path / "log", doing="copying")
    text = str(caught.value)
    assert text.startswith("copying failed: the disk is full; name a folder on another disk")
    assert "one | OSError: No space left on device" in text
    assert str(tmp_path / "log") in text


def test_cuda_builds_are_known_by_what_they_ask_for() -> None:
    assert engine.needs_cuda(["filelock", 'nvidia-cudnn-cu13==9.1; platform_system == "Linux"'])
    assert not engine.needs_cuda(["filelock", "sympy>=1.13.3"])


def test_distribution_is_named_as_vllm_asks_for_it(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    engine.name_distribution(tmp_path)
    code = "import importlib.metadata; print(importlib.metadata.version('vllm'))"
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "0.32.0+cpu\n"


def test_command_line_says_in_words_what_is_missing(tmp_path: Path) -> None:
    script = engine.BASE / "scripts" / "real_engine.py"
    words = [sys.executable, str(script), "--folder", str(tmp_path), "--describe"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no engine for this version lies in" in done.stderr
    assert "Traceback" not in done.stderr
    prepared(tmp_path / "real")
    words[3] = str(tmp_path / "real")
    described = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert described["served_model_name"] == "tiny-qwen3"


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-real.lock"])
def test_lock_names_no_index_and_hashes_everything(name: str) -> None:
    lines = (engine.BASE / name).read_text().splitlines()
    assert not [line for line in lines if "://" in line or line.startswith("-")]
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert len(pinned) > 20
    assert all("==" in line and line.endswith("\\") for line in pinned)
