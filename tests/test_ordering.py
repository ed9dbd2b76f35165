"""The order of tests among several processes loses none."""

from pathlib import PurePath

from hypothesis import given
from hypothesis import strategies as st

from tests.ordering import SLOW, rank, shares


@given(slow=st.lists(st.integers(1, 9), max_size=12), quick=st.integers(0, 60), processes=st.integers(1, 9))
def test_every_test_has_one_place(slow: list[int], quick: int, processes: int) -> None:
    numbers = iter(range(1000))
    modules = [[next(numbers) for _ in range(size)] for size in slow]
    others = [next(numbers) for _ in range(quick)]
    assert sorted(shares(modules, others, processes)) == list(range(sum(slow) + quick))


def test_slow_modules_are_known_by_folder_or_name() -> None:
    assert rank(PurePath("/somewhere/tests/stack/test_up.py")) == 0
    assert rank(PurePath("tests/runs/test_process_run.py")) < len(SLOW)
    assert rank(PurePath("tests/runs/test_chunking.py")) == len(SLOW)
