"""Workers under Ray print their prefix once and redraw the bar behind it with a bare carriage return."""

from hypothesis import given
from hypothesis import strategies as st

from apps.diagnosis.vllm import Reader

LOG = (
    b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=1275) INFO 11-30 11:33:28 [parallel_state.py:1735] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0\n"
    b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=901, ip=192.168.200.13) INFO 11-30 11:33:28 [parallel_state.py:1735] rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 1\n"
    b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=1275) \rLoading safetensors checkpoint shards:  12% Completed | 5/39 [01:29<10:08, 17.90s/it]\n"
    b"(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=901, ip=192.168.200.13) \rLoading safetensors checkpoint shards:   7% Completed | 3/39 [00:54<10:59, 18.32s/it]\r"
    b"Loading safetensors checkpoint shards:  10% Completed | 4/39 [01:13<10:40, 18.29s/it]\n"
)


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_each_rank_keeps_its_own_bar(cuts):
    reader, start = Reader(), 0
    for cut in [*sorted(cuts), len(LOG)]:
        reader.feed(LOG[start:cut])
        start = cut
    assert {rank: progress.done for rank, progress in reader.reading().ranks.items()} == {0: 5, 1: 4}
