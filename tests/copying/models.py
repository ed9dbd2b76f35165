"""Small models as a hub's library lays them out."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

COMMIT = "8f3c2b1a" * 5


def hub_model(hub: Path, *, nested: bool = False, sizes: tuple[int, ...] = (3 << 20, 2 << 20, 1 << 20)) -> str:
    """A symlink farm; with `nested` the blobs lie in a folder for all models, by the first two digits. Gives the path below `hub`."""
    model = hub / "models--acme--tiny"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for number, size in enumerate(sizes, start=1):
        data = random.Random(number).randbytes(size)
        sha = hashlib.sha256(data).hexdigest()
        place = hub / "blobs" / sha[:2] / sha if nested else model / "blobs" / sha
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        os.symlink(os.path.relpath(place, snapshot), snapshot / f"model-{number:05}-of-{len(sizes):05}.safetensors")
    (model / "blobs/1234").write_bytes(b'{"model_type": "qwen3"}')
    os.symlink("../../blobs/1234", snapshot / "config.json")
    return f"models--acme--tiny/snapshots/{COMMIT}"
