"""The scripts of a fetch against a real hub's routes, with real curl, in the shells that nodes have."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time

import pytest

from apps.plan.fetching import scripts
from tests.fetching.conftest import REPO, Cache
from tests.fetching.hub import Hub, Model, etag

SHELLS = {"dash": ("dash",), "bash": ("bash",), "busybox": ("busybox", "sh")}
LARGE = "model-00001-of-00002.safetensors"


@pytest.fixture(autouse=True)
def _needs() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")


@pytest.mark.parametrize("name", SHELLS)
def test_a_revision_is_fetched_once_in_the_layout_of_a_cache(hub: Hub, model: Model, cache: Cache, name: str) -> None:
    if shutil.which(SHELLS[name][0]) is None:
        pytest.skip(f"{name} is not here")
    cache.shell = SHELLS[name]
    said = cache.all(cache.wish(hub))
    cache.holds(model)
    assert (cache.home / "refs/main").read_text() == model.commit
    assert f"{REPO} at main is commit {model.commit}" in said
    assert all(hub.sent[path] == len(data) for path, data in model.files.items())
    hashes = {one["path"]: one["sha256"] for one in cache.manifest(model)["files"]}
    assert hashes == {path: hashlib.sha256(data).hexdigest() for path, data in model.files.items()}
    before = dict(hub.sent)
    cache.all(cache.wish(hub))
    assert dict(hub.sent) == before
    cache.holds(model)


def test_with_the_tools_of_busybox_alone(hub: Hub, model: Model, cache: Cache) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not here")
    place = cache.folder / "bin"
    place.mkdir()
    for name in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        (place / name).symlink_to(shutil.which("busybox") or "")
    (place / "curl").symlink_to(shutil.which("curl") or "")
    cache.shell = SHELLS["busybox"]
    hub.drops = {LARGE: [1000]}
    cache.all(cache.wish(hub, exclude=("original/*",)), PATH=str(place))
    cache.holds(model, lambda name: not name.startswith("original/"))


def test_cut_in_the_middle_no_byte_moves_twice(hub: Hub, model: Model, cache: Cache) -> None:
    hub.drops = {LARGE: [100_000, 1, 250_000], "original/deep/tokenizer.bin": [10]}
    said = cache.all(cache.wish(hub))
    cache.holds(model)
    assert all(hub.sent[path] == len(data) for path, data in model.files.items())
    assert "was cut off after" in said


def test_ended_in_the_middle_it_says_what_is_kept_and_goes_on(hub: Hub, model: Model, cache: Cache) -> None:
    hub.rate = 100_000
    wish = cache.wish(hub)
    commit, _ = cache.resolve(wish)
    going = subprocess.Popen(
        ["dash", "-c", scripts.fetch(wish).text], env=cache.environ(SPARKWEB_COMMIT=commit),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    part = cache.home / "blobs" / (etag(LARGE, model.files[LARGE]) + ".incomplete")
    until = time.monotonic() + 20
    while time.monotonic() < until and not (part.exists() and part.stat().st_size > 50_000):
        time.sleep(0.05)
    going.terminate()
    said, _ = going.communicate(timeout=20)
    assert going.returncode == 143
    assert "stopped; " in said and "are kept in" in said
    assert not (cache.home / "snapshots").exists()
    kept = part.stat().st_size
    hub.rate = 0
    hub.sent.clear()
    cache.all(wish)
    cache.holds(model)
    assert hub.sent[LARGE] == len(model.files[LARGE]) - kept


def test_a_disk_that_fills_meanwhile_stops_it_and_what_came_is_kept(hub: Hub, model: Model, cache: Cache) -> None:
    place = cache.folder / "bin"
    place.mkdir()
    (place / "df").write_text(
        "#!/bin/sh\nif [ -e $0.low ]; then free=1000; else free=99999999; fi\n"
        'echo "Filesystem 1024-blocks Used Available Capacity Mounted on"; echo "/dev/x 1 1 $free 1% /"\n'
    )
    (place / "df").chmod(0o755)
    path = f"{place}:{cache.environ()['PATH']}"
    hub.rate = 100_000
    wish = cache.wish(hub, keep_free_gib=1)
    commit, _ = cache.resolve(wish, PATH=path)
    (place / "df.low").symlink_to("/nowhere")
    going = subprocess.Popen(
        ["dash", "-c", scripts.fetch(wish).text], env=cache.environ(SPARKWEB_COMMIT=commit, PATH=path),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    time.sleep(2)
    (place / "df.low").unlink()
    (place / "df.low").touch()
    said, _ = going.communicate(timeout=20)
    assert going.returncode == 1, said
    assert said.splitlines()[-1].startswith("sparkweb: disk_full: only 1.0 MB are left"), said
    hub.rate = 0
    (place / "df.low").unlink()
    cache.all(wish, PATH=path)
    cache.holds(model)
    assert sum(hub.sent.values()) <= sum(map(len, model.files.values())) + 100_000


def test_two_at_once_move_each_byte_once(hub: Hub, model: Model, cache: Cache) -> None:
    hub.rate = 500_000
    wish = cache.wish(hub)
    commit, _ = cache.resolve(wish)
    both = [
        subprocess.Popen(["dash", "-c", scripts.fetch(wish).text], env=cache.environ(SPARKWEB_COMMIT=commit), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    said = [one.communicate(timeout=40)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sum("waiting until that has ended" in one for one in said) == 1
    assert all(hub.sent[path] == len(data) for path, data in model.files.items())


def test_asked_to_slow_down_it_waits_as_long_as_is_said(hub: Hub, model: Model, cache: Cache) -> None:
    hub.put_off = {"/revision/": [(429, "1")], f"/resolve/{model.commit}/config.json": [(429, "1"), (503, "")]}
    began = time.monotonic()
    said = cache.all(cache.wish(hub))
    cache.holds(model)
    assert time.monotonic() - began > 2
    assert said.count("429 Too Many Requests. Retry after 1 seconds") == 2
    assert "503" in said


def test_too_many_refusals_are_a_rate_limit(hub: Hub, model: Model, cache: Cache) -> None:
    hub.put_off = {"/revision/": [(429, "")] * 20}
    done = cache.run(scripts.resolve(cache.wish(hub)))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("sparkweb: hub_rate_limited: ")


def test_a_token_opens_what_is_gated_and_goes_nowhere_else(hub: Hub, cache: Cache) -> None:
    from tests.fetching.conftest import FILES

    model = hub.add(REPO, dict(FILES), gated=True)
    hub.token = "hf_opensesame123"
    wish = cache.wish(hub)
    done = cache.run(scripts.resolve(wish))
    assert "sparkweb: hub_auth: " in done.stdout and done.returncode == 1
    hub.without_access = "hf_somebodyelse"
    done = cache.run(scripts.resolve(wish), HF_TOKEN="hf_somebodyelse")
    assert "sparkweb: hub_gated: " in done.stdout
    said = cache.all(wish, HF_TOKEN=hub.token)
    cache.holds(model)
    assert hub.leaked == []
    assert hub.token not in said
    assert not any(hub.token.encode() in path.read_bytes() for path in cache.folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"repo": "acme/none"}, "hub_missing"),
        ({"revision": "v9"}, "hub_missing"),
        ({"endpoint": "http://127.0.0.1:9"}, "hub_unreachable"),
        ({"include": ("*.gguf",)}, "hub_missing"),
        ({"keep_free_gib": 4_000_000}, "disk_full"),
    ],
)
def test_what_can_not_be_fetched_is_said(hub: Hub, model: Model, cache: Cache, changes: dict, reason: str) -> None:
    done = cache.run(scripts.resolve(cache.wish(hub, **changes)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"sparkweb: {reason}: "), done.stdout + done.stderr
    assert not list(cache.folder.rglob(".asked*"))


def test_a_damaged_file_is_fetched_once_more_then_given_up(hub: Hub, model: Model, cache: Cache) -> None:
    hub.damages[LARGE] = 1
    said = cache.all(cache.wish(hub))
    cache.holds(model)
    assert "another hash than the hub names; it is fetched once more" in said
    blob = cache.home / "blobs" / etag(LARGE, model.files[LARGE])
    shutil.rmtree(cache.home / "sparkweb")
    blob.write_bytes(b"\0" * len(model.files[LARGE]))
    hub.damages[LARGE] = 2
    wish = cache.wish(hub)
    commit, _ = cache.resolve(wish)
    done = cache.run(scripts.fetch(wish), SPARKWEB_COMMIT=commit)
    assert done.stdout.splitlines()[-1].startswith("sparkweb: manifest_mismatch: ")
    cache.all(wish)
    cache.holds(model)


def test_a_hub_without_ranges_sends_a_file_anew(hub: Hub, model: Model, cache: Cache) -> None:
    hub.no_ranges = True
    hub.drops = {LARGE: [1000]}
    cache.all(cache.wish(hub))
    cache.holds(model)


def test_patterns_choose_and_a_second_fetch_adds(hub: Hub, model: Model, cache: Cache) -> None:
    cache.all(cache.wish(hub, include=("*.json", "original/*"), exclude=("*.bin",)))
    cache.holds(model, lambda name: name.endswith(".json"))
    before = dict(hub.sent)
    cache.all(cache.wish(hub, exclude=("*.md",)))
    cache.holds(model, lambda name: not name.endswith(".md"))
    assert all(hub.sent[name] == count for name, count in before.items())


def test_a_partial_file_of_another_tool_and_its_stale_lock_are_taken_over(hub: Hub, model: Model, cache: Cache) -> None:
    tag = etag(LARGE, model.files[LARGE])
    for folder in (cache.home / "blobs", cache.folder / ".locks" / cache.home.name):
        folder.mkdir(parents=True)
    (cache.home / "blobs" / f"{tag}.incomplete").write_bytes(model.files[LARGE][:400_000])
    (cache.folder / ".locks" / cache.home.name / f"{tag}.lock").touch()
    cache.all(cache.wish(hub))
    cache.holds(model)
    assert hub.sent[LARGE] == len(model.files[LARGE]) - 400_000


def test_a_list_of_many_pages_is_read_to_its_end(hub: Hub, cache: Cache) -> None:
    model = hub.add(REPO, {f"part/{n:04}.json": b"%d" % n for n in range(25)})
    hub.page = 7
    cache.all(cache.wish(hub, streams=8))
    cache.holds(model)


def test_names_that_lead_elsewhere_are_refused(hub: Hub, cache: Cache) -> None:
    for name in ("../../evil", "/etc/evil", "a/./b", "line\nbreak", "x\\y"):
        hub.add(REPO, {name: b"x", "config.json": b"{}"})
        done = cache.run(scripts.resolve(cache.wish(hub)))
        assert done.returncode == 1
        assert "sparkweb: bad_answer: " in done.stdout, name


def test_a_slash_in_a_branch(hub: Hub, model: Model, cache: Cache) -> None:
    model.branches["refs/pr/1"] = model.commit
    cache.all(cache.wish(hub, revision="refs/pr/1"))
    assert (cache.home / "refs/refs/pr/1").read_text() == model.commit


def test_a_folder_of_the_node_is_adopted(hub: Hub, model: Model, cache: Cache, tmp_path) -> None:
    folder = tmp_path / "mine"
    for name, data in model.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / ".cache").mkdir()
    (folder / ".cache/x.metadata").touch()
    wish = cache.wish(hub, folder=str(folder), revision=model.commit)
    for make in (scripts.adopt, scripts.publish):
        done = cache.run(make(wish), SPARKWEB_COMMIT=model.commit)
        assert done.returncode == 0, done.stdout + done.stderr
    manifest = cache.manifest(model)
    assert {one["path"] for one in manifest["files"]} == set(model.files)
    snapshot = cache.home / "snapshots" / model.commit
    assert all((snapshot / name).read_bytes() == data for name, data in model.files.items())
    assert hub.asked == []
