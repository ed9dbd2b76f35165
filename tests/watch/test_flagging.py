"""What is true of a deployment beside its state: a row a flag, each with its evidence; the plan that it is compared with is a real one."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from typing import Any

import pytest

from apps.facts.masking import masked
from apps.facts.values import Address, Container, EngineApi, Interface, Listener
from apps.plan.spec import Given
from apps.plan.stories import launch
from apps.watch.flagging import ServiceWanted, flagged
from apps.watch.judging import NodeSeen, RankWanted
from apps.watch.recorded import Recorded, recorded
from tests.plan import sheets

SPEC = sheets.qwen35(cluster="native", arguments=("--max-num-seqs", "16"))
PLAN = asdict(launch(SPEC, sheets.pair(busy=False), given=Given(deployment=7, revision=3)))
RECORDED = recorded(PLAN)
NAMES = ("vllm-qwen35-r0", "vllm-qwen35-r1")
NODES = ("spark-1a32", "spark-5be3")
RANKS = tuple(RankWanted(number, NODES[number], NAMES[number], "boot") for number in range(2))
PLANS = {number: RECORDED[name] for number, name in enumerate(NAMES)}
SERVICE = ServiceWanted("", "chat", NODES[0], SPEC.port, "0.0.0.0", nodes=NODES)
INTERFACES = tuple(sheets.pair(busy=False)[node].interfaces or () for node in NODES)
FABRIC = frozenset({"enp1s0f0np0", "enP2p1s0f0np0"})
API = EngineApi(SPEC.port, health=200, tokens=100.0, running=0.0, waiting=0.0, keyed=True, asked_by="curl")


def box(number: int, **changes: Any) -> Container:
    plan = PLANS[number]
    made = Container(
        NAMES[number],
        image=plan.image,
        image_id="sha256:b7e0" + "5" * 60,
        state="running",
        labels={**plan.labels, "sparkweb.run": "12"},
        command=masked(" ".join(("/usr/bin/entry", *plan.arguments))),
    )
    return replace(made, **changes)


def node(number: int, *, watts: float = 90.0, **changes: Any) -> NodeSeen:
    made = NodeSeen(
        NODES[number],
        1000.0,
        boot_id="boot",
        containers=(box(number),),
        gpus=({"power_w": watts, "util_pct": 96},),
        driver="580.95.05",
        apis=(API,) if number == 0 else (),
        listeners=(Listener("0.0.0.0", SPEC.port),) if number == 0 else (),
        interfaces=INTERFACES[number],
        fabric=FABRIC,
    )
    return replace(made, **changes)


def looks(*seen: tuple[NodeSeen, ...], service: ServiceWanted = SERVICE, **more: Any) -> list[dict[str, str]]:
    """What is flagged after each of these looks."""
    kept: Any = {}
    said = []
    for nodes in seen:
        found = flagged(RANKS, [service], {one.node: one for one in nodes}, PLANS, kept, launched="0:1 1:1", **more)
        kept = found.kept
        said.append(dict(found.flags))
    return said


GOOD = (node(0), node(1))


def test_the_plan_says_what_each_container_was_started_with() -> None:
    head = RECORDED[NAMES[0]]
    assert set(RECORDED) == set(NAMES)
    assert head.image == SPEC.image and head.labels["sparkweb.deployment"] == "7"
    assert head.arguments[-2:] == ("--max-num-seqs", "16") or "--max-num-seqs" in head.arguments
    assert head.addresses == ("192.168.200.12",) and head.interfaces == ("enp1s0f0np0",)
    assert shlex.join(head.arguments).startswith(("vllm serve", "serve", "/models", "--"))


def test_nothing_is_flagged_where_all_is_as_recorded() -> None:
    assert looks(GOOD, GOOD, GOOD)[-1] == {}


def changed(number: int, **changes: Any) -> tuple[NodeSeen, NodeSeen]:
    return (replace(GOOD[0], **changes), GOOD[1]) if number == 0 else (GOOD[0], replace(GOOD[1], **changes))


def moved(words: str, to: str) -> str:
    return (box(1).command or "").replace(words, to)


@pytest.mark.parametrize(
    ("seen", "flag", "evidence"),
    [
        (changed(1, containers=(box(1, image_id="sha256:" + "c" * 64),)), "drift",
         "vllm-qwen35-r1 on spark-5be3 runs the image cccccccccccc, b7e055555555 was launched."),
        (changed(1, containers=(box(1, image="other/image:2"),)), "drift",
         "vllm-qwen35-r1 on spark-5be3 runs the image other/image:2, recorded was hellohal2064/vllm-qwen3.5-gb10."),
        (changed(1, containers=(box(1, command=moved("--max-num-seqs 16", "--max-num-seqs 64")),)), "drift",
         "vllm-qwen35-r1 on spark-5be3 runs other arguments than recorded: without 16 and with 64."),
        (changed(1, containers=(box(1, labels={}),)), "drift",
         "vllm-qwen35-r1 on spark-5be3 was not started by this deployment's run: its label sparkweb.deployment is missing, "
         "recorded was 7."),
        (changed(1, containers=(box(1, labels={**PLANS[1].labels, "sparkweb.revision": "2"}),)), "drift",
         "its label sparkweb.revision is 2, recorded was 3."),
        (changed(0, driver="590.10"), "drift", "On spark-1a32 the driver is 590.10, was 580.95.05 at the launch."),
        (changed(0, gpu_problem="Failed to initialize NVML: Driver/library version mismatch", driver=None), "drift",
         "On spark-1a32 the driver is not the one that runs: Failed to initialize NVML: Driver/library version mismatch."),
        (changed(1, interfaces=tuple(one for one in INTERFACES[1] if one.name != "enp1s0f0np0")), "drift",
         "The interface enp1s0f0np0 that rank 1 uses is not there any more on spark-5be3."),
        (changed(1, interfaces=tuple(replace(one, up=one.up and one.name != "enp1s0f0np0") for one in INTERFACES[1])), "drift",
         "The interface enp1s0f0np0 that rank 1 uses is down on spark-5be3."),
        (changed(1, interfaces=tuple(
            replace(one, addresses=(Address("192.168.200.99", 24),)) if one.name == "enp1s0f0np0" else one
            for one in INTERFACES[1])), "drift",
         "No interface of spark-5be3 has the address 192.168.200.13 any more, which rank 1 was launched with."),
        (changed(0, apis=(replace(API, keyed=False),)), "exposed",
         "The API at port 30000 of spark-1a32 wants no key and listens on "),
        (changed(0, apis=(replace(API, health=503),)), "readiness",
         "The API at port 30000 of spark-1a32 answers with 503 when asked for /health."),
        (changed(0, apis=(replace(API, health=0, tokens=None, running=None),)), "readiness",
         "The API at port 30000 of spark-1a32 does not answer when asked for /health."),
        (changed(1, containers=None, docker_problem="Cannot connect to the Docker daemon"), "readiness",
         "Docker on spark-5be3 does not say which containers run: Cannot connect to the Docker daemon."),
    ],
)  # fmt: skip
def test_each_flag_with_its_evidence(seen: tuple[NodeSeen, NodeSeen], flag: str, evidence: str) -> None:
    first, second, third, back = looks(GOOD, seen, seen, GOOD)
    assert (first, second) == ({}, {}), "one look is not sure"
    assert set(third) == {flag} and evidence in third[flag]
    assert back == {}


def test_a_commit_of_the_model_is_named_where_the_path_names_it() -> None:
    commit, other = "a" * 40, "b" * 40
    plan = Recorded("i:1", ("serve", f"/hub/models--q/snapshots/{commit}", "--port", "1"))
    seen = {"n": NodeSeen("n", 1.0, containers=(Container("c", state="running", image="i:1",
            command=f"vllm serve /hub/models--q/snapshots/{other} --port 1"),))}  # fmt: skip
    kept: Any = {}
    for _ in range(2):
        found = flagged([RankWanted(0, "n", "c", "")], [], seen, {0: plan}, kept, launched="1")
        kept = found.kept
    assert found.flags == {"drift": "c on n runs the model commit bbbbbbbbbbbb, recorded was aaaaaaaaaaaa."}


def test_a_tag_that_names_another_image_by_now_is_no_drift_of_what_runs() -> None:
    """`docker ps` then shows an id in place of the name."""
    moved_on = changed(1, containers=(box(1, image="b7e055555555"),))
    assert looks(GOOD, moved_on, moved_on)[-1] == {}


def test_a_new_launch_is_compared_with_itself() -> None:
    other = changed(0, driver="590.10")
    kept = flagged(RANKS, [], {one.node: one for one in GOOD}, PLANS, {}, launched="1").kept
    for _ in range(3):
        found = flagged(RANKS, [], {one.node: one for one in other}, PLANS, kept, launched="2")
        kept = found.kept
    assert found.flags == {}


OPEN = replace(API, keyed=False)


@pytest.mark.parametrize(
    ("bound", "key", "asked", "said"),
    [
        ("0.0.0.0", False, "0.0.0.0", "listens on 192.168.8.12."),
        ("[::]", False, "", "listens on 192.168.8.12."),
        ("*", False, "127.0.0.1", "listens on 192.168.8.12, although the revision asks for 127.0.0.1 alone."),
        ("192.168.8.12", False, "192.168.8.12", "listens on 192.168.8.12, although"),
        ("127.0.0.1", False, "127.0.0.1", ""),
        ("[::1]", False, "::1", ""),
        ("192.168.200.12", False, "192.168.200.12", ""),  # the fabric's
        ("0.0.0.0", True, "0.0.0.0", ""),
        ("0.0.0.0", None, "0.0.0.0", ""),  # not asked yet, and the revision gives it a key
    ],
)
def test_where_an_api_is_open(bound: str, key: bool | None, asked: str, said: str) -> None:
    interfaces = (
        Interface("lo", True, addresses=(Address("127.0.0.1", 8),), role="ignore"),
        Interface("enP7s7", True, addresses=(Address("192.168.8.12", 24), Address("fe80::1", 64, "inet6", True))),
        Interface("enp1s0f0np0", True, addresses=(Address("192.168.200.12", 24),)),
        Interface("docker0", True, addresses=(Address("172.17.0.1", 16),), role="ignore"),
    )
    head = replace(
        GOOD[0],
        apis=(replace(API, keyed=key),),
        listeners=(Listener(bound, SPEC.port), Listener("0.0.0.0", 22)),
        interfaces=interfaces,
    )
    service = replace(SERVICE, host=asked, keyed=key is None)
    found = looks((head, GOOD[1]), (head, GOOD[1]), service=service)[-1].get("exposed", "")
    assert said in found and bool(said) == bool(found)


def at(seconds: float, *, tokens: float | None = 100.0, running: float = 2.0, watts: float | None = 90.0, **more: Any):
    apis = (replace(API, tokens=tokens, running=running, **more),)
    gpus = ({"power_w": watts},)
    return replace(GOOD[0], at=seconds, apis=apis, gpus=gpus), replace(GOOD[1], at=seconds, gpus=gpus)


WORKED = (at(0, tokens=100), at(20, tokens=900))


@pytest.mark.parametrize(
    ("seen", "wedged"),
    [
        ((*WORKED, at(40, tokens=900, watts=20), at(60, tokens=900, watts=20)), True),
        ((*WORKED, at(40, tokens=900, watts=20)), False),  # one look is not sure
        ((*WORKED, at(40, tokens=900), at(60, tokens=900), at(80, tokens=900)), False),  # a long prefill takes power
        ((*WORKED, at(40, tokens=900, watts=20), at(60, tokens=1000, watts=20)), False),
        ((*WORKED, *[at(s, tokens=900, watts=20, running=0) for s in (40, 60, 80)]), False),  # idle
        ((*WORKED, *[at(s, tokens=900, watts=20, health=503) for s in (40, 60, 80)]), False),  # that is readiness
        ((*WORKED, *[at(s, tokens=None, watts=20) for s in (40, 60, 80)]), False),  # no counter, no proof
        ([at(s, watts=None) for s in (0, 20, 40)], False),
        ([at(s, watts=5) for s in (0, 20, 40, 60, 80)], True),  # nor where it is not known what it takes at work
        ([at(s, watts=None) for s in (0, 20, 40, 60, 80)], True),  # without power twice the looks
        ((*WORKED, at(40, tokens=5, watts=20), at(60, tokens=5, watts=20)), False),  # it was started again
    ],
)  # fmt: skip
def test_wedged_is_a_counter_that_stands_still_while_requests_run_and_power_is_low(seen: Any, wedged: bool) -> None:
    said = looks(*seen)[-1]
    assert ("wedged" in said) is wedged


def test_the_evidence_of_wedged_names_requests_counter_and_power() -> None:
    said = looks(*WORKED, at(40, tokens=900, watts=20), at(60, tokens=900, watts=20))[-1]
    assert said["wedged"] == (
        "The API says that it is healthy and runs 2 requests, but no token came for 40 s (counter at 900), and the GPUs draw 40 W, "
        "180 W while it worked."
    )
    assert looks(*WORKED, at(40, tokens=900, watts=20), at(60, tokens=900, watts=20), at(80, tokens=901))[-1] == {}


def test_a_node_out_of_sight_takes_back_nothing_and_says_nothing() -> None:
    drifted = changed(1, driver="590.10")
    away = (GOOD[0], NodeSeen(NODES[1], 1.0, reason="ssh_timeout"))
    said = looks(GOOD, drifted, drifted, away, GOOD)
    assert set(said[2]) == {"drift"} == set(said[3]) and said[4] == {}


def test_what_was_found_is_compared_with_how_it_was_found() -> None:
    found = changed(1, containers=(box(1, labels={}, command="entry serve --port 1"),))
    other = changed(1, containers=(box(1, labels={}, command="entry serve --port 2"),))
    assert looks(found, found, as_found=True)[-1] == {}
    assert looks(found, other, other, as_found=True)[-1] == {
        "drift": "vllm-qwen35-r1 on spark-5be3 runs other arguments than recorded: without 1 and with 2."
    }
