"""A hub of our own, a model on it, and a cache that a shell fills."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from apps.plan.fetching import scripts
from apps.plan.fetching.wish import Wish
from tests.fetching.hub import Hub, Model, etag, serving

REPO = "acme/tiny-1b"
FILES = {
    "config.json": b'{"model_type": "tiny"}\n',
    "README.md": b"# Tiny\n",
    "empty.txt": b"",
    "model-00001-of-00002.safetensors": random.Random(1).randbytes(700_001),
    "model-00002-of-00002.safetensors": random.Random(2).randbytes(300_000),
    "original/a file (1) #2.json": b"{}",
    "original/deep/tokenizer.bin": random.Random(3).randbytes(50_000),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as made:
        yield made


@pytest.fixture
def model(hub: Hub) -> Model:
    return hub.add(REPO, dict(FILES))


@dataclass
class Cache:
    """What the scripts leave behind on a disk, and how they are run."""

    folder: Path
    shell: tuple[str, ...] = ("dash",)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "models--acme--tiny-1b"

    def wish(self, hub: Hub, **changes: Any) -> Wish:
        given = {"repo": REPO, "cache": str(self.folder), "endpoint": hub.address, "tool": "curl", "keep_free_gib": 0}
        return Wish(node="spark", **{**given, **changes})

    def environ(self, **more: str) -> dict[str, str]:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "home"), "no_proxy": "*"}
        return {**base, "SPARKWEB_PAUSE_S": "0", "SPARKWEB_LOOK_S": "0.1", **self.environment, **more}

    def run(self, shell: Any, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which(self.shell[0]) or self.shell[0], *self.shell[1:], "-c", shell.text.replace("durable=1", "durable=''")],
            env=self.environ(**more), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def resolve(self, wish: Wish, **more: str) -> tuple[str, str]:
        """The commit and what was said."""
        done = self.run(scripts.resolve(wish), **more)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == "", done.stderr
        return done.stdout.rsplit("sparkweb-value: ", 1)[1].strip(), done.stdout

    def all(self, wish: Wish, **more: str) -> str:
        commit, said = self.resolve(wish, **more)
        for make in (scripts.fetch, scripts.publish):
            done = self.run(make(wish), SPARKWEB_COMMIT=commit, **more)
            assert done.returncode == 0, said + done.stdout + done.stderr
            assert done.stderr == "", done.stderr
            said += done.stdout
        return said

    def manifest(self, model: Model) -> dict[str, Any]:
        return json.loads((self.home / "sparkweb" / f"{model.commit}.json").read_text())

    def holds(self, model: Model, names: Callable[[str], bool] = lambda name: True) -> None:
        """The layout of a hub's cache, every byte, and a manifest that says the same."""
        snapshot = self.home / "snapshots" / model.commit
        wanted = {name: data for name, data in model.files.items() if names(name)}
        found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if not path.is_dir()}
        assert found == set(wanted)
        for name, data in wanted.items():
            path = snapshot / name
            assert path.is_symlink()
            assert not os.readlink(path).startswith("/")
            assert path.resolve() == (self.home / "blobs" / etag(name, data)).resolve()
            assert path.read_bytes() == data
        assert not list((self.home / "blobs").glob("*.incomplete"))
        manifest = self.manifest(model)
        assert manifest["format"] == "sparkweb-manifest" and manifest["complete"] is True
        assert {one["path"]: one["size"] for one in manifest["files"]} == {n: len(d) for n, d in wanted.items()}
        assert not list((self.home / "sparkweb").glob("*.part"))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "home").mkdir()
    return Cache(tmp_path)
