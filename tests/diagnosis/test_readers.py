"""Readers give the same for any chunking, never fall back, never raise, and stay small whatever they are fed."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis import explaining, sglang, vllm
from apps.diagnosis.explaining import BOOK, Explainer, as_json, explain, explain_all, main
from apps.diagnosis.lines import Splitter, bars, origin_of
from apps.diagnosis.reading import Reading

CASES = sorted((Path(__file__).parent.parent / "cases").glob("*/input.*"))
LOGS = [path.read_bytes() for path in CASES]
BITS = st.sampled_from(sorted({line for log in LOGS for line in re.split(rb"(?<=[\r\n])", log)}))
NOISE = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"\x1b[0;36m", b"\x1b[", b"---8<---\n", b"# node 1\n", b"# node 2\r\n", b"{", b"[{"]
    ),
)
OUTPUT = st.lists(st.one_of(BITS, NOISE), max_size=25).map(b"".join)
CUTS = st.lists(st.integers(0, 20_000), max_size=10)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def explained(data: bytes, cuts: list[int]) -> list[dict[str, object]]:
    explainer = Explainer()
    for piece in pieces(data, cuts):
        explainer.feed(piece)
    explainer.close()
    return [as_json(reading) for reading in explainer.readings()]


@given(OUTPUT, CUTS)
@settings(max_examples=150, deadline=None)
def test_any_chunking_explains_the_same(data: bytes, cuts: list[int]) -> None:
    assert explained(data, cuts) == explained(data, [])


@given(st.sampled_from(LOGS), CUTS, st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_handed_cases_cut_anywhere(log: bytes, cuts: list[int], end: int) -> None:
    log = log[: end % (len(log) + 1)]
    whole = explained(log, [])
    assert whole and explained(log, cuts) == whole


@given(OUTPUT, CUTS)
@settings(max_examples=100, deadline=None)
def test_overall_never_falls_and_looking_changes_nothing(data: bytes, cuts: list[int]) -> None:
    watched, silent = vllm.Reader(), vllm.Reader()
    before = 0.0
    for piece in pieces(data, cuts):
        watched.feed(piece)
        progress = watched.reading().progress
        assert progress is not None and before <= progress.overall <= 1.0
        before = progress.overall
    silent.feed(data)
    assert watched.reading() == silent.reading()
    watched.close()
    silent.close()
    assert watched.reading() == silent.reading()
    assert before <= watched.reading().progress.overall  # type: ignore[union-attr]


@given(st.binary(max_size=2000))
@settings(max_examples=150, deadline=None)
def test_any_bytes_exit_0(data: bytes) -> None:
    out = io.StringIO()
    assert main([], io.BytesIO(data), out) == 0
    json.loads(out.getvalue())


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    [
                        "rc",
                        "stderr",
                        "stdout",
                        "status",
                        "body",
                        "choices",
                        "message",
                        "content",
                        "error",
                        "data",
                        "id",
                        "object",
                        "cmd",
                        "command",
                        "delta",
                        "usage",
                    ]
                ),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_json_exits_0(value: object) -> None:
    out = io.StringIO()
    assert main([], io.BytesIO(json.dumps(value).encode()), out) == 0
    json.loads(out.getvalue())


@pytest.mark.parametrize("name", ["063", "065", "070", "074", "094"])
@pytest.mark.parametrize("change", ["crlf", "ansi"])
def test_line_ends_and_colours_do_not_matter(name: str, change: str) -> None:
    log = next(path for path in CASES if path.parent.name.startswith(name)).read_bytes()
    changed = (
        log.replace(b"\n", b"\r\n")
        if change == "crlf"
        else re.sub(rb"(?m)^(?=[(I\[])", b"\x1b[0;36m\x1b[1m", log).replace(b"\n", b"\x1b[0m\n")
    )
    before, after = explain_all(log)[0], explain_all(changed)[0]
    assert after.facts == before.facts and after.progress == before.progress
    assert [(entry.name, entry.values) for entry in after.milestones] == [
        (entry.name, entry.values) for entry in before.milestones
    ]


def load(shards: int, done: int, prefix: str = "(Worker_TP0 pid=7) ") -> str:
    bar = f"{100 * done // shards:3d}% Completed | {done}/{shards} [00:{done:02d}<00:10,  1.00s/it]"
    return f"{prefix}Loading safetensors checkpoint shards: {bar}\r"


@given(st.integers(1, 40), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_interleaved_ranks(shards: int, chance: object) -> None:
    ranks = {0: list(range(shards + 1)), 1: list(range(shards + 1)), 2: list(range(shards // 2 + 1))}
    text, order = "", [rank for rank, counts in ranks.items() for _ in counts]
    chance.shuffle(order)  # type: ignore[attr-defined]
    for rank in order:
        text += load(shards, ranks[rank].pop(0), f"(Worker_TP{rank} pid={rank + 10}) ")
    reading = vllm.read(text.encode())
    assert {rank: progress.done for rank, progress in reading.ranks.items()} == {0: shards, 1: shards, 2: shards // 2}
    assert reading.progress is not None and reading.progress.done == (shards // 2 if shards // 2 < shards else shards)


@pytest.mark.parametrize("shards", [7, 39, 161])
def test_progress_follows_the_shards(shards: int) -> None:
    reader = vllm.Reader()
    reader.feed(b"INFO 05-07 02:13:46 [gpu_model_runner.py:1329] Starting to load model /m...\n")
    seen = []
    for done in range(shards + 1):
        reader.feed(load(shards, done).encode())
        progress = reader.reading().progress
        assert progress is not None and (progress.done, progress.total, progress.unit) == (done, shards, "shards")
        seen.append(progress.overall)
    assert seen == sorted(seen) and seen[-1] == pytest.approx(0.8)


def test_the_last_frame_counts_before_its_line_ends() -> None:
    reader = vllm.Reader()
    reader.feed(load(39, 16).encode() + load(39, 17).rstrip("\r").encode())
    assert reader.reading().progress.done == 17  # type: ignore[union-attr]


def test_ray_workers_get_their_ranks() -> None:
    head, worker = "(RayWorkerWrapper pid=301) ", "(RayWorkerWrapper pid=77, ip=192.168.200.13) "
    said = "INFO 01-01 00:00:01 [parallel_state.py:1] rank {} in world size 2 is assigned as DP rank 0, PP rank 0\n"
    memory = "CUDA out of memory. Tried to allocate 288.00 MiB. GPU 0 has a capacity of 23.55 GiB."
    log = head + said.format(0) + worker + said.format(1) + load(39, 5, head) + load(39, 3, worker)
    log += f"{worker}torch.OutOfMemoryError: {memory}\n"
    reading = vllm.read(log.encode())
    assert reading.ranks[0].done == 5 and reading.ranks[1].done == 3
    assert reading.failure is not None and reading.failure.rank == 1 and reading.failure.reason == "oom_gpu"


def test_the_first_cause_is_shown_not_the_last_echo() -> None:
    log = b"""(Worker_TP1 pid=2) ERROR 01-01 00:00:01 [x.py:1] ValueError: something nobody has seen before
(EngineCore pid=1) ERROR 01-01 00:00:02 [x.py:1] Exception: WorkerProc initialization failed due to an exception.
(APIServer pid=1) Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
    failure = vllm.read(log).failure
    assert (
        failure is not None
        and failure.reason == "exited"
        and failure.line_number == 1
        and "nobody has seen" in failure.evidence
        and failure.rank == 1
    )


def test_an_exception_that_was_overcome_is_no_failure() -> None:
    log = b"ValueError: tried something else\nCUDA error: out of memory\nINFO:     Application startup complete.\n"
    reading = vllm.read(log)
    assert reading.ready and reading.failure is None


def test_a_suspect_is_a_failure_only_where_the_output_ends_with_it() -> None:
    reader = vllm.Reader()
    reader.feed(b"ValueError: perhaps harmless\n")
    assert reader.reading().failure is None
    reader.close()
    failure = reader.reading().failure
    assert failure is not None and failure.reason == "exited" and failure.values["confidence"] == "low"
    went_on = b"ValueError: perhaps harmless\nINFO Model loading took 1.0 GiB memory and 1.0 seconds\n"
    assert vllm.read(went_on).failure is None


def test_evidence_is_masked() -> None:
    failure = vllm.read(b"vllm: error: unrecognized arguments: --foo --api-key sesame-open\n").failure
    assert failure is not None and "sesame" not in failure.evidence


def test_memory_stays_small() -> None:
    reader = vllm.Reader()
    for number in range(30_000):
        reader.feed(
            f"(Worker_TP{number} pid={number}) INFO Model loading took {number} GiB memory and 1.0 seconds\n".encode()
        )
    reading = reader.reading()
    assert len(reading.milestones) <= 400 and len(reading.ranks) <= 1024


@pytest.mark.parametrize(
    "line",
    [
        b"INFO Loading weights took 1.2.3 seconds",
        b"Model loading took ... GiB memory",
        b"GPU KV cache size: ,,, tokens",
        b"# GPU blocks: 1, # CPU blocks: 2",
        b"GPU KV cache size: " + b"9" * 5000 + b" tokens",
        b"rank 1 in world size 99999 is assigned as",
        b"Maximum concurrency for 1,0 tokens per request: ...x",
        b"CUDA out of memory. Tried to allocate . MiB.",
    ],
)
def test_figures_that_are_none(line: bytes) -> None:
    assert isinstance(vllm.read(line), Reading)


def test_inputs_between_separators() -> None:
    out = io.StringIO()
    assert (
        main(
            [],
            io.BytesIO(b"INFO:     Application startup complete.\n---8<--- second\nsudo: a password is required\n"),
            out,
        )
        == 0
    )
    first, second = json.loads(out.getvalue())
    assert (
        first["ready"] is True
        and second["failure"]["reason"] == "sudo_denied"
        and second["failure"]["line_number"] == 1
    )


def test_explain_gives_one_reading() -> None:
    failure = explain([b"fine\n---8<---\nsudo: a pass", b"word is required\n"]).failure
    assert failure is not None and failure.reason == "sudo_denied"
    assert explain(b"").kind == "unknown"


def test_a_separator_inside_a_line_separates_nothing() -> None:
    assert len(explain_all(b"x ---8<--- y\n")) == 1


def test_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")], io.BytesIO(), io.StringIO()) == 2
    assert main([str(tmp_path)], io.BytesIO(), io.StringIO()) == 2
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "log").write_bytes(b"sudo: a password is required\n")
    out = io.StringIO()
    assert main([str(tmp_path / "log")], io.BytesIO(), out) == 0
    assert set(json.loads(out.getvalue())) == {
        "kind",
        "milestones",
        "progress",
        "ready",
        "failure",
        "warnings",
        "facts",
    }


def test_sglang_shards_and_ranks() -> None:
    log = b"[2026-03-05 20:44:10 TP0] Load weight begin. avail mem=93.99 GB\n" + load(4, 3, "").encode()
    reading = sglang.read(log)
    assert reading.progress is not None and reading.progress.done == 3 and reading.progress.phase == "loading"


@pytest.mark.parametrize(
    ("log", "ready", "facts"),
    [
        (
            b"llama_model_loader: loaded meta data with 36 key-value pairs and 579 tensors from /m/q.gguf (version "
            b"GGUF V3)\n"
            b"load_tensors:        CUDA0 model buffer size = 18508.35 MiB\nllama_context: n_ctx         = 32768\n"
            b"llama_kv_cache_unified: size = 3072.00 MiB ( 32768 cells)\nmain: model loaded\n"
            b"main: server is listening on http://127.0.0.1:8080 - starting the main loop\nsrv  update_slots: all "
            b"slots are idle\n",
            True,
            {"tensors": 579, "max_len": 32768, "kv_gib": 3.0, "port": 8080},
        ),
        (
            b"llama_model_load: error loading model: unknown model architecture: 'qwen99'\nmain: exiting due to "
            b"model loading error\n",
            False,
            {"architecture": "qwen99"},
        ),
    ],
)
def test_llamacpp(log: bytes, ready: bool, facts: dict[str, object]) -> None:
    reading = explain_all(log)[0]
    assert reading.kind == "llamacpp" and reading.ready is ready
    assert facts.items() <= reading.facts.items()
    assert ready or (reading.failure is not None and reading.failure.reason == "unsupported_model")


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        (b"a:1:2 [0] NCCL INFO Using network IBext_v11", "RDMA"),
        (b"a:1:2 [0] NCCL INFO Using network IB", "RDMA"),
        (b"a:1:2 [0] NCCL INFO Using network Socket", "Socket"),
        (b"a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v11/0/GDRDMA", "RDMA"),
    ],
)
def test_transport(line: bytes, transport: str) -> None:
    reading = vllm.read(b"(RayWorkerWrapper pid=1) " + line + b"\n")
    assert reading.facts["transport"] == transport
    assert any(warning["severity"] == "warning" for warning in reading.warnings) is (transport == "Socket")
    assert reading.failure is None


def alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top level."""
    found, depth, in_class, at = [""], 0, False, 0
    while at < len(pattern):
        letter = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(letter)
        if in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and depth == 0:
            found.append("")
            continue
        found[-1] += letter
    return found


NOT_IN_ITS_PATTERN = {"threshold"}  # stands later in the same sentence


def test_every_trigger_stands_in_every_alternative_of_its_pattern() -> None:
    """A rule whose trigger is not a word of the lines it is meant for would never be tried."""
    for table in (BOOK.rules, BOOK.signs):
        for word, entries in table.items():
            assert word in (b"%", b"%|", b" ") or re.fullmatch(r"[a-z0-9_]+|█", word.decode())
            for entry, _ in entries:
                triggers = set(entry.trigger.split())
                if (
                    not triggers
                    or "%" in entry.trigger
                    or "█" in entry.trigger
                    or not entry.pattern.pattern
                    or triggers & NOT_IN_ITS_PATTERN
                ):
                    continue
                for alternative in alternatives(entry.pattern.pattern):
                    plain = re.sub(r"\\[a-z]", " ", re.sub(r"\[(\w)(\w)\]", r"\2", alternative.lower()))
                    assert triggers & set(re.sub(r"[^a-z0-9_]+", " ", plain).split()), (entry.trigger, alternative)


def test_splitter_and_bars() -> None:
    splitter = Splitter()
    assert splitter.feed(b"a\r") == [b"a"] and splitter.feed(b"\nb\r\rc") == [b"b", b""] and splitter.close() == [b"c"]
    frame = next(bars("Loading x:  50% Completed | 2/4 [00:10<00:10,  5.00s/it]"))
    assert (frame.label, frame.percent, frame.done, frame.total, frame.seconds_per_item) == ("Loading x", 50, 2, 4, 5.0)
    assert origin_of("(VllmWorker rank=1 pid=222) INFO x")[0].rank == 1
    assert origin_of("(EngineCore_DP0 pid=2) x")[1] == "x"
    assert explaining.MOST_INPUTS == 1000


STARTS = (
    b"(APIServer pid=1) INFO 02-03 10:11:42 [api_server.py:1] vLLM API server version 0.17.1\n",
    b"[2026-02-03 10:11:42] server_args=ServerArgs(model_path='/m', tp_size=1)\n",
)
READY = (
    b"INFO:     Application startup complete.\n",
    b"[2026-02-03 10:13:42] The server is fired up and ready to roll!\n",
)


@pytest.mark.parametrize(("start", "ready"), zip(STARTS, READY, strict=True), ids=["vllm", "sglang"])
def test_a_container_that_was_restarted_is_not_ready_until_it_says_so_again(start: bytes, ready: bytes) -> None:
    first = explain(start + ready)
    again = explain(start + ready + start)
    once_more = explain(start + ready + start + ready)
    assert (first.ready, again.ready, once_more.ready) == (True, False, True)
    assert "restarts" not in first.facts
    assert again.facts["restarts"] == 1
    assert [one["name"] for one in again.warnings] == ["restarted"]
    assert again.progress is not None and first.progress is not None
    assert again.progress.phase == "starting"
    assert again.progress.overall >= first.progress.overall


def test_parts_beyond_the_most_are_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their readings would be thrown away; a hundred megabytes of labels used to take a minute."""
    made: list[explaining.AnyReader] = []

    class Counted(explaining.AnyReader):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(explaining, "AnyReader", Counted)
    parts = [b"# node%d\nnothing here\n" % number for number in range(explaining.MOST_LABELLED)]
    late = [b"# late%d\nUvicorn running on http://0.0.0.0:8000\n" % number for number in range(500)]
    reading = explain(b"".join([*parts, *late, b"---8<---\n", b"# again\nUvicorn running on http://0.0.0.0:8000\n"]))
    assert not reading.ready and "late0" not in reading.facts and "node63" in reading.facts
    assert len(made) == 1 + explaining.MOST_LABELLED + 2
    assert explain_all(b"".join([*parts, *late, b"---8<---\n", b"# again\n", *late[0].splitlines(True)[1:]]))[1].ready


@pytest.mark.parametrize(
    "process", ["Worker_TP0 pid=7", "Worker_TP1 pid=8", "Worker_TP12 pid=9", "EngineCore_DP3 pid=98"]
)
def test_the_log_of_any_rank_alone_is_an_engines(process: str) -> None:
    assert explain(b"(%s) something nobody has a rule for\n" % process.encode()).kind == "vllm"


def test_the_same_arguments_once_more_say_nothing_new() -> None:
    start = b"(APIServer pid=1) INFO 11-30 10:00:00 [utils.py:1] vLLM API server version 0.14.0\n"
    first = (
        b"(APIServer pid=1) INFO 11-30 10:00:01 [utils.py:2] non-default args: {'model': 'a/b', 'api_key': ['sk-abcdefghijklmnopqrst'],"
        b" 'tensor_parallel_size': 2, 'speculative_config': {'method': 'mtp'}}\n"
    )
    other = first.replace(b"'tensor_parallel_size': 2", b"'port': 8001")
    ready = b"(APIServer pid=1) INFO:     Application startup complete.\n"
    once = vllm.read(start + first + other)
    assert once.facts["secret_redacted"] is True and (once.facts["tp"], once.facts["port"]) == (2, 8001)
    again = vllm.read((start + first + ready) * 3 + start + first + other)
    assert {name: again.facts[name] for name in ("tp", "port", "model", "secret_redacted")} == {
        name: once.facts[name] for name in ("tp", "port", "model", "secret_redacted")
    }
    assert [entry.name for entry in again.milestones].count("arguments") == 5
