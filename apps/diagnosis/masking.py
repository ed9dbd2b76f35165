"""Secrets out of output, before it is stored or shown. Pure, linear in the input, and the same for any chunking.

Output is cut into segments that end at a line end (or, in a line without end, at a hard cut) which no known secret
straddles. Each segment is masked on its own, so a stream that was masked piece by piece equals the whole masked at
once.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from copy import copy
from urllib.parse import quote, quote_plus

MASK = b"[masked]"
SHORTEST_SECRET = 6  # bytes; shorter values would mask ordinary words
HARD_CUT = 65_536  # bytes of one line that are looked at together
LOOK_AHEAD = 4_096  # bytes seen beyond a hard cut, so that a token is not torn
_PIECE = 262_144

_VALUE = rb"""(?:\[[^\]\r\n]{0,1024}\]|'[^'\r\n]{1,1024}'|"[^"\r\n]{1,1024}"|['"\[]{0,2}[^\s,'"\])};&|\\]+)"""
_NOT_A_VALUE = rb"""(?!None\b|null\b|[Tt]rue\b|[Ff]alse\b|\$|\{[A-Za-z_][A-Za-z0-9_]{0,63}\}|''|""|\[\])"""
# Each pattern matches inside one line. The span of the group `secret` is masked.
_PATTERNS: tuple[tuple[tuple[bytes, ...], re.Pattern[bytes]], ...] = (
    (
        (b"hf_",),
        re.compile(rb"(?<![A-Za-z0-9_])(?P<secret>hf_(?:(?=[a-z]{0,64}[A-Z0-9])[A-Za-z0-9]{8,}|[A-Za-z0-9]{20,}))"),
    ),
    ((b"sk-",), re.compile(rb"(?<![A-Za-z0-9_-])(?P<secret>sk-[A-Za-z0-9_-]{16,})")),
    (
        (b"nvapi-", b"ghp_", b"gho_", b"glpat-", b"github_pat_"),
        re.compile(rb"(?<![A-Za-z0-9_-])(?P<secret>(?:nvapi-|gh[pousr]_|glpat-|github_pat_)[A-Za-z0-9_-]{16,})"),
    ),
    ((b"earer", b"EARER"), re.compile(rb"\b[Bb](?:earer|EARER)[ \t]{1,8}(?P<secret>[A-Za-z0-9._~+/=-]{6,})")),
    (
        (b"asic ",),
        re.compile(rb"uthorization['\"]?[:=][ \t]{0,8}['\"]?[Bb]asic[ \t]{1,8}(?P<secret>[A-Za-z0-9+/=_-]{4,})"),
    ),
    ((b"://",), re.compile(rb"://[^\s/:@'\"<>]{0,256}:(?P<secret>[^\s/'\"<>]{1,1024})@")),
    (
        (b"--",),
        re.compile(
            rb"""(?i)--(?:[a-z]{1,20}-){0,3}(?:api-?key|token|password|passwd|secret)(?![a-z0-9_-])"""
            rb"""['"]?(?:[ \t]{1,8}|[ \t]{0,8}[=,][ \t]{0,8})"""
            + rb"(?!-)"
            + _NOT_A_VALUE
            + rb"(?P<secret>"
            + _VALUE
            + rb")"
        ),
    ),
)
# `name = value`. Its alternatives would be tried at every byte of a log, so `_CUE` says first which lines are worth it.
_NAMED = re.compile(
    rb"""(?i)(?:api_?keys?|(?:hf|hub|auth|access|api|session|refresh|bearer)_token|(?-i:[A-Z0-9]_TOKEN)|(?<![\w.-])token|"""
    rb"""passw(?:or)?d|secret|secret_key)"""
    rb"""['"]?(?:[ \t]{0,4}=[ \t]{0,4}|[ \t]{0,4}:[ \t]{0,4}(?=['"\[])|:)"""
    + _NOT_A_VALUE
    + rb"(?P<secret>"
    + _VALUE
    + rb")"
)
_CUES = tuple(
    (word, re.compile(word + rest + rb"""['"]?[ \t]{0,4}[=:]"""))
    for word, rest in (
        (b"key", rb"s?"),
        (b"token", rb""),
        (b"passwd", rb""),
        (b"password", rb""),
        (b"secret", rb"(?:_key)?"),
    )
)
_PEM_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_PEM_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_PEM_BODY = re.compile(
    rb"[\s|>]{0,16}(?:\([^()\r\n]{1,80}\)\s?)?(?:[A-Za-z0-9+/=]+|(?:Proc-Type|DEK-Info):.{0,200})?\s{0,4}"
)
_LINE_END = re.compile(rb"\r\n|\r|\n")
_ASKS_FOR_VALUE = re.compile(rb"(?i)(?:bearer|basic|key|token|passw(?:or)?d|secret)['\"]?[ \t]*[=:,]?[ \t]*$")
_TOKEN_END = re.compile(rb"[\s'\"]")


def forms(secret: bytes) -> set[bytes]:
    """The ways in which a secret's value may stand in output: as is, quoted for shell, URL or JSON, and inside
    base64."""
    value = secret.strip()
    if len(value) < SHORTEST_SECRET:
        return set()
    text = value.decode("utf-8", "surrogateescape")
    made = {
        value,
        value.replace(b"'", b"'\"'\"'"),
        value.replace(b"'", b"'\\''"),
        quote(value, safe="").encode(),
        quote(value).encode(),
        quote_plus(value).encode(),
        repr(text)[1:-1].encode("utf-8", "surrogateescape"),
        json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"),
        json.dumps(text)[1:-1].encode(),
        value.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
        value.hex().encode(),
    }
    for shift in (0, 1, 2):
        # Only the characters that the secret decides by itself, for each of the three ways it may lie in base64's
        # triples.
        whole = slice(-(-shift * 8 // 6), (shift + len(value)) * 8 // 6)
        padded = b"\0" * shift + value
        made.update(encode(padded)[whole] for encode in (base64.b64encode, base64.urlsafe_b64encode))
    if b"\n" in value:
        made.update(line.strip() for line in value.splitlines() if len(line.strip()) >= 16 and b"-----" not in line)
    return {form for form in made if len(form) >= SHORTEST_SECRET}


def _all_forms(secrets: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted({form for secret in secrets for form in forms(secret)}, key=lambda form: (-len(form), form)))


def _occurrences(data: bytes, known: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    for form in known:
        at = data.find(form)
        while at >= 0:
            yield at, at + len(form)
            at = data.find(form, at + 1)


def _pattern_spans(data: bytes, group: int | str = "secret") -> Iterator[tuple[int, int]]:
    for guards, pattern in _PATTERNS:
        if any(guard in data for guard in guards):
            for match in pattern.finditer(data):
                yield match.span(group)
    yield from _named_spans(data, group)


def _named_spans(data: bytes, group: int | str) -> Iterator[tuple[int, int]]:
    """As `_NAMED.finditer` over all of it, since no match reaches over a line's end; but only where a line has a cue."""
    if b"=" not in data and b":" not in data:
        return
    lower = data.lower()
    lines: set[tuple[int, int]] = set()
    for word, cue in _CUES:
        at = lower.find(word)
        while at >= 0:
            if cue.match(lower, at):
                start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
                end = _LINE_END.search(data, at)
                lines.add((start, end.start() if end else len(data)))
                at = lower.find(word, end.start()) if end else -1
            else:
                at = lower.find(word, at + len(word))
    if len(lines) > data.count(b"\n") // 4:
        lines = {(0, len(data))}
    for start, stop in sorted(lines):
        for match in _NAMED.finditer(data, start, stop):
            yield match.span(group)


def _merged(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replaced(data: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    if not spans:
        return data
    parts, at = [], 0
    for start, end in spans:
        parts += [data[at:start], MASK]
        at = end
    return b"".join([*parts, data[at:]])


class Masker:
    """Mask a stream: `feed` gives what is certain so far, `finish` the rest. Holds back at most a line and a hard
    cut."""

    def __init__(self, secrets: Sequence[bytes] = ()) -> None:
        self._known = _all_forms(secrets)
        self._longest = max((len(form) for form in self._known), default=1)
        self._straddling = tuple(form for form in self._known if b"\n" in form or b"\r" in form)
        self._held = b""
        self._in_key = False  # inside a private key block
        self._in_token = False  # inside a token that a hard cut has torn
        self.clean_at = 0  # bytes of input so far after which a fresh Masker would go on the same way
        self.consumed = 0  # bytes of input so far whose masked form was given

    def fresh(self) -> Masker:
        """One for the same secrets that stands where this one does, with nothing held."""
        made = copy(self)
        made._held, made.clean_at, made.consumed = b"", 0, 0
        return made

    def may_end_here(self) -> bool:
        """Whether what follows may be masked on its own although it may begin with the second half of a `\\r\\n`."""
        return not (self._in_key or self._in_token or self._straddled(len(self._held)))

    def feed(self, data: bytes) -> bytes:
        given = []
        for start in range(0, len(data), _PIECE):  # in pieces, so that one huge line costs no more than many short ones
            self._held += data[start : start + _PIECE]
            given.append(self._give(final=False))
        return b"".join(given)

    def finish(self) -> bytes:
        """The rest. The Masker starts afresh afterwards."""
        given = self._give(final=True)
        self._in_key = self._in_token = False
        return given

    def _give(self, *, final: bool) -> bytes:
        given = []
        while self._held:
            cut, torn = self._cut(final=final)
            if not cut:
                break
            given.append(self._segments(self._held[:cut], torn=torn))
            self._held = self._held[cut:]
            self.consumed += cut
            if not (self._in_key or self._in_token):
                self.clean_at = self.consumed
        return b"".join(given)

    def _cut(self, *, final: bool) -> tuple[int, bool]:
        """How much of what is held may go now, and whether that tears a token. 0: nothing yet."""
        overlong = self._first_overlong()
        if overlong is None:
            end = len(self._held) if final else self._last_line_end()
            return end, False
        before = self._line_end_before(overlong)
        if before:
            return before, False
        if not final and len(self._held) < HARD_CUT + LOOK_AHEAD + self._longest:
            return 0, False
        return self._hard_cut()

    def _first_overlong(self) -> int | None:
        """Where the first line that is longer than a hard cut begins."""
        if len(self._held) <= HARD_CUT:
            return None
        start = 0
        for match in _LINE_END.finditer(self._held):
            if match.start() - start > HARD_CUT:
                return start
            start = match.end()
        return start if len(self._held) - start > HARD_CUT else None

    def _last_line_end(self) -> int:
        return self._line_end_before(len(self._held))

    def _line_end_before(self, limit: int) -> int:
        """The last line end at or before `limit` that no secret straddles, given that more may come. 0: there is
        none."""
        at = limit
        while at > 0:
            at = max(self._held.rfind(b"\n", 0, at), self._held.rfind(b"\r", 0, at)) + 1
            if at == 0:
                return 0
            # A \r at the very end may be the first half of \r\n; both halves end a line, but the second alone would
            # count twice.
            if not (at == len(self._held) and self._held.endswith(b"\r")) and not self._straddled(at):
                if self._held[at - 1 : at + 1] == b"\r\n":
                    at -= 1
                    continue
                return at
            at -= 1
        return 0

    def _straddled(self, at: int) -> bool:
        """Whether a secret with a line end in it begins before `at` and ends, or may yet end, after it."""
        for form in self._straddling:
            for start in range(max(0, at - len(form) + 1), at):
                if form.startswith(self._held[start : start + len(form)]):
                    return True
        return False

    def _hard_cut(self) -> tuple[int, bool]:
        window = self._held[: HARD_CUT + LOOK_AHEAD + self._longest]
        line_end = _LINE_END.search(window)
        line = window[: line_end.start()] if line_end else window
        at = HARD_CUT
        space = max(line.rfind(gap, HARD_CUT - LOOK_AHEAD, HARD_CUT) for gap in (b" ", b"\t"))
        if space > 0 and not _ASKS_FOR_VALUE.search(line[max(0, space - 64) : space]):
            at = space
        # Whole matches here, with the word before a value: a value without it would not be known for what it is.
        for start, end in reversed(_merged(iter([*_occurrences(window, self._known), *_pattern_spans(line, 0)]))):
            if start == 0 and at < end:
                return end, end == len(line) and line_end is None
            if start < at < end:
                at = start
        return (whole_characters(window[:at]) if at == HARD_CUT else at), False

    def _segments(self, data: bytes, *, torn: bool) -> bytes:
        """Mask whole segments; state is kept only across private key blocks and torn tokens."""
        if self._in_token:
            ended = _TOKEN_END.search(data)
            if ended is None:
                return b""
            self._in_token, data = False, data[ended.start() :]
        if self._in_key or b"PRIVATE KEY-----" in data:
            masked = self._with_keys(data)
        else:
            masked = self._plain(data)
        self._in_token = torn
        return masked

    def _plain(self, data: bytes) -> bytes:
        return _replaced(data, _merged(iter([*_occurrences(data, self._known), *_pattern_spans(data)])))

    def _with_keys(self, data: bytes) -> bytes:
        """Line by line, because a private key block runs over lines; every line of it becomes one mask."""
        spans = [*_occurrences(data, self._known), *_pattern_spans(data)]
        start = 0
        while start < len(data):
            line_end = _LINE_END.search(data, start)
            stop = line_end.start() if line_end else len(data)
            spans += self._key_spans(data, start, stop)
            start = line_end.end() if line_end else stop
        return _replaced(data, _merged(iter(spans)))

    def _key_spans(self, data: bytes, start: int, stop: int) -> list[tuple[int, int]]:
        spans, at = [], start
        while True:
            if self._in_key:
                end = _PEM_END.search(data, at, stop)
                if end is None:
                    # A block that never ends must not swallow the rest of a log: it ends where lines stop looking like
                    # one.
                    if at == start and not _PEM_BODY.fullmatch(data, at, stop):
                        self._in_key = False
                        continue
                    if stop > at:
                        spans.append((at, stop))
                    return spans
                spans.append((at, end.end()))
                self._in_key, at = False, end.end()
            begin = _PEM_BEGIN.search(data, at, stop)
            if begin is None:
                return spans
            self._in_key = True
            end = _PEM_END.search(data, begin.end(), stop)
            spans.append((begin.start(), end.end() if end else stop))
            if end is None:
                return spans
            self._in_key, at = False, end.end()


def whole_characters(data: bytes) -> int:
    """The length of `data` without a UTF-8 character that is cut at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        wanted = 1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
        return len(data) if wanted <= back else len(data) - back
    return len(data)


def mask(data: bytes, secrets: Sequence[bytes] = ()) -> bytes:
    """`data` with every known secret (6 bytes or longer, in any of its `forms`) and everything that looks like one
    replaced."""
    masker = Masker(secrets)
    return masker.feed(data) + masker.finish()


def mask_text(text: str, secrets: Sequence[bytes] = ()) -> str:
    """`mask` for text. Halves of surrogate pairs, which the JSON of a node may hold, become U+FFFD."""
    return mask(text.encode("utf-8", "surrogatepass"), secrets).decode("utf-8", "replace")


def safe_cut(data: bytes, secrets: Sequence[bytes] = ()) -> int:
    """The length of the longest prefix (found) that may be masked on its own: mask(data[:n]) + mask(data[n:] + more) is
    mask(data + more), whatever follows. It ends at a line end, or in a line longer than a hard cut at that cut; 0 when
    no
    such place is known yet."""
    masker = Masker(secrets)
    masker.feed(data)
    return masker.clean_at
