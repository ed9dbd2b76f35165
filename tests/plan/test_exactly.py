"""A relaunch beside the last good launch: what is derived anew from the nodes, what is pinned, what it waits for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from apps.facts.sheet import Sheet
from apps.facts.values import Address, Docker, Gpus, Image, Listener
from apps.plan import gates
from apps.plan.recorded import Recorded
from apps.plan.spec import Given, Spec
from apps.plan.step import Difference, Plan, Step
from apps.plan.stories import launch, relaunch
from tests.plan.sheets import GIVEN, IMAGE, IMAGE_ID, pair, qwen35

OTHER_ID = "sha256:" + "c" * 64
FABRIC = {"enp1s0f0np0": "enp1s0f1np1", "enp1s0f1np1": "enp1s0f0np0"}  # the port is another after the reboot


def recorded(spec: Spec | None = None, *, revision: int = 3) -> Given:
    """As after a good launch of this spec on the pair, through JSON as it is stored."""
    plan = launch(spec or qwen35(), pair(busy=False), given=replace(GIVEN, revision=revision))
    assert not plan.refused and plan.stages
    return replace(GIVEN, last_good=Recorded(41, revision, json.loads(json.dumps(plan.to_json()))))


def rebooted(sheet: Sheet, octet: int) -> Sheet:
    """The cable's other port is up, under its own name, and the address of the subnet is another."""
    assert sheet.machine and sheet.interfaces and sheet.fabric
    there = {one.name: one for one in sheet.interfaces}
    moved = tuple(
        replace(there[FABRIC[one.name]], name=one.name) if one.name in FABRIC else one for one in sheet.interfaces
    )
    moved = tuple(
        replace(one, addresses=(Address(f"192.168.200.{octet}", 24),)) if one.name == "enp1s0f1np1" else one
        for one in moved
    )
    fabric = tuple(
        replace(one, state="DOWN")
        if one.name == "rocep1s0f0"
        else replace(one, state="ACTIVE", physical_state="LinkUp")
        if one.name == "rocep1s0f1"
        else one
        for one in sheet.fabric
    )
    return replace(sheet, machine=replace(sheet.machine, boot_id="second"), interfaces=moved, fabric=fabric)


def steps_of(plan: Plan) -> dict[str, Step]:
    return {step.key: step for stage in plan.stages for step in stage.steps}


def text_of(plan: Plan) -> str:
    return "\n".join(step.script for step in steps_of(plan).values())


def images(sheet: Sheet, tag_id: str, *, keep: bool) -> Sheet:
    """The tag names another image; the recorded one is still there without a tag, or is not."""
    assert sheet.images
    moved = tuple(replace(one, id=tag_id) if one.ref == f"{IMAGE}:latest" else one for one in sheet.images)
    return replace(sheet, images=(*moved, *((Image(None, IMAGE_ID, None, "arm64"),) if keep else ())))


def test_the_same_nodes_make_the_same_plan_and_no_difference() -> None:
    plan = relaunch(qwen35(), pair(busy=False), given=recorded())
    assert (plan.differences, plan.last_good) == ((), 41)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.digest == relaunch(qwen35(), pair(busy=False), given=GIVEN).digest, "it says no word of a command"


def test_interfaces_and_addresses_that_a_reboot_changed_are_derived_anew_and_shown() -> None:
    before = pair(busy=False)
    after = {
        "spark-1a32": rebooted(before["spark-1a32"], 22),
        "spark-5be3": before["spark-5be3"],
    }
    plan = relaunch(qwen35(), after, given=recorded())
    assert not plan.refused, plan.refused
    shown = {(one.node, one.name): (one.before, one.after) for one in plan.differences}
    assert shown[("spark-1a32", "VLLM_HOST_IP")] == ("192.168.200.12", "192.168.200.22")
    assert shown[("spark-1a32", "NCCL_SOCKET_IFNAME")] == ("enp1s0f0np0", "enp1s0f1np1")
    assert shown[("spark-1a32", "GLOO_SOCKET_IFNAME")] == ("enp1s0f0np0", "enp1s0f1np1")
    assert shown[("spark-1a32", "NCCL_IB_HCA")][1].startswith("roceP2p1s0f0")
    assert all(one.kind == "node" and one.reason for one in plan.differences), plan.differences
    assert {node for node, _ in shown} == {"spark-1a32"}, "the other node is as it was"
    text = text_of(plan)
    assert "192.168.200.22" in text and "192.168.200.12" not in text and "enp1s0f1np1" in text
    gate = steps_of(plan)["preflight.probe.spark-1a32"].gate
    assert gate["fabric"] == {"address": "192.168.200.22", "interface": "enp1s0f1np1"}
    assert "192.168.200.22" in steps_of(plan)["preflight.peer.spark-5be3.spark-1a32"].script


def test_what_another_revision_changed_is_told_apart_from_what_the_nodes_say() -> None:
    changed = qwen35(max_model_len=65536, arguments=("--max-num-seqs", "8"))
    plan = relaunch(changed, pair(busy=False), given=replace(recorded(), revision=4))
    found = {one.name: one for one in plan.differences}
    assert found["max_model_len"] == Difference(
        "max_model_len", "131072", "65536", "revision 4 says so", kind="revision"
    )
    assert found["--max-model-len"].after == "65536" and found["--max-model-len"].kind == "revision"
    assert found["arguments"].before == "" and found["arguments"].after == "--max-num-seqs, 8"


def test_the_recorded_image_is_taken_by_its_id_when_its_tag_moved() -> None:
    moved = {node: images(sheet, OTHER_ID, keep=True) for node, sheet in pair(busy=False).items()}
    plan = relaunch(qwen35(), moved, given=recorded())
    assert not plan.refused, plan.refused
    assert IMAGE_ID in text_of(plan) and OTHER_ID not in text_of(plan)
    assert plan.spec["image"] == IMAGE, "the revision says what it said"
    gate = steps_of(plan)["preflight.probe.spark-5be3"].gate
    assert (gate["image"], gate["image_id"], gate["image_said"]) == (IMAGE_ID, IMAGE_ID, IMAGE)
    assert [(one.name, one.node, one.after) for one in plan.differences if one.kind == "files"] == [
        ("image", "spark-1a32", IMAGE_ID),
        ("image", "spark-5be3", IMAGE_ID),
    ]
    again = replace(GIVEN, last_good=Recorded(42, 3, json.loads(json.dumps(plan.to_json()))))
    assert IMAGE_ID in text_of(relaunch(qwen35(), moved, given=again)), "a pinned launch is a good one like any other"
    taken = launch(qwen35(), moved, given=recorded())
    assert IMAGE_ID not in text_of(taken) and [one.after for one in taken.differences] == [OTHER_ID, OTHER_ID]


def test_a_recorded_image_that_is_gone_stops_a_relaunch_and_the_way_on_is_said() -> None:
    moved = {node: images(sheet, OTHER_ID, keep=False) for node, sheet in pair(busy=False).items()}
    plan = relaunch(qwen35(), moved, given=recorded())
    assert [(one.name, one.node) for one in plan.refused] == [
        ("image_changed", "spark-1a32"),
        ("image_changed", "spark-5be3"),
    ]
    assert all("launch" in one.remedy and one.evidence == IMAGE_ID for one in plan.refused)
    assert not launch(qwen35(), moved, given=recorded()).refused
    assert not relaunch(qwen35(port=30001), moved, given=recorded()).refused, "a change takes what the tag names"


def test_other_weights_are_shown() -> None:
    other = pair(busy=False)
    for node, sheet in other.items():
        assert sheet.models
        model = replace(sheet.models[0], weights_bytes=118_990_000_001)
        other[node] = replace(sheet, models=(model, *sheet.models[1:]))
    found = [one for one in relaunch(qwen35(), other, given=recorded()).differences if one.name == "weights"]
    assert [(one.node, one.after) for one in found] == [
        ("spark-1a32", "118990000001 bytes"),
        ("spark-5be3", "118990000001 bytes"),
    ]


def test_the_port_where_ranks_meet_moves_when_nobody_can_be_cleared_from_it() -> None:
    taken = pair(busy=False)
    head = taken["spark-1a32"]
    taken["spark-1a32"] = replace(head, listeners=(*(head.listeners or ()), Listener("*", 6379)))
    assert [one.name for one in launch(qwen35(), taken, given=recorded()).refused] == ["port_busy"]
    plan = relaunch(qwen35(), taken, given=recorded())
    assert not plan.refused and "6380" in text_of(plan) and "6379" not in text_of(plan)
    found = next(one for one in plan.differences if one.name == "cluster_port")
    assert (found.before, found.after) == ("", "6380") and "taken" in found.reason


def _docker(sheet: Sheet) -> Sheet:
    return replace(sheet, docker=Docker(True, problem="docker_down"), containers=None, images=None)


def _silent(sheet: Sheet) -> Sheet:
    return replace(sheet, docker=None, containers=None, images=None)


def _no_gpu(sheet: Sheet) -> Sheet:
    return replace(sheet, gpus=Gpus(problem="driver_not_running"))


def _no_address(sheet: Sheet) -> Sheet:
    return replace(sheet, interfaces=tuple(replace(one, addresses=()) for one in sheet.interfaces or ()))


def _no_image(sheet: Sheet) -> Sheet:
    return replace(sheet, images=())


def _renamed(sheet: Sheet) -> Sheet:
    return rebooted(replace(sheet), 12)


@pytest.mark.parametrize(
    ("seen", "waits", "reason", "said"),
    [
        (_docker, True, "docker_down", "Docker on spark-1a32"),
        (_silent, True, "docker_down", "did not answer in time"),
        (_no_gpu, True, "driver_not_running", "spark-1a32 shows no GPU yet"),
        (_no_address, True, "fabric_down", "enp1s0f0np0 on spark-1a32 has no address 192.168.200.12 yet"),
        (_no_image, False, "image_missing", "is not on spark-1a32"),
        (_renamed, False, "plan_changed", "192.168.200.12 on spark-1a32 is on enp1s0f1np1 now"),
        (lambda sheet: _no_gpu(_no_image(sheet)), False, "image_missing", "shows no GPU yet"),
    ],
)
def test_a_relaunch_waits_for_a_node_that_is_half_up(
    seen: Callable[[Sheet], Sheet], waits: bool, reason: str, said: str
) -> None:
    sheet = pair(busy=False)["spark-1a32"]
    look = steps_of(relaunch(qwen35(), pair(busy=False), given=GIVEN))["preflight.probe.spark-1a32"]
    judged = gates.judge_sheet(look.gate, seen(sheet))
    assert (judged.done, judged.failed) == (False, None if waits else reason)
    assert said in judged.message
    if waits:
        assert judged.values["reason"] == reason and judged.message.startswith("waits: ")
    assert gates.judge_sheet(look.gate, sheet).done
    assert look.within_s == 300 and "waits up to 5 min" in look.why
    first = steps_of(launch(qwen35(), pair(busy=False), given=GIVEN))["preflight.probe.spark-1a32"]
    if waits and seen not in (_no_gpu, _no_address):
        assert gates.judge_sheet(first.gate, seen(sheet)).failed == reason, "a launch says no at once"


@pytest.mark.parametrize(
    ("printed", "exit_code", "done"),
    [
        ("1 packets transmitted, 1 received, 0% packet loss, time 0ms\n", 0, True),
        ("1 packets transmitted, 1 packets received, 0% packet loss\n", 0, True),
        ("1 packets transmitted, 0 received, 100% packet loss, time 0ms\n", 0, False),
        ("192.168.200.13 dev enp1s0f0np0 lladdr 4c:bb:47:11:22:33 REACHABLE\n", 0, True),
        ("192.168.200.13 dev enp1s0f0np0 lladdr 4c:bb:47:11:22:33 used 1/1/0 probes 1 DELAY\n", 0, True),
        ("192.168.200.13 dev enp1s0f0np0 lladdr 4c:bb:47:11:22:33 STALE\n", 0, False),
        ("192.168.200.13 dev enp1s0f0np0 FAILED\n", 0, False),
        ("", 2, False),
    ],
)
def test_a_peer_that_answers_on_the_link(printed: str, exit_code: int, done: bool) -> None:
    gate = {"name": "peer_answers", "peer": "spark-5be3", "address": "192.168.200.13", "interface": "enp1s0f0np0"}
    judged = gates.judge(gate, printed, exit_code)
    assert (judged.done, judged.failed) == (done, None) and "spark-5be3" in judged.message
    assert gates.timeout_reason(gate) == "fabric_down"


def test_the_head_waits_for_everybody_and_everybody_for_the_head() -> None:
    plan = relaunch(qwen35(), pair(busy=False), given=GIVEN)
    peers = [step.key for step in plan.stages[0].steps if step.kind == "wait"]
    assert peers == ["preflight.peer.spark-1a32.spark-5be3", "preflight.peer.spark-5be3.spark-1a32"]
    one = qwen35(nodes=("spark-5be3",), cluster="single", tensor_parallel=1, model_path="/models/Qwen3-8B")
    alone = relaunch(one, {"spark-5be3": pair(busy=False)["spark-5be3"]}, given=GIVEN)
    assert alone.stages and not [step for step in alone.stages[0].steps if step.kind == "wait"]
