"""Workers under Ray print their prefix once and redraw the bar behind it with a bare carriage return."""

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.diagnosis.vllm import Reader

HEAD = b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=1275) "
WORKER = b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=901, ip=192.168.200.13) "
SAID = b"INFO 11-30 11:33:28 [parallel_state.py:1735] rank %d in world size 2 is assigned as DP rank 0, PP rank 0\n"
BAR = b"\rLoading safetensors checkpoint shards:  12%% Completed | %d/39 [01:29<10:08, 17.90s/it]"
LOG = HEAD + SAID % 0 + WORKER + SAID % 1 + HEAD + BAR % 5 + b"\n" + WORKER + BAR % 3 + BAR % 4 + b"\n"


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
@settings(deadline=None)
def test_each_rank_keeps_its_own_bar(cuts: list[int]) -> None:
    reader, start = Reader(), 0
    for cut in [*sorted(cuts), len(LOG)]:
        reader.feed(LOG[start:cut])
        start = cut
    assert {rank: progress.done for rank, progress in reader.reading().ranks.items()} == {0: 5, 1: 4}
