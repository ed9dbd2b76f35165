"""The slowest rank decides how far a load is, and is known without looking at all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis import load
from apps.diagnosis.lines import Bar
from apps.diagnosis.load import Load

RANKS = st.one_of(st.none(), st.integers(0, 12))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bar"), RANKS, st.tuples(st.integers(0, 4), st.sampled_from([None, 4, 5]))),
        st.tuples(st.just("took"), RANKS, st.just(None)),
        st.tuples(st.just("loaded"), RANKS, st.just(None)),
        st.tuples(st.just("drafter"), RANKS, st.just(None)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([3, 1024]))
@settings(max_examples=300, deadline=None)
def test_the_least_is_that_of_the_slowest_that_moves(steps: list[tuple[str, int | None, object]], most: int) -> None:
    kept, load.MOST_RANKS = load.MOST_RANKS, most
    try:
        state = Load()
        for what, rank, figures in steps:
            if what == "bar":
                done, total = figures  # type: ignore[misc]
                state.bar(rank, Bar("", 10 * done, done, total, "items", None, ""))
            elif what == "took":
                state.weights_took(rank, 1.0)
            elif what == "loaded":
                state.loaded(rank)
            else:
                state.expected_loads = 2
            moving = [each.furthest for each in state.ranks.values() if each.total is not None or each.furthest]
            assert state.least == min(moving, default=0.0) and state.at_least == moving.count(state.least)
            assert len(state.ranks) <= most
    finally:
        load.MOST_RANKS = kept
