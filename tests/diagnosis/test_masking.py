"""No secret comes through, however it is written and however the output is cut."""

from __future__ import annotations

import base64
import json
import shlex
import time
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apps.diagnosis import masking
from apps.diagnosis.masking import HARD_CUT, MASK, Masker, mask, safe_cut

SECRET = b"s3cr3t/va'lue+1"
MULTILINE = b"first line of it\nsecond line of it\nxx"
KEY = (
    b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nBG5vbmUAAAAEbm9uZQ==\n"
    b"-----END OPENSSH PRIVATE KEY-----\n"
)

PIECES = st.sampled_from(
    [
        b"a",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"s3cr3t",
        b"/va'lue+1",
        SECRET,
        SECRET[:7],
        SECRET[7:],
        MULTILINE,
        MULTILINE[:20],
        MULTILINE[20:],
        b"hf_AbCdEfGh1234567890",
        b"hf_",
        b"token=abc ",
        b"HF_TOKEN=",
        b"Bearer ",
        b"abc.def-ghi_123",
        b"--api-key ",
        b"api_key='",
        b"'",
        b"http://user:",
        b"pass@host",
        KEY,
        b"-----BEGIN RSA PRIVATE KEY-----",
        b"\nabcdefAA==\n",
        b"-----END RSA PRIVATE KEY-----",
        b"abababab",
        b"\x00\xff",
        b"word " * 5,
    ]
)
OUTPUT = st.lists(PIECES, max_size=30).map(b"".join)
SECRETS = st.lists(st.sampled_from([SECRET, MULTILINE, b"abababab", b"bababa", b"short"]), max_size=4)


def in_chunks(data: bytes, cuts: list[int], secrets: list[bytes]) -> bytes:
    masker, at, given_out = Masker(secrets), 0, []
    for cut in sorted(cut % (len(data) + 1) for cut in cuts):
        given_out.append(masker.feed(data[at:cut]))
        at = cut
    return b"".join([*given_out, masker.feed(data[at:]), masker.finish()])


@given(OUTPUT, st.lists(st.integers(0, 10_000), max_size=12), SECRETS)
@settings(max_examples=120, deadline=None)
@example(b"abc\r\n" * 3, [4, 5, 9], [])
def test_any_chunking_gives_the_same(data: bytes, cuts: list[int], secrets: list[bytes]) -> None:
    assert in_chunks(data, cuts, secrets) == mask(data, secrets)


@given(OUTPUT, OUTPUT, SECRETS)
@settings(max_examples=120, deadline=None)
def test_a_safe_cut_changes_nothing(data: bytes, more: bytes, secrets: list[bytes]) -> None:
    cut = safe_cut(data, secrets)
    assert 0 <= cut <= len(data)
    assert mask(data[:cut], secrets) + mask(data[cut:] + more, secrets) == mask(data + more, secrets)


@given(
    st.integers(HARD_CUT - 40, HARD_CUT + 5_000),
    st.integers(0, 30),
    OUTPUT,
    st.lists(st.integers(0, 200_000), max_size=6),
    SECRETS,
)
@settings(max_examples=25, deadline=None)
def test_lines_longer_than_a_hard_cut(
    size: int, spaces: int, tail: bytes, cuts: list[int], secrets: list[bytes]
) -> None:
    data = (
        b"x" * (size - spaces) + b" " * spaces + b" Bearer " + b"y" * 100 + SECRET + b" " + tail + b"z" * 70_000 + tail
    )
    whole = mask(data, secrets)
    assert in_chunks(data, cuts, secrets) == whole
    cut = safe_cut(data, secrets)
    assert mask(data[:cut], secrets) + mask(data[cut:], secrets) == whole
    assert b"yyyy" not in whole
    assert SECRET not in mask(data, [SECRET])


@given(st.lists(st.sampled_from([b"a", b"ab", SECRET[:9], SECRET[9:], b"\n"]), max_size=40).map(b"".join))
@settings(max_examples=50, deadline=None)
def test_no_known_secret_is_left(noise: bytes) -> None:
    assert SECRET not in mask(noise + SECRET + noise, [SECRET])


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        shlex.quote(SECRET.decode()).encode(),
        quote(SECRET.decode(), safe="").encode(),
        json.dumps(SECRET.decode()).encode(),
        base64.b64encode(SECRET),
        base64.b64encode(b"x" + SECRET + b"tail"),
        base64.b64encode(b"xy" + SECRET),
        base64.b64encode(b"user:" + SECRET),
        SECRET.hex().encode(),
    ],
)
def test_known_secrets_in_every_dress(written: bytes) -> None:
    masked = mask(b"before " + written + b" after", [SECRET])
    assert MASK in masked
    assert masked.startswith(b"before ") and masked.endswith(b" after")
    assert SECRET[:8] not in masked and written.strip(b"'\"") not in masked


@pytest.mark.parametrize(
    ("line", "kept", "gone"),
    [
        (b"token is hf_AbCdEfGhIjKlMnOpQrStUv ok", b"ok", b"hf_AbCd"),
        (b"using sk-proj-1234567890abcdefghij", b"using", b"sk-proj"),
        (b"Authorization: Bearer eyJhbGciOi.abc", b"Authorization", b"eyJ"),
        (b"authorization: bearer " + b"q" * 9000 + b" end", b"end", b"qqq"),
        (b"http://op:pa55@10.0.0.1/x", b"10.0.0.1", b"pa55"),
        (b"vllm serve m --api-key token-abc123 --port 8000", b"--port 8000", b"token-abc123"),
        (b"vllm serve m --api-key=token-abc123 --port 8000", b"--port 8000", b"token-abc123"),
        (
            b"non-default args: {'host': 'h', 'api_key': ['token-abc123'], 'port': 8000}",
            b"'port': 8000",
            b"token-abc123",
        ),
        (b"Namespace(api_key='k1', port=1)", b"port=1", b"'k1'"),
        (b'{"api_key": "k1", "port": 1}', b'"port": 1', b"k1"),
        (b"['serve', '--api-key', 'zzz', '--port', '1']", b"'--port'", b"zzz"),
        (b"export HF_TOKEN=abc PATH=/bin", b"PATH=/bin", b"=abc"),
        (b"MYSQL_PASSWORD=abc", b"PASSWORD", b"=abc"),
        (b"NGC_TOKEN=abc", b"NGC", b"=abc"),
    ],
)
def test_what_looks_like_a_secret(line: bytes, kept: bytes, gone: bytes) -> None:
    masked = mask(line)
    assert kept in masked and gone not in masked and MASK in masked


@pytest.mark.parametrize(
    "line",
    [
        b"Please set a HF_TOKEN to enable higher rate limits",
        b"HF_HUB_ENABLE_HF_TRANSFER=1 but hf_transfer is missing",
        b"--max-tokens 50",
        b"--tokenizer /models/m",
        b"GPU KV cache size: 1,470,588 tokens",
        b"max_total_num_tokens=314304",
        b"api_key=None",
        b"'api_key': None,",
        b"docker run -e HF_TOKEN=$HF_TOKEN x",
        b"tokens: 12",
        b"eos_token='<|im_end|>', pad_token=None",
        b"distributed_init_method=tcp://10.100.184.1:29501 backend=nccl",
        b"op@192.0.2.1: x",
        b"sk-1",
        b"the bearer of it",
        b"risk-assessment-is-a-long-word-here",
    ],
)
def test_ordinary_lines_stay(line: bytes) -> None:
    assert mask(line) == line


def test_private_keys_go_line_by_line() -> None:
    masked = mask(b"before\n" + KEY + b"after the key\n")
    assert masked == b"before\n" + (MASK + b"\n") * 4 + b"after the key\n"


def test_a_key_that_never_ends_does_not_swallow_the_log() -> None:
    masked = mask(b"-----BEGIN PRIVATE KEY-----\nAAAA\nand then: something else\n")
    assert masked.endswith(b"and then: something else\n")


def test_short_secrets_are_left_alone() -> None:
    assert mask(b"abc abcde", [b"abcde"]) == b"abc abcde"


def test_time_is_linear() -> None:
    def seconds(data: bytes) -> float:
        started = time.process_time()
        mask(data, [SECRET, b"aaaaaaaaaaaa"])
        return time.process_time() - started

    for piece in (
        b"api_key='x ",
        b"a",
        b"hf_",
        b"-----BEGIN PRIVATE KEY-----",
        b"http://",
        b"line of ordinary output\n",
        b"--token ",
        b"\r",
    ):
        small, large = seconds(piece * (200_000 // len(piece))), seconds(piece * (1_600_000 // len(piece)))
        assert large < 8 * 6 * max(small, 0.02), piece


def test_forms_of_a_short_value() -> None:
    assert masking.forms(b"  ab\n") == set()


@given(
    st.lists(
        st.sampled_from([b"api_key", b"API-KEY", b"Token", b"tokens", b"HF_TOKEN", b"password", b"passwd", b"secret_key", b"=", b": ", b"'", b'"', b" ", b"\n", b"\r", b"value1", b"None", b"["]),
        max_size=25,
    )
)  # fmt: skip
def test_looking_for_cues_first_finds_the_same(parts: list[bytes]) -> None:
    from apps.diagnosis import masking

    for data in (b"".join(parts), b"filler\n" * 20 + b"".join(parts)):
        assert list(masking._named_spans(data, "secret")) == [m.span("secret") for m in masking._NAMED.finditer(data)]
