"""Raw bytes to stored pieces: the same lines and the same masked bytes for any chunking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.diagnosis.masking import mask
from apps.runs.chunking import PIECE, Chunker, count_lines, lines_of

SECRET = b"s3cret-value-of-a-token"


def through(data: bytes, cuts: list[int], secrets: tuple[bytes, ...] = ()) -> list:
    chunker, pieces, start = Chunker(secrets=secrets), [], 0
    for cut in [*sorted({c % (len(data) + 1) for c in cuts}), len(data)]:
        chunker.feed(data[start:cut])
        start = cut
        pieces += chunker.cut()
    return pieces + chunker.cut(ended=True)


def texts(pieces: list) -> list[str]:
    return [line.text for piece in pieces for line in lines_of(piece.data, piece.continues)]


def test_lines_of_the_three_ends():
    assert [line.text for line in lines_of(b"a\nb\r\nc\rd", False)] == ["a", "b", "c", "d"]
    assert [line.redraw for line in lines_of(b"a\nb\r\nc\rd", False)] == [False, False, False, True]


def test_a_continuation_that_only_closes_the_line_is_no_line():
    assert [(line.text, line.continued, line.redraw) for line in lines_of(b"\rnext", True)] == [("next", False, True)]
    assert [(line.text, line.continued) for line in lines_of(b"rest\nnew\n", True)] == [("rest", True), ("new", False)]


def test_a_bar_that_waits_for_its_redraw_is_stored_when_idle():
    chunker = Chunker()
    chunker.feed(b"\rLoading shards:  44% Completed | 17/39 [05:06<06:40, 18.01s/it]")
    first = chunker.cut(idle=True)
    assert texts(first) == ["", "Loading shards:  44% Completed | 17/39 [05:06<06:40, 18.01s/it]"]
    chunker.feed(b"\rLoading shards:  46% Completed | 18/39 [05:24<06:20, 18.01s/it]\n")
    second = chunker.cut()
    assert texts(second) == ["Loading shards:  46% Completed | 18/39 [05:24<06:20, 18.01s/it]"]
    assert lines_of(second[0].data, second[0].continues)[0].redraw


def test_an_unfinished_line_that_could_hold_half_a_secret_waits():
    chunker = Chunker(secrets=(SECRET,))
    chunker.feed(b"token=" + SECRET[:8])
    assert chunker.cut(idle=True) == []
    chunker.feed(SECRET[8:] + b"\n")
    assert SECRET not in b"".join(piece.data for piece in chunker.cut())


def test_a_character_is_never_cut():
    text = ("é" * 40000).encode()
    assert all("\ufffd" not in line for line in texts(through(text, [1, 3, 32769, 50001])))


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=8))
def test_nothing_is_lost_and_offsets_are_gapless(data, cuts):
    pieces = through(data, cuts)
    assert b"".join(piece.data for piece in pieces) == mask(data, ())
    assert [piece.offset for piece in pieces] == [sum(p.length for p in pieces[:n]) for n in range(len(pieces))]
    assert sum(piece.length for piece in pieces) == len(data)
    assert all(piece.line_count == len(lines_of(piece.data, piece.continues)) for piece in pieces)


@given(
    st.lists(
        st.sampled_from([b"a", SECRET, b"\n", b"\r", b"x" * 50, b"hf_abcdefghijklmnopqrstuvwxyz0123456789"]),
        max_size=30,
    ),
    st.lists(st.integers(0, 2000), max_size=8),
)
def test_secrets_are_masked_across_any_cut(parts, cuts):
    data = b"".join(parts)
    stored = b"".join(piece.data for piece in through(data, cuts, (SECRET,)))
    assert stored == mask(data, (SECRET,))
    assert SECRET not in stored


KEY = (
    b"-----BEGIN OPENSSH PRIVATE KEY-----\n"
    + b"".join(b"%064d\n" % n for n in range(40))
    + b"-----END OPENSSH PRIVATE KEY-----\n"
)


@pytest.mark.parametrize("back", [1, 5, len(SECRET) - 1, len(SECRET), 600])
@pytest.mark.parametrize("filler", [b"x ", b"x", b"line\n"])
def test_no_piece_ends_inside_of_a_secret(filler, back):
    before = (filler * PIECE)[: PIECE - back]
    for secret in (SECRET + b" ", b"\n" + KEY):
        data = before + secret + b" and more" * 9000 + b"\n"
        pieces = through(data, [PIECE - back + 3, PIECE], (SECRET,))
        stored = b"".join(piece.data for piece in pieces)
        assert stored == mask(data, (SECRET,))
        assert SECRET not in stored and b"%064d" % 20 not in stored


@given(
    st.lists(st.sampled_from([b"word ", SECRET, b"\n", b"\r", KEY, b"y" * 9000, b"line\n" * 900]), max_size=24),
    st.lists(st.integers(0, 200_000), max_size=6),
)
def test_another_worker_goes_on_at_any_piece_with_the_same_bytes(parts, cuts):
    data = b"".join(parts)
    pieces = through(data, cuts, (SECRET,))
    assert b"".join(piece.data for piece in pieces) == mask(data, (SECRET,))
    for number, piece in enumerate(pieces):
        if number % 3 == 1:
            rest = through(data[piece.offset :], cuts, (SECRET,))
            assert b"".join(one.data for one in rest) == b"".join(one.data for one in pieces[number:])


def test_a_line_of_ten_mebibytes_is_split_and_nothing_of_it_is_lost():
    data = ("ü€𝄞 " * 1_100_000).encode()[: 10 << 20] + b"\nafter\n"
    pieces = through(data, list(range(0, len(data), 1 << 20)))
    assert b"".join(piece.data for piece in pieces) == data
    lines = [line for piece in pieces for line in lines_of(piece.data, piece.continues)]
    assert len(lines) > 100 and [line.continued for line in lines[:-1]] == [False] + [True] * (len(lines) - 2)
    assert lines[-1].text == "after" and not lines[-1].continued
    assert (
        "".join(line.text for line in lines[:-1]).count("\ufffd") <= 3
    )  # of the one character that is cut in the data
    assert max(len(piece.data) for piece in pieces) < 140_000


def test_a_block_of_masked_lines_that_does_not_end_is_cut_all_the_same():
    data = KEY.splitlines(keepends=True)[0] + b"A" * 64 + b"\n" + (b"B" * 64 + b"\n") * 150_000
    pieces = through(data, list(range(0, len(data), 1 << 20)))
    assert len(pieces) > 1
    assert b"".join(piece.data for piece in pieces) == mask(data)


def test_a_character_split_at_every_offset_with_nul_and_bom():
    data = b"\xef\xbb\xbfwith a mark\n" + "𝄞\0é€ broken \n".encode() + b"\xff\xfe\x80 no text\n"
    whole = texts(through(data, []))
    assert whole == ["\ufeffwith a mark", "𝄞\ufffdé€ broken ", "\ufffd\ufffd\ufffd no text"]
    for at in range(len(data)):
        pieces = through(data, [at])
        assert (
            b"".join(piece.data for piece in pieces) == data
        )  # NUL too: the bytes are kept, only what is shown has none
        assert texts(pieces) == whole


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b""]), max_size=12), st.booleans())
def test_lines_are_counted_as_they_are_made(parts, continues):
    data = b"".join(parts)
    assert count_lines(data, continues) == len(lines_of(data, continues))
