"""From looks at nodes to the state of a deployment, a row a state."""

from dataclasses import replace

import pytest

from apps.facts.values import Container, ContainerEvent, GpuProcess, Unit
from apps.watch.judging import NodeSeen, RankWanted, judge

RANKS = (
    RankWanted(0, "spark-1a32", "vllm-qwen35-r0", "boot-a"),
    RankWanted(1, "spark-5be3", "vllm-qwen35-r1", "boot-b"),
)


def node(name: str, *, boot: str, running: tuple[str, ...] = (), units: tuple[Unit, ...] = (), **more) -> NodeSeen:
    containers = tuple(Container(name=one, state="running") for one in running)
    return NodeSeen(
        name, 1000.0, boot_id=boot, uptime_s=more.pop("uptime", 1440.0), containers=containers, units=units, **more
    )


def both(first: NodeSeen, second: NodeSeen) -> dict[str, NodeSeen]:
    return {first.node: first, second.node: second}


OURS = both(
    node("spark-1a32", boot="boot-a", running=("vllm-qwen35-r0",)),
    node("spark-5be3", boot="boot-b", running=("vllm-qwen35-r1",)),
)
CLUSTER = Unit(name="vllm-cluster.service", active="active", containers=("vllm_node", "vllm_embeddings", "reranker"))
OLD_STACK = node(
    "spark-1a32",
    boot="boot-c",
    running=("vllm_node", "vllm_embeddings", "reranker"),
    units=(CLUSTER,),
    processes=(GpuProcess(1, mib=98 * 1024),),
)


@pytest.mark.parametrize(
    ("seen", "state", "reason", "sure"),
    [
        (OURS, "serving", None, True),
        (both(OLD_STACK, node("spark-5be3", boot="boot-d")), "lost", "replaced", True),
        (both(node("spark-1a32", boot="boot-c"), node("spark-5be3", boot="boot-d")), "lost", "rebooted", True),
        (both(node("spark-1a32", boot="boot-a"), node("spark-5be3", boot="boot-b")), "lost", "vanished", False),
        (both(OURS["spark-1a32"], node("spark-5be3", boot="boot-b")), "degraded", "rank_lost", False),
        (
            both(OURS["spark-1a32"], NodeSeen("spark-5be3", 1.0, reason="no_route", evidence="No route to host")),
            "unreachable",
            "no_route",
            False,
        ),
        (both(OURS["spark-1a32"], node("spark-5be3", boot="boot-d")), "lost", "rebooted", True),
    ],
)
def test_states(seen, state, reason, sure):
    found = judge(RANKS, seen)
    assert (found.state, found.reason, found.sure) == (state, reason, sure)


def test_the_sentence_names_who_started_what_and_when():
    found = judge(RANKS, both(OLD_STACK, node("spark-5be3", boot="boot-d")))
    assert found.evidence == (
        "Both nodes rebooted 24 min ago. On spark-1a32, vllm-cluster.service started vllm_node, vllm_embeddings and reranker, holding 98 GiB."
    )


def test_a_node_that_was_not_looked_at_proves_nothing():
    assert judge(RANKS, {"spark-1a32": OURS["spark-1a32"]}).state == "serving"


def test_an_unreachable_node_does_not_hide_that_the_other_was_rebooted():
    seen = both(OLD_STACK, NodeSeen("spark-5be3", 1.0, reason="ssh_timeout", evidence="timed out"))
    assert judge(RANKS, seen).reason == "replaced"


@pytest.mark.parametrize(
    ("state", "found"), [("running", "serving"), ("exited", "degraded"), ("lost", "degraded"), ("missing", "degraded")]
)
def test_an_engine_that_ended_inside_a_living_container_is_not_serving(state, found):
    """Over Ray the engine is a job beside the container's first process."""
    ranks = (replace(RANKS[0], job_id="abc-9"), RANKS[1])
    seen = {**OURS, "spark-1a32": replace(OURS["spark-1a32"], job_states={"abc-9": state})}
    judged = judge(ranks, seen)
    assert (judged.state, judged.reason) == (found, None if found == "serving" else "rank_lost")
    ended = "the engine of rank 0 on spark-1a32 ended, its container is still up; one dead rank is a dead service."
    assert judged.evidence == ("" if found == "serving" else ended)


def test_a_killed_worker_takes_the_engine_along_but_not_the_heads_container():
    """Both are seen at once when the look comes late; what is still there must not be called gone."""
    ranks = (replace(RANKS[0], job_id="abc-9"), RANKS[1])
    head = replace(OURS["spark-1a32"], job_states={"abc-9": "exited"})
    judged = judge(ranks, both(head, node("spark-5be3", boot="boot-b")))
    assert (judged.state, judged.reason) == ("degraded", "rank_lost")
    assert judged.evidence == (
        "rank 1 on spark-5be3 is gone and the engine of rank 0 on spark-1a32 ended, its container is still up; "
        "one dead rank is a dead service."
    )


def test_all_gone_says_of_each_how_it_ended():
    """Without Ray on the head the worker's Ray ends too, and the look often comes after both."""
    ranks = (replace(RANKS[0], job_id="abc-9"), RANKS[1])
    ended = {
        "spark-1a32": Container(name="vllm-qwen35-r0", state="exited", exit_code=1),
        "spark-5be3": Container(name="vllm-qwen35-r1", state="exited", exit_code=137),
    }
    judged = judge(ranks, {name: replace(OURS[name], containers=(one,)) for name, one in ended.items()})
    assert (judged.state, judged.reason) == ("lost", "vanished")
    assert judged.evidence == (
        "vllm-qwen35-r0 on spark-1a32 and vllm-qwen35-r1 on spark-5be3 gone without a reboot. How they ended: "
        "Ray in vllm-qwen35-r0 ended with exit code 1; vllm-qwen35-r1 was stopped or killed from outside, exit code 137."
    )


@pytest.mark.parametrize(("state", "reason"), [("running", None), ("exited", "vanished")])
def test_a_plain_process(state, reason):
    seen = {"box": NodeSeen("box", 1.0, boot_id="b", containers=(), job_states={"abc-1": state})}
    assert judge((RankWanted(0, "box", "", "b", "abc-1"),), seen).reason == reason


def test_a_unit_is_named_for_its_own_containers_only():
    """What merely runs beside them was started by somebody else."""
    proxy = Unit(name="vllm-proxy.service", active="active", containers=("proxy",))
    idle = Unit(name="old.service", active="inactive", containers=("grafana",))
    beside = replace(
        OLD_STACK,
        containers=(*OLD_STACK.containers, Container(name="grafana", state="running")),
        units=(CLUSTER, proxy, idle),
    )
    found = judge(RANKS, both(beside, node("spark-5be3", boot="boot-d")))
    assert found.evidence == (
        "Both nodes rebooted 24 min ago. On spark-1a32, vllm-cluster.service started vllm_node, vllm_embeddings and reranker "
        "and grafana runs there too, holding 98 GiB."
    )


def test_who_starts_by_a_policy_of_docker_is_no_units():
    policy = node("spark-1a32", boot="boot-c", running=("grafana", "prometheus"), units=(CLUSTER,))
    found = judge(RANKS, both(policy, node("spark-5be3", boot="boot-d")))
    assert found.evidence.endswith("On spark-1a32, grafana and prometheus run there now.")


THREE = tuple(
    RankWanted(number, "spark-1a32", f"glm-{label}-r0", "boot-a", service=service, label=label)
    for number, (service, label) in enumerate((("", "chat"), ("embeddings", "embeddings"), ("reranker", "reranker")))
)
NAMES = ("glm-chat-r0", "glm-embeddings-r0", "glm-reranker-r0")


def three(*running: str, boot: str = "boot-a", **more) -> dict[str, NodeSeen]:
    return {"spark-1a32": node("spark-1a32", boot=boot, running=running, **more)}


@pytest.mark.parametrize(
    ("seen", "state", "reason", "said"),
    [
        (three(*NAMES), "serving", None, ""),
        (
            three(*NAMES[:2]),
            "degraded",
            "rank_lost",
            "reranker: glm-reranker-r0 on spark-1a32 gone without a reboot. chat and embeddings serve on.",
        ),
        (three(NAMES[1]), "degraded", "rank_lost", "embeddings serves on."),
        (three(), "lost", "vanished", "glm-chat-r0 on spark-1a32, glm-embeddings-r0 on spark-1a32 and"),
        (three(boot="boot-c"), "lost", "rebooted", "spark-1a32 rebooted 24 min ago"),
        ({"spark-1a32": NodeSeen("spark-1a32", 1.0, reason="no_route")}, "unreachable", "no_route", "did not answer"),
    ],
)
def test_services_are_judged_each_for_itself(seen, state, reason, said):
    found = judge(THREE, seen)
    assert (found.state, found.reason) == (state, reason) and said in found.evidence
    assert set(found.services) == {"", "embeddings", "reranker"} == set(found.to_json()["services"])


def test_of_a_service_with_ranks_left_it_is_said():
    """on_rank_lost is about the ranks of one service: those of the others are nothing that is left of it."""
    ranks = (*THREE[:2], RankWanted(2, "spark-1a32", "a-r0", "boot-a", service="reranker", label="reranker"))
    ranks += (RankWanted(3, "spark-5be3", "a-r1", "boot-b", service="reranker", label="reranker"),)
    seen = both(node("spark-1a32", boot="boot-a", running=(*NAMES[:2], "a-r0")), node("spark-5be3", boot="boot-b"))
    found = judge(ranks, seen)
    assert {name: one.left for name, one in found.services.items()} == {
        "": False,
        "embeddings": False,
        "reranker": True,
    }
    assert found.state == "degraded" and "rank 3 on spark-5be3 is gone" in found.evidence


def test_a_unit_found_as_a_plain_process_and_a_container_that_is_unhealthy():
    unit = RankWanted(0, "box", "", "b", unit="vllm.service", healthy=True)
    up = Unit(name="vllm.service", active="active")
    assert judge((unit,), {"box": node("box", boot="b", units=(up,))}).state == "serving"
    found = judge((unit,), {"box": node("box", boot="b", units=(replace(up, active="failed"),))})
    assert (found.state, found.reason) == ("lost", "vanished") and "vllm.service on box" in found.evidence
    rank = RankWanted(0, "box", "vllm_node", "b", healthy=True)
    sick = replace(node("box", boot="b"), containers=(Container("vllm_node", state="running", health="unhealthy"),))
    assert judge((rank,), {"box": sick}).state == "degraded"
    assert judge((replace(rank, healthy=False),), {"box": sick}).state == "serving"


def events(name: str, *acts: tuple[str, float, int | None, int | None]) -> tuple[ContainerEvent, ...]:
    return tuple(ContainerEvent(name, action, at, code, signal) for action, at, code, signal in acts)


KILLED = events(
    "vllm-qwen35-r0", ("kill", 50_580.0, None, 9), ("die", 50_580.0, 137, None), ("destroy", 50_581.0, None, None)
)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (KILLED, "Docker on spark-1a32 tells of vllm-qwen35-r0: somebody had it stopped with signal 9, it ended at 14:03:00 UTC with "
                 "exit code 137 and it was removed at 14:03:01 UTC."),
        (events("vllm-qwen35-r0", ("die", 50_580.0, 1, None), ("destroy", 50_600.0, None, None)),
         "it ended with exit code 1 at 14:03:00 UTC and it was removed at 14:03:20 UTC."),
        (events("vllm-qwen35-r0", ("oom", 50_579.0, None, None), ("die", 50_580.0, 137, None)),
         "it ran out of memory and it ended with exit code 137"),
        (events("another", ("destroy", 50_580.0, None, None)), "gone without a reboot."),
        ((), "gone without a reboot."),
    ],
)  # fmt: skip
def test_who_removed_a_container_is_told_as_far_as_docker_knows(told, said):
    seen = both(node("spark-1a32", boot="boot-a", events=told), node("spark-5be3", boot="boot-b"))
    found = judge(RANKS, seen)
    assert (found.state, found.reason, found.sure) == ("lost", "vanished", False) and said in found.evidence


def test_a_lost_rank_whose_container_was_removed():
    seen = both(node("spark-1a32", boot="boot-a", events=KILLED), OURS["spark-5be3"])
    found = judge(RANKS, seen)
    assert (found.state, found.reason) == ("degraded", "rank_lost")
    assert (
        "rank 0 on spark-1a32 is gone (Docker on spark-1a32 tells of vllm-qwen35-r0: somebody had it stopped"
        in found.evidence
    )


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (("spark-5be3",), "spark-5be3 did not answer: timed out."),
        (("spark-1a32",), "spark-5be3 is out of sight: the jump host spark-1a32 did not let us through: timed out."),
    ],
)
def test_a_silent_node_and_a_silent_jump_host_are_named_apart(silent, said):
    away = NodeSeen("spark-5be3", 1.0, reason="ssh_timeout", evidence="timed out", hop=silent[0])
    assert judge(RANKS, both(OURS["spark-1a32"], away)).evidence == said
