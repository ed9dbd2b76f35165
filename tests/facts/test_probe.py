"""The script in real shells, and reading back what a noisy road made of its output."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from apps.facts import probe
from apps.facts.fact import FACTS, Fact
from apps.facts.sheet import Evidence

NONCE = "n0nce4thetest"
SHELLS = [["/bin/sh"], ["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"], ["mksh"]]


def ran(text: str, shell: list[str] | None = None, env: dict[str, str] | None = None) -> bytes:
    chosen = shell or ["/bin/sh"]
    if shutil.which(chosen[0]) is None:
        pytest.skip(f"{chosen[0]} is not installed")
    done = subprocess.run([*chosen, "-s"], input=text.encode(), capture_output=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def with_facts(monkeypatch: pytest.MonkeyPatch, **scripts: tuple[int, str]) -> str:
    """The script of made-up facts: name=(limit, text)."""
    for name, (limit, text) in scripts.items():
        monkeypatch.setitem(
            FACTS, name, type(name, (Fact,), {"name": name, "reads": "", "script": text, "timeout_s": limit})
        )
    return probe.script(scripts, nonce=NONCE)


def leftovers() -> set[str]:
    return {str(path) for place in ("/dev/shm", "/tmp") for path in Path(place).glob("sparkweb.*")}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_whole_probe_in_each_shell(shell: list[str]) -> None:
    found = probe.read(NONCE, ran(probe.script(probe.PROBE, nonce=NONCE), shell))
    assert set(found) == set(probe.PROBE)
    sheet = probe.sheet_from("here", 0.0, found)
    assert sheet.machine is not None and sheet.machine.boot_id and sheet.machine.kernel == os.uname().release
    assert sheet.memory is not None and sheet.memory.total_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )
    assert sheet.machine.clock_unix_s is not None and abs(sheet.machine.clock_unix_s - time.time()) < 60
    assert sheet.disks and sheet.interfaces is not None
    root = next(disk for disk in sheet.disks if disk.mount == "/")
    assert root.size_bytes == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_outputs_exit_codes_and_errors_stay_apart(monkeypatch: pytest.MonkeyPatch, shell: list[str]) -> None:
    text = with_facts(
        monkeypatch,
        plain=(5, "echo one; echo 'two' >&2; exit 3"),
        bare=(5, "printf 'no newline'; printf 'at all' >&2"),
        empty=(5, ":"),
        bytes=(5, r"printf '\001\377\r\nx'"),
        hungry=(5, "cat"),
    )
    found = probe.read(NONCE, ran(text, shell))
    assert {name: (each.stdout, each.stderr, each.exit_code) for name, each in found.items()} == {
        "plain": ("one\n", "two\n", 3),
        "bare": ("no newline", "at all", 0),
        "empty": ("", "", 0),
        "bytes": ("\x01\ufffd\r\nx", "", 0),
        "hungry": ("", "", 0),
    }


@pytest.mark.parametrize("shell", [["/bin/sh"], ["busybox", "sh"]], ids=" ".join)
@pytest.mark.parametrize(
    "without", [(), ("timeout",), ("timeout", "setsid")], ids=lambda names: "-".join(names) or "all"
)
def test_a_hanging_section_delays_only_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: list[str], without: tuple[str, ...]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "sleep",
        "mktemp",
        "mkfifo",
        "cat",
        "head",
        "rm",
        "wc",
        "mv",
        "date",
        "busybox",
        "timeout",
        "setsid",
    ):
        if name not in without and shutil.which(name):
            (tools / name).symlink_to(os.path.realpath(shutil.which(name) or ""))
    text = with_facts(
        monkeypatch,
        quick=(9, "echo quick"),
        slow=(1, "echo begun; sleep 30 & wait"),
        deaf=(1, "trap '' TERM; sleep 30; echo late"),
    ).replace("PATH=$PATH:/usr/sbin:/sbin:/snap/bin", f"PATH={tools}")
    start = time.monotonic()
    found = probe.read(NONCE, ran(text, shell))
    assert time.monotonic() - start < 15
    assert found["quick"] == Evidence("quick\n", "", 0, False, found["quick"].seconds)
    assert (found["slow"].stdout, found["slow"].timed_out, found["slow"].exit_code) == ("begun\n", True, None)
    assert found["deaf"].timed_out
    assert probe.sheet_from("x", 0.0, found).memory is None


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leftovers()
    text = with_facts(monkeypatch, slow=(20, "echo begun; sleep 17.25"))
    child = subprocess.Popen(["/bin/sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(text.encode())
    child.stdin.close()
    deadline = time.monotonic() + 10
    while not leftovers() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    made = leftovers() - before
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    child.wait(10)
    child.stdout.close()
    assert made and not any(Path(path).exists() for path in made)


def test_noise_around_the_frames_is_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    out = ran(with_facts(monkeypatch, one=(5, "echo value")))
    noisy = b"Welcome!\r\nLast login\n" + NONCE.encode() + b" is no frame\n" + out + b"\nlogout\nMemTotal: 1 kB\n"
    found = probe.read(NONCE, noisy)
    assert found["one"].stdout == "value\n"
    assert probe.read(NONCE, out.replace(b"\n", b"\r\n"))["one"].stdout == "value\n"
    assert probe.read("another0nonce", out) == {}


def test_noise_inside_a_section_costs_that_section_only(monkeypatch: pytest.MonkeyPatch) -> None:
    out = ran(with_facts(monkeypatch, one=(5, "echo first; echo second"), two=(5, "echo other")))
    assert set(probe.read(NONCE, out.replace(b"first\n", b"first\nBroadcast message\n"))) == {"two"}


def test_a_cut_answer_gives_whole_sections_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    out = ran(with_facts(monkeypatch, one=(5, "printf aaa; printf bbb >&2"), two=(5, "printf ccc; printf '\\n' >&2")))
    whole = probe.read(NONCE, out)
    for at in range(len(out)):
        found = probe.read(NONCE, out[:at])
        assert all(whole[name] == each for name, each in found.items()), at


def test_the_login_locale_is_told_but_not_used() -> None:
    env = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}
    found = probe.read(NONCE, ran(probe.script(["machine"], nonce=NONCE), env=env))
    assert probe.sheet_from("x", 0.0, found).machine.locale == "de_DE.UTF-8"  # type: ignore[union-attr]


def test_what_the_caller_adds_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's $(touch x) a model"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"x" * 10)
    (folder / "config.json").write_text('{"model_type": "qwen3",\n "a": "|"}')
    found = probe.read(NONCE, ran(probe.script(["models"], nonce=NONCE, extra={"models": f"{folder}\n/not/there"})))
    models = {each.path: each for each in probe.sheet_from("x", 0.0, found).models or ()}
    model = models[str(folder)]
    assert (model.shards, model.shards_expected, model.complete, model.weights_bytes) == (1, 2, False, 10)
    assert model.missing == ("model-00002-of-00002.safetensors",)
    assert model.config == {"model_type": "qwen3", "a": "|"}
    assert "/not/there" not in models


def test_a_hub_cache_with_links_and_a_partial_download(tmp_path: Path) -> None:
    repository = tmp_path / ".cache/huggingface/hub/models--Qwen--Qwen3.5-122B"
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs/b1").write_bytes(b"1" * 100)
    (repository / "blobs/b2.incomplete").write_bytes(b"2" * 30)
    (snapshot / "model-00001-of-00002.safetensors").symlink_to("../../blobs/b1")
    (snapshot / "model-00002-of-00002.safetensors").symlink_to("../../blobs/b2")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"metadata": {"total_size": 180}, "weight_map": {"a": "model-00001-of-00002.safetensors",\n'
        ' "b": "model-00002-of-00002.safetensors"}}'
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    found = probe.read(NONCE, ran(probe.script(["models"], nonce=NONCE), env=env))
    (model,) = [each for each in probe.sheet_from("x", 0.0, found).models or () if each.path == str(snapshot)]
    assert model.name == "Qwen/Qwen3.5-122B"
    assert (model.shards, model.shards_expected, model.complete, model.partial_bytes, model.index_total_bytes) == (
        1,
        2,
        False,
        30,
        180,
    )
    (repository / "blobs/b2").write_bytes(b"2" * 100)
    found = probe.read(NONCE, ran(probe.script(["models"], nonce=NONCE), env=env))
    (model,) = [each for each in probe.sheet_from("x", 0.0, found).models or () if each.path == str(snapshot)]
    assert (model.complete, model.shards, model.weights_bytes) == (True, 2, 200)


def test_a_virtual_environment_is_read_without_python(tmp_path: Path) -> None:
    packages = tmp_path / "engine/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "engine/pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in (
        "vllm-0.17.1rc1.dist-info",
        "torch-2.9.1+cu130.dist-info",
        "nvidia_nccl_cu13-2.28.3.dist-info",
        "requests-2.0.dist-info",
    ):
        (packages / name).mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    found = probe.read(NONCE, ran(probe.script(["software"], nonce=NONCE), env=env))
    (inside,) = [
        each for each in probe.sheet_from("x", 0.0, found).software or () if each.where == f"venv:{tmp_path}/engine"
    ]
    assert inside.versions == {"vllm": "0.17.1rc1", "torch": "2.9.1+cu130", "nccl": "2.28.3"}


@pytest.mark.parametrize("nonce", ["", "short", "with space here", "x" * 65, "new\nline!!"])
def test_a_bad_nonce_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError, match="nonce"):
        probe.script(["machine"], nonce=nonce)


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        probe.script(["machine"], nonce=NONCE, extra={"a b": "c"})
    with pytest.raises(KeyError):
        probe.script(["machina"], nonce=NONCE)


def test_a_parser_that_fails_costs_only_its_own_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(evidence: Evidence) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(FACTS["memory"], "parse", broken)
    sections = {"memory": Evidence("MemTotal: 1 kB", "", 0), "machine": Evidence("hostname\tspark-1a32\n", "", 0)}
    sheet = probe.sheet_from("x", 0.0, sections)
    assert sheet.memory is None and sheet.machine is not None and sheet.machine.hostname == "spark-1a32"
    assert sheet.evidence["memory"].stdout == "MemTotal: 1 kB"


def test_a_place_without_room_is_not_worked_in() -> None:
    """A full tmpfs takes files and keeps them empty: answers would be lost without a word."""
    text = probe.script(["memory"], nonce=NONCE).replace("/dev/shm", "/nowhere").replace('"${TMPDIR:-/tmp}"', "/dev")
    assert "head -c" in text
    full = text.replace('>"$work/room"', ">/dev/full")
    done = subprocess.run(["/bin/sh", "-s"], input=full.encode(), capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.decode().strip()) == (73, f"{NONCE} failed no folder with room to write to")
