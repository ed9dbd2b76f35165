"""The hub's own programs as downloaders: a stand-in that leaves half, and the real one where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from apps.plan.fetching import scripts
from tests.fetching.conftest import FILES, REPO, Cache
from tests.fetching.hub import Hub, Model, etag

REAL = os.environ.get("SPARKWEB_TEST_HF") or shutil.which("hf") or ""  # a program of huggingface_hub
SMALL = "config.json"
LARGE = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def _needs() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")


def stand_in(folder: Path, *, leaves: str, code: int) -> str:
    """An `hf` that writes down how it was called, leaves what `leaves` says in its cache, and ends with `code`."""
    place = folder / "bin"
    place.mkdir()
    (place / "hf").write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" >>{folder}/called; printf "%s\\n" "$HF_ENDPOINT" "$HF_TOKEN" >{folder}/given\n'
        'while [ "$1" != --cache-dir ]; do shift; done\n'
        f'blobs="$2/models--acme--tiny-1b/blobs"; mkdir -p "$blobs"\n{leaves}\n'
        f"echo 'no luck today'; exit {code}\n"
    )
    (place / "hf").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def test_what_it_left_half_goes_on_with_curl(hub: Hub, model: Model, cache: Cache, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(FILES[LARGE][:300_000])
    whole = tmp_path / "whole"
    whole.write_bytes(FILES[SMALL])
    leaves = f'cp {whole} "$blobs/{etag(SMALL, FILES[SMALL])}"; cp {kept} "$blobs/{etag(LARGE, FILES[LARGE])}.ab12.incomplete"'
    path = stand_in(tmp_path, leaves=leaves, code=1)
    said = cache.all(cache.wish(hub, tool="auto"), PATH=path, HF_TOKEN="hf_secret")
    cache.holds(model)
    assert "ended with" in said and "going on with curl for what is missing" in said and "no luck today" in said
    assert hub.sent[SMALL] == 0
    assert hub.sent[LARGE] == len(FILES[LARGE]) - 300_000
    called = (tmp_path / "called").read_text().splitlines()
    assert called[:5] == ["download", REPO, "--revision", model.commit, "--cache-dir"]
    assert set(called[6:]) == set(FILES)
    assert "hf_secret" not in called
    assert (tmp_path / "given").read_text().splitlines() == [hub.address, "hf_secret"]


def test_where_it_is_asked_for_and_missing_that_is_said(hub: Hub, model: Model, cache: Cache, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    wanted = "awk cat curl cut date df find flock grep head ls mkdir mktemp mv readlink rm sed sha1sum sha256sum sleep sort tail tr wc xargs"
    for name in wanted.split():
        found = shutil.which(name)
        if found:
            (place / name).symlink_to(found)
    cache.shell = (shutil.which("dash") or "/bin/sh",)
    wish = cache.wish(hub, tool="hf")
    commit, _ = cache.resolve(wish)
    done = cache.run(scripts.fetch(wish), SPARKWEB_COMMIT=commit, PATH=str(place))
    assert done.stdout.splitlines()[-1].startswith("sparkweb: program_missing: "), done.stdout + done.stderr


@pytest.mark.skipif(not REAL, reason="huggingface_hub is not here; SPARKWEB_TEST_HF names its hf")
def test_the_real_one(hub: Hub, model: Model, cache: Cache) -> None:
    said = cache.all(cache.wish(hub, tool="hf"), PATH=f"{Path(REAL).parent}:{os.environ['PATH']}")
    assert "going on with curl" not in said, said
    cache.holds(model)
    assert all(hub.sent[path] == len(data) for path, data in FILES.items())
    # The cache is one that it takes for its own: offline, it finds the snapshot.
    found = subprocess.run(
        [REAL, "download", REPO, "--revision", "main", "--cache-dir", str(cache.folder)],
        env={**cache.environ(), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert str(cache.home / "snapshots" / model.commit) in found.stdout, found.stdout + found.stderr
