"""Raw bytes to stored pieces: the same lines and the same masked bytes for any chunking."""

from hypothesis import given
from hypothesis import strategies as st

from apps.diagnosis.masking import mask
from apps.runs.chunking import Chunker, lines_of

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
