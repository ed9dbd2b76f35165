"""The benchmarks run, count what fails, and tell figures with units. Nothing here judges how long anything took."""

from __future__ import annotations

import io
import json
import shutil
import stat
from pathlib import Path

import pytest

from apps.diagnosis.explaining import explain as explained
from apps.facts import probe as facts
from apps.remote.ssh import written_out
from bench import __main__ as command
from bench import environment, explain, loadgen, logs, logs_viewers, measure, others, probe, replay, watch
from tests.openssh import SSHD, make_key

needs_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen: apt-get install openssh-client"
)
needs_sshd = pytest.mark.skipif(SSHD is None, reason="no OpenSSH server here: apt-get install openssh-server")


def test_the_recording_is_an_answer_to_the_probe_of_today() -> None:
    sections = facts.read(replay.NONCE.decode(), replay.ANSWER.read_bytes())
    assert set(facts.PROBE) <= set(sections), "the probe asks for more now: record anew with python -m bench.record"
    sheet = facts.sheet_from("node", 1.0, sections)
    assert sheet.machine is not None and sheet.memory is not None
    assert sheet.gpus is not None and sheet.containers and sheet.models


def test_a_replayed_answer_has_the_marker_and_the_nonce_that_were_asked_for() -> None:
    nonce, marker = "a1b2c3d4e5f6a1b2c3d4e5f6", "0123456789abcdef0123456789abcdef"
    sent = written_out(facts.script(facts.PROBE, nonce=nonce), b"", marker)
    stdout, stderr = replay.answered(sent, replay.ANSWER.read_bytes())
    assert stdout.startswith(marker.encode()) and stderr == marker.encode()
    assert replay.NONCE not in stdout
    assert set(facts.read(nonce, stdout)) >= set(facts.PROBE)


def test_a_script_that_is_no_probe_gets_no_recording() -> None:
    assert replay.answered(b"printf %s 00112233445566778899aabbccddeeff; echo\n", b"recording") == (
        b"00112233445566778899aabbccddeeff",
        b"00112233445566778899aabbccddeeff",
    )


@needs_keygen
def test_nodes_that_replay_are_probed_cold_and_warm(tmp_path: Path) -> None:
    private_key = make_key(tmp_path / "user")
    told = probe.of_replayed(2, 2, private_key, (tmp_path / "user.pub").read_text())
    assert told["failures"] == 0, told["failed"]
    for do in ("cold", "warm"):
        assert len(told[do]["samples_s"]) == 2 and told[do]["p50_s"] > 0
        assert told[do]["our_cpu_ms_per_node"] >= 0
    assert told["peak_rss_mib"] >= told["idle_rss_mib"] > 1


@needs_keygen
def test_a_node_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    private_key = make_key(tmp_path / "user")
    with probe.replaying(1, (tmp_path / "user.pub").read_text()) as (servers, told):
        nodes = [
            {
                "name": "here",
                "address": "127.0.0.1",
                "port": told["ports"][0],
                "user": "spark",
                "host_keys": [told["host_key"]],
            },
            {"name": "other-key", "address": "127.0.0.1", "port": told["ports"][0], "user": "spark", "host_keys": []},
        ]
        with probe.asking(private_key, nodes) as ours:
            failures = ours.ask("cold")["failures"]
            assert len(failures) == 1 and "other-key" in failures[0] and "host_key_unknown" in failures[0]
            assert len(ours.ask("warm", "line")["failures"]) == 1
    assert servers.poll() == 0  # the end of its input ended it


@needs_keygen
@needs_sshd
@pytest.mark.skipif(shutil.which("xargs") is None or shutil.which("ssh") is None, reason="no xargs or no ssh client")
def test_a_line_by_us_and_by_ssh_against_a_real_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "WORKS", {"line": others.WORKS["line"]})
    told = others.compared(tmp_path, nodes=2, runs=1, only_ssh=True)
    assert told["failures"] == 0, told["failed"]
    assert set(told["line"]) == {"ours_cold", "ours_warm", "ours_new_process", "ssh_loop"}


@needs_keygen
@needs_sshd
def test_an_answer_that_lacks_a_node_is_told(tmp_path: Path) -> None:
    with others.fleet(tmp_path, 2) as fleet:
        (tmp_path / "script.sh").write_text("echo something else\n")
        assert others.by_ssh(fleet, "line").startswith("ssh: 2 of 2 without an answer")


@needs_keygen
@needs_sshd
def test_pyinfra_and_ansible_that_can_not_be_installed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here() -> Path:
        raise measure.CannotMeasure("no package index answers")

    monkeypatch.setattr(environment, "ready", not_here)
    monkeypatch.setattr(others, "WORKS", {"line": others.WORKS["line"]})
    told = others.compared(tmp_path, nodes=1, runs=1)
    assert told["not_measured"] == dict.fromkeys(("pyinfra", "ansible_setup"), "no package index answers")
    assert "pyinfra" not in told["line"]


def test_others_count_the_nodes_that_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("pyinfra", "here\nhere\n"), ("ansible", "a | SUCCESS => {}\nb | UNREACHABLE! => {}\n")):
        (programs / name).write_text(f"#!/bin/sh\nprintf '{text}'\n")
        (programs / name).chmod(stat.S_IRWXU)
    fleet = others.Fleet(None, ("127.0.0.1", "127.0.0.2"), tmp_path, tmp_path / "key")  # type: ignore[arg-type]
    assert others.by_pyinfra(programs, fleet, "line") == ""
    assert others.by_ansible(programs, fleet, "probe").startswith("ansible: 1 of 2 answered")


def test_where_the_environment_lies() -> None:
    assert environment.folder_from({"SPARKWEB_CACHE": "/c", "VAR": "/v"}) == Path("/c/bench-venv")
    assert environment.folder_from({"VAR": "/v"}) == Path("/v/bench-venv")
    assert environment.folder_from({}) == environment.BASE / "var" / "bench-venv"


def test_an_environment_of_this_lock_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "installed.lock").write_bytes(environment.LOCK.read_bytes())
    assert environment.ready(tmp_path) == tmp_path / "bin"


def test_an_environment_that_can_not_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(measure.CannotMeasure, match=r"requirements-bench\.lock could not be installed"):
        environment.ready(tmp_path / "file" / "below")


def test_the_machine_is_told_without_its_name() -> None:
    told = measure.machine()
    assert told["cores"] >= 1 and told["memory_gib"] > 0 and len(told["load_average"]) == 3
    assert {"python", "openssh", "paramiko"} <= set(told["versions"])
    json.dumps(told)


def test_the_command_lists_names_and_refuses_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == [
        "takeover",
        "cancel",
        "probe",
        "watch",
        "logs",
        "loadgen",
        "explain",
    ]
    assert command.main(["nothing"]) == 2
    assert (
        "no benchmark is named nothing; there are: takeover, cancel, probe, watch, logs, loadgen, explain"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("figures", "code"), [({"failures": 0}, 0), ({"failures": 2}, 1), (None, 1)])
def test_the_command_prints_one_object_and_its_code_tells_of_failures(
    figures: dict[str, int] | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(quick: bool) -> dict[str, int]:
        assert quick
        if figures is None:
            raise measure.CannotMeasure("ssh-keygen is missing")
        return figures

    monkeypatch.setitem(command.BENCHMARKS, "probe", ("about", measured))
    assert command.main(["probe", "--quick"]) == code
    told = json.load(io.StringIO(capsys.readouterr().out))
    assert told["name"] == "probe" and told["machine"]["cores"] >= 1
    assert told.get("figures") == figures
    assert ("cannot_measure" in told) is (figures is None)


def test_percentiles_count_a_sample_as_often_as_it_weighs() -> None:
    told = logs.percentiles([(0.5, 90), (2.0, 9), (0.1, 0), (9.0, 1)])
    assert (told["p50_ms"], told["p95_ms"], told["p99_ms"], told["largest_ms"]) == (500, 2000, 2000, 9000)
    assert logs.percentiles([]) == {"largest_ms": None, "samples": 0}


def test_a_viewer_finds_gaps_and_doubled_lines() -> None:
    def frame(*numbers: int) -> str:
        rows = [{"n": n, "time": "t", "text": f"1796062499.000001 {n:08d} words"} for n in numbers]
        return json.dumps({"type": "lines", "lines": rows}, separators=(",", ":"))

    viewer = logs_viewers.Viewer()
    viewer._take(frame(1, 2, 3))
    viewer._take(frame(4))
    viewer._take('{"type":"changed","object":"run","id":1}')
    viewer._take('{"type":"lines","lines":[]}')
    assert (viewer.gaps, viewer.last, viewer.lines, len(viewer.samples)) == (0, 4, 4, 4)
    viewer._take(frame(6, 7))
    viewer._take(frame(7, 8))
    viewer._take(frame(9, 11))
    assert viewer.gaps == 3


def test_the_recording_is_an_answer_to_the_look_of_today() -> None:
    text = facts.script(facts.WATCH, nonce="b" * 24, extra={"apis": "", "missed": ""}).encode()
    out, _ = replay.answered(text, watch.recording())
    sections = facts.read("b" * 24, out)
    assert set(sections) == set(facts.WATCH)
    sheet = facts.sheet_from("node", 1.0, sections)
    assert sheet.machine and sheet.apis and sheet.apis[0].tokens == 1234.0 and sheet.interfaces and sheet.listeners
    assert "vllm_node" in {one.name for one in sheet.containers or ()}


@needs_keygen
@pytest.mark.timeout(300)
def test_cycles_of_the_watch(capsys: pytest.CaptureFixture[str]) -> None:
    told = watch.measured(quick=True)
    assert told["failures"] == 0, capsys.readouterr().err
    all_answer = told["all_answer"]
    assert all_answer["serving_at_last"] == all_answer["deployments"] == 2 and all_answer["cpu_s_per_cycle"] > 0
    assert all_answer["thin"]["points"] == 4 * (1 + 3) and all_answer["rss_mib"]["last"] > 10


@needs_keygen
@needs_sshd
@pytest.mark.timeout(300)
def test_lines_from_a_node_to_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    told = logs.measured(quick=True)
    assert told["failures"] == 0, capsys.readouterr().err
    assert told["stored"]["lines"] == 20_000 and told["stored"]["worker_rss_mib"]["peak"] > 1
    assert [one["to_sockets"]["samples"] > 0 for one in told["shown"]] == [True]
    assert told["compared"]["storage"]["one_row_per_line"]["mib"] > 0


@pytest.mark.parametrize("name", sorted(set(explain.FAMILIES) - {"blank", "nothing_said", "words"}))
def test_a_log_of_its_kind_has_no_line_twice_and_means_something(name: str) -> None:
    entries = [explain.FAMILIES[name](number) for number in range(1500)]
    assert len(set(entries)) == len(entries)
    assert explained("".join(entries).encode()).kind != "unknown"


def test_three_families_say_nothing_at_all() -> None:
    for name in ("blank", "nothing_said", "words"):
        told = explained("".join(explain.FAMILIES[name](number) for number in range(1500)).encode())
        assert told.kind == "unknown", name
    for name in ("nothing_said", "words"):
        assert len({explain.FAMILIES[name](number) for number in range(1500)}) == 1500


def test_explain_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    case = "110-rsync-progress2-carriage-returns"
    text = explain._cases()[case]
    monkeypatch.setattr(explain, "QUICK", 200_000)
    monkeypatch.setattr(explain, "_cases", lambda: {case: text})
    monkeypatch.setattr(explain, "_facts", lambda: ["ray"])
    monkeypatch.setattr(explain, "FAMILIES", {"kernel": explain.FAMILIES["kernel"]})
    told = explain.measured(True)
    assert told["input_bytes"] == 200_000 and told["failures"] == 0
    (of_case,), (of_family,), (of_fact,) = told["explain_cases"], told["explain_all_different"], told["parse"]
    assert of_case["case"] == case and of_case["lines"] > 3000 and of_case["cpu_s"] > 0
    assert of_family["family"] == "kernel" and of_family["lines"] > 1000 and of_family["peak_rss_mib"] > 5
    assert of_fact["fact"] == "ray" and of_fact["many_inputs_cpu_s"] > 0


def test_the_load_generator_keeps_to_a_schedule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadgen, "TOP_TOKENS", 20)
    told = loadgen.measured(True)
    assert told["failures"] == 0, capsys.readouterr().err
    assert [row["concurrency"] for row in told["schedule"]["levels"]] == [1, 2]
    assert {row["errors"] for row in told["schedule"]["levels"]} == {0}
    assert told["top"]["loadgen"]["tok_s"] > 0 and told["top"]["others"]["httpx"]["tok_s"] > 0
