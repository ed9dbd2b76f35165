"""Explain any output: recognise its kind, read it, and say what it means. `manage.py explain [FILE]`.

Takes the output itself, several of them between lines of `---8<---`, or JSON: one observation {command, rc, stdout,
stderr} or
{status, body}, a list of them, or API answers by name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from apps.diagnosis import api, host, llamacpp, nccl, ray, sglang, ssh, transfers, vllm
from apps.diagnosis.book import Book
from apps.diagnosis.following import LogReader
from apps.diagnosis.masking import mask_text
from apps.diagnosis.reading import Failure, Reading
from apps.diagnosis.reasons import REASONS
from apps.diagnosis.signs import ENGINE_SIGNS

BOOK = Book.of(
    (*vllm.RULES, *sglang.RULES, *llamacpp.RULES, *nccl.RULES, *ray.RULES, *transfers.RULES, *ssh.RULES, *host.RULES),
    (*transfers.SIGNS, *ssh.SIGNS, *host.SIGNS, *nccl.SIGNS, *ray.SIGNS, *llamacpp.SIGNS, *ENGINE_SIGNS),
)
MOST_JSON = 4 * 1024 * 1024  # bytes of one input that are held to be read as JSON; a longer one is read as a log
MOST_INPUTS = 1000
MOST_LABELLED = 64  # parts of one input that are read, by their labels
_CHUNK = 1 << 20
_SEPARATOR = b"---8<---"
_LABEL = re.compile(
    rb"#[ \t](?P<name>(?:node\s?\w+|rank\s?\d+|w\d+|head|worker\s?\d*)\b(?=[^\r\n]*)|[A-Za-z0-9][\w.-]{0,31}(?=[ \t]*(?:[\r\n]|\Z)))"
    rb"[^\r\n]*(?:\r\n|\r|\n|\Z)"
)
_STREAM_BEGINS = re.compile(rb"\s*(?:(?::|event:|id:|retry:)[^\r\n]*\r?\n\s*){0,8}data: ?(?:\{|\[DONE\])")
_HTTP_HEAD = re.compile(
    rb"\s*HTTP/[\d.]{1,4} (?P<status>[1-5]\d\d)[^\r\n]{0,80}\r?\n(?:[\w-]{1,80}:[^\r\n]{0,2000}\r?\n){0,60}\r?\n"
)
_JSON_BEGINS = re.compile(rb"\s*(?:\{\s*(?:\"|\}|\Z)|\[\s*(?:\{|\]|\Z))")


class AnyReader:
    """One input of unknown kind. Bytes that begin like JSON or an event stream are held (up to MOST_JSON) until
    `close`."""

    def __init__(self) -> None:
        self._start = b""  # what came before the way of reading was chosen
        self._held: bytearray | None = None
        self._log: LogReader | None = None
        self._stream: api.StreamReader | None = None
        self._readings: list[Reading] = []
        self._status: int | None = None  # of the HTTP answer whose head stood before the body

    def feed(self, data: bytes) -> None:
        if self._log is None and self._held is None and self._stream is None:
            self._start += data
            if len(self._start) < (4096 if self._start.lstrip().startswith(b"HTTP/") else 256):
                return
            data, self._start = self._choose(self._start), b""
        self._pass(data)

    def close(self) -> None:
        if self._log is None and self._held is None and self._stream is None:
            self._pass(self._choose(self._start))
        if self._held is not None:
            found = _from_json(bytes(self._held), self._status)
            if found is None:
                self._give_up_json()
            else:
                self._readings = found
        if self._stream is not None:
            self._stream.close()
            self._readings = [_from_verdict(self._stream.verdict(), partial=self._stream.partial)]
        if self._log is not None:
            self._log.close()

    def readings(self) -> list[Reading]:
        """What was found; more than one where the input is a list of observations."""
        if self._log is not None:
            return [self._log.reading()]
        return self._readings or [Reading("unknown")]

    def _choose(self, start: bytes) -> bytes:
        plain = start.removeprefix(b"\xef\xbb\xbf")
        answer = _HTTP_HEAD.match(plain)
        if answer is not None and _JSON_BEGINS.match(plain, answer.end()):
            self._status = int(answer["status"])
            self._held, plain = bytearray(), plain[answer.end() :]
        elif answer is not None and answer["status"] == b"200" and _STREAM_BEGINS.match(plain, answer.end()):
            self._stream, plain = api.StreamReader(), plain[answer.end() :]
        elif _JSON_BEGINS.match(plain):
            self._held = bytearray()
        elif _STREAM_BEGINS.match(plain):
            self._stream = api.StreamReader()
        else:
            self._log = LogReader(BOOK)
        return plain

    def _pass(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
            if len(self._held) > MOST_JSON:
                self._give_up_json()
        elif self._stream is not None:
            self._stream.feed(data)
        elif self._log is not None:
            self._log.feed(data)

    def _give_up_json(self) -> None:
        self._log = LogReader(BOOK)
        self._log.feed(bytes(self._held or b""))
        self._held = None


class Explainer:
    """Explain a stream that may hold several inputs. The result depends on the bytes alone, never on how they were
    cut."""

    def __init__(self) -> None:
        self._held = b""  # the line that has not ended, while it may still be a separator or a label
        self._line_begins = True
        self._done: list[Reading] = []
        self.separated = False
        self._begin()

    def _begin(self) -> None:
        self._labelled: list[tuple[str, AnyReader]] = []
        self._reader: AnyReader | None = AnyReader()  # None: what comes belongs to no part that is read
        self._any = False

    def feed(self, data: bytes) -> None:
        if len(self._done) >= MOST_INPUTS:
            return
        data = self._held + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if data.endswith(b"\r"):  # a \n may follow and belong to it
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if len(data) - cut > 4096 and not self._may_be_mark(
            data[cut : cut + 16], at_start=cut > 0 or self._line_begins
        ):
            cut = len(data)
        self._held = data[cut:]
        self._lines(data[:cut])

    def close(self) -> None:
        self._lines(self._held)
        self._held = b""
        self._end()

    def readings(self) -> list[Reading]:
        return self._done

    @staticmethod
    def _may_be_mark(start: bytes, *, at_start: bool) -> bool:
        return at_start and (start.startswith(_SEPARATOR) or start.startswith(b"# "))

    def _lines(self, block: bytes) -> None:
        at = 0
        while at < len(block):
            separator = self._find(block, at)
            if separator < 0:
                self._text(block[at:])
                break
            self._text(block[at:separator])
            end = _end_of_line(block, separator)
            self.separated = True
            self._end()
            self._begin()
            at = end
        if block:
            self._line_begins = block.endswith((b"\n", b"\r"))

    def _find(self, block: bytes, at: int) -> int:
        """Where the next separator line begins, or -1."""
        while (found := block.find(_SEPARATOR, at)) >= 0:
            if block[found - 1 : found] in (b"\n", b"\r") if found else self._line_begins:
                return found
            at = found + 1
        return -1

    def _text(self, data: bytes) -> None:
        if not data:
            return
        if not self._any:
            blank = len(data) - len(data.lstrip(b" \t\x0b\x0c\r\n"))
            blank = max(data.rfind(b"\n", 0, blank), data.rfind(b"\r", 0, blank)) + 1
            if blank:
                self._read(data[:blank])
                data = data[blank:]
            if not data:
                return
            self._any = True
            label = _LABEL.match(data)
            if label is not None:
                self._label(label)
                data = data[label.end() :]
        if not self._labelled:
            self._read(data)
            return
        self._labelled_text(data)

    def _read(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data)

    def _label(self, label: re.Match[bytes]) -> None:
        if len(self._labelled) >= MOST_LABELLED:
            self._reader = None
            return
        self._reader = AnyReader()
        self._labelled.append((re.sub(r"\s", "", label["name"].decode()), self._reader))

    def _labelled_text(self, data: bytes) -> None:
        at = 0
        for label in _LABEL.finditer(data):
            if label.start() and data[label.start() - 1 : label.start()] not in (b"\n", b"\r"):
                continue
            if not label.start() and not self._line_begins:
                continue
            self._read(data[at : label.start()])
            self._label(label)
            at = label.end()
        self._read(data[at:])

    def _end(self) -> None:
        if len(self._done) >= MOST_INPUTS:
            return
        if self._labelled:
            for _, reader in self._labelled:
                reader.close()
            parts = [(name, reader.readings()[0]) for name, reader in self._labelled]
            if all(name.isdecimal() for name, _ in parts):  # numbers count outputs, names tell nodes apart
                self.separated = True
                self._done.extend(reading for _, reading in parts[: MOST_INPUTS - len(self._done)])
            else:
                self._done.append(_together(parts))
            return
        assert self._reader is not None  # without labels there is one part, and it is read
        self._reader.close()
        self._done.extend(self._reader.readings()[: MOST_INPUTS - len(self._done)])


def _end_of_line(block: bytes, at: int) -> int:
    ends = [end for end in (block.find(b"\n", at), block.find(b"\r", at)) if end >= 0]
    if not ends:
        return len(block)
    end = min(ends)
    return end + 2 if block[end : end + 2] == b"\r\n" else end + 1


def _together(parts: Sequence[tuple[str, Reading]]) -> Reading:
    """The outputs of several nodes of one launch: the first that failed speaks for all; facts of each stand under its
    label."""
    main = next((reading for _, reading in parts if reading.failure is not None), parts[0][1])
    facts: dict[str, Any] = dict(main.facts)
    for name, reading in parts:
        facts[name] = dict(reading.facts)
    ranks = {rank: progress for _, reading in parts for rank, progress in reading.ranks.items()}
    return replace(main, facts=facts, ranks=ranks)


# ---- JSON ------------------------------------------------------------------------------------------------------------
# ----------------


def _from_json(data: bytes, http_status: int | None = None) -> list[Reading] | None:
    """Readings of JSON that is an observation, several, or API answers; None when it is something else."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if http_status is not None:
        return [_answered(http_status, parsed)]
    if isinstance(parsed, list):
        rows = [row for row in parsed if isinstance(row, Mapping)]
        if not rows or len(rows) != len(parsed) or not all(_is_observation(row) for row in rows):
            return None
        return [_observed(row) for row in rows[:MOST_INPUTS]]
    if not isinstance(parsed, Mapping):
        return None
    if _is_observation(parsed):
        return [_observed(parsed)]
    if parsed and all(isinstance(value, Mapping) and _is_observation(value) for value in parsed.values()):
        return [_by_name({str(name): _observed(value) for name, value in parsed.items()})]
    return None


def _is_observation(row: Mapping[str, Any]) -> bool:
    return bool({"rc", "exit_code", "stderr", "status", "choices", "error", "data", "detail"} & row.keys()) or row.get(
        "object"
    ) in ("list", "error")


def _observed(row: Mapping[str, Any]) -> Reading:
    command = str(row.get("cmd") or row.get("command") or "")
    if "rc" in row or "exit_code" in row or "stderr" in row or "stdout" in row:
        code = row.get("rc", row.get("exit_code"))
        if re.search(r"\bcurl\b", command):
            return _curled(row, code if isinstance(code, int) else 1)
        return _ran(row, command, code)
    if "status" in row and not isinstance(row["status"], int):
        return Reading("unknown")
    status, body = (row["status"], row.get("body")) if "status" in row else (200, row)
    return _answered(status, body)


def _curled(row: Mapping[str, Any], code: int) -> Reading:
    """curl that got an answer printed it; without one its exit code tells why."""
    printed = row.get("stdout")
    if code == 0 and isinstance(printed, str) and printed.strip():
        reader = AnyReader()
        reader.feed(printed.encode("utf-8", "replace"))
        reader.close()
        reading = reader.readings()[0]
        if reading.kind == "api":
            return reading
    return _from_readiness(api.curl(code, str(row.get("stderr", ""))))


def _ran(row: Mapping[str, Any], command: str, code: Any) -> Reading:
    reader = LogReader(BOOK)
    for stream in ("stdout", "stderr"):
        text = row.get(stream)
        if isinstance(text, str) and text:
            reader.feed(text.encode("utf-8", "replace") + (b"" if text.endswith("\n") else b"\n"))
    reader.close()
    reading = reader.reading()
    facts = {**reading.facts, "rc": code} if code is not None else dict(reading.facts)
    # A command that ended well has done its work: what it wrote to stderr was noise. Logs end well too, and fail
    # inside.
    failure = None if code == 0 and reading.kind in ("ssh", "unknown") else reading.failure
    if command:
        facts["command"] = mask_text(command[:400])
    if isinstance(row.get("node"), str):
        facts["node"] = row["node"][:120]
    return replace(reading, failure=failure, facts=facts)


def _answered(status: int, body: Any) -> Reading:
    rows = body.get("data") if isinstance(body, Mapping) else None
    if status == 200 and isinstance(rows, list):
        found = api.models(status, body)
        facts = {
            "names": list(found.names),
            "adapters": list(found.adapters),
            "max_model_len": found.max_model_len,
            "owned_by": found.owned_by,
        }
        return Reading("api", ready=bool(found.names), facts={**facts, "verdict": "ok" if found.names else "no_model"})
    if (isinstance(body, Mapping) and "choices" in body) or api.error_of(body) is not None:
        return _from_verdict(api.chat(status, body))
    return _from_readiness(api.endpoint(status, body))


def _from_verdict(verdict: api.Verdict, *, partial: str | None = None) -> Reading:
    facts: dict[str, Any] = {
        "ok": verdict.ok,
        "verdict": verdict.verdict,
        "healthy": verdict.healthy,
        "answer": verdict.content,
        "finish_reason": verdict.finish_reason,
    }
    if partial is not None:
        facts["partial"] = partial[: api.MOST_TEXT]
    if verdict.reasoning:
        facts["reasoning"] = verdict.reasoning
    if verdict.tool_calls:
        facts["tool_calls"] = [_call(call) for call in verdict.tool_calls[:16]]
    if verdict.usage:
        facts["usage"] = {name: verdict.usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    if verdict.error_code is not None:
        facts["error_code"] = verdict.error_code
    if verdict.retry_max_tokens is not None:
        facts["retry_max_tokens"] = verdict.retry_max_tokens
    failure = None
    if verdict.reason is not None and not (verdict.healthy and verdict.verdict == "thinking_used_budget"):
        failure = _failure(verdict.reason, verdict.evidence)
        facts["cause"] = verdict.verdict if verdict.verdict == "unauthorized" else verdict.reason
    warnings = (
        ()
        if failure is not None or verdict.ok
        else (
            {
                "name": verdict.verdict,
                "title": verdict.sentence,
                "severity": "info",
                "line_number": None,
                "rank": None,
                "count": 1,
                "evidence": verdict.evidence,
            },
        )
    )
    return Reading(
        "api",
        ready=verdict.ok or verdict.verdict == "thinking_used_budget",
        failure=failure,
        warnings=warnings,
        facts=facts,
    )


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _from_readiness(found: api.Readiness) -> Reading:
    facts: dict[str, Any] = {"ok": found.ready, "state": found.state, "verdict": found.state}
    if found.reason is None:
        return Reading("api", ready=found.ready, facts=facts)
    return Reading("api", failure=_failure(found.reason, found.evidence), facts={**facts, "cause": found.state})


def _failure(reason: str, evidence: str) -> Failure:
    return Failure(reason, REASONS[reason].title, evidence, remedy=REASONS[reason].remedy)


def _told(reading: Reading) -> Any:
    """What an answer says in one value: names, the answer itself, or how it failed."""
    facts = reading.facts
    return facts.get("names") or facts.get("answer") or facts.get("verdict", facts)


def _by_name(readings: Mapping[str, Reading]) -> Reading:
    """API answers by name: what each says, under its name."""
    first = next(iter(readings.values()))
    facts = {name: _told(reading) for name, reading in readings.items()}
    failure = next((reading.failure for reading in readings.values() if reading.failure is not None), None)
    return replace(first, ready=all(reading.ready for reading in readings.values()), failure=failure, facts=facts)


# ---- The command
# ---------------------------------------------------------------------------------------------------------------------


def as_json(reading: Reading) -> dict[str, Any]:
    """The object that `explain` prints."""
    progress = reading.progress
    failure = reading.failure
    return {
        "kind": reading.kind,
        "milestones": [
            {"name": entry.name, "line_number": entry.line_number, "rank": entry.rank, "values": entry.values}
            for entry in reading.milestones
        ],
        "progress": None
        if progress is None
        else {
            "phase": progress.phase,
            "overall": progress.overall,
            "done": progress.done,
            "total": progress.total,
            "unit": progress.unit,
            "seconds_per_item": progress.seconds_per_item,
            "ranks": {
                str(rank): {
                    "phase": one.phase,
                    "done": one.done,
                    "total": one.total,
                    "unit": one.unit,
                    "seconds_per_item": one.seconds_per_item,
                }
                for rank, one in reading.ranks.items()
            },
        },
        "ready": reading.ready,
        "failure": None
        if failure is None
        else {
            "reason": failure.reason,
            "title": failure.title,
            "evidence": failure.evidence,
            "line_number": failure.line_number,
            "rank": failure.rank,
            "remedy": failure.remedy,
        },
        "warnings": list(reading.warnings),
        "facts": reading.facts,
    }


def explain_all(data: bytes | Iterable[bytes]) -> list[Reading]:
    """The Readings of everything in `data`, in order; never empty, never raises for any bytes."""
    explainer = Explainer()
    for chunk in (data,) if isinstance(data, bytes) else data:
        explainer.feed(chunk)
    explainer.close()
    return explainer.readings()


def explain(data: bytes | Iterable[bytes]) -> Reading:
    """The Reading of one output; of several inputs, the first that failed, else the first."""
    found = explain_all(data)
    return next((reading for reading in found if reading.failure is not None), found[0])


def main(argv: Sequence[str], stdin: BinaryIO, stdout: TextIO) -> int:
    """`manage.py explain [FILE]`: one JSON object, or an array where there are several inputs. Exit status 0 for any
    bytes, 2 for a FILE
    that cannot be read."""
    if len(argv) > 1:
        sys.stderr.write("explain: give one FILE, or nothing to read standard input\n")
        return 2
    try:
        if argv and argv[0] != "-":
            with Path(argv[0]).open("rb") as stream:
                explainer = _consume(stream)
        else:
            explainer = _consume(stdin)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"explain: cannot read {argv[0] if argv else 'standard input'}: {error}\n")
        return 2
    found = [as_json(reading) for reading in explainer.readings()]
    several = explainer.separated or len(found) > 1
    stdout.write(json.dumps(found if several else found[0], ensure_ascii=True, indent=1, default=str) + "\n")
    return 0


def _consume(stream: BinaryIO) -> Explainer:
    explainer = Explainer()
    while chunk := stream.read(_CHUNK):
        explainer.feed(chunk)
    explainer.close()
    return explainer
