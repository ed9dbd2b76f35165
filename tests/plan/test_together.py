"""Three services on one node: their plans, and what of them is left alone, by golden files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from apps.facts.values import Container, Listener
from apps.plan import gates, together
from apps.plan.printing import story
from apps.plan.spec import Spec
from apps.plan.stories import launch, relaunch, stop
from apps.plan.together import bases
from tests.plan import sheets
from tests.plan.sheets import CONSENTED, GIVEN, pair, qwen35
from tests.plan.test_stories import same_as_golden

NODE = "spark-5be3"


def part(name: str, port: int, share: float, **more: Any) -> Spec:
    body: dict[str, Any] = {
        "name": "glm",
        "model": f"some/{name}",
        "model_path": sheets.SMALL.path,
        "max_model_len": 8192,
        "nodes": (NODE,),
        "cluster": "single",
        "tensor_parallel": 1,
        "container": f"glm-{name}",
        "port": port,
        "gpu_memory_utilization": share,
        "reasoning_parser": "",
        "tool_call_parser": "",
        "attention_backend": "",
    }
    return qwen35(**{**body, **more})


def three(**more: Any) -> Spec:
    spec = part("chat", 30000, 0.48, **more)
    further = (
        part("embeddings", 30001, 0.18, service="embeddings", kind="embeddings"),
        part("reranker", 30002, 0.18, service="reranker", kind="rerank"),
    )
    return replace(spec, services=further)


def served(*missing: str) -> dict[str, sheets.Sheet]:
    """Deployment 7 as it serves on the node, but for the services named."""
    sheet = pair(busy=False)[NODE]
    there = [one for one in three().each if one.label not in missing]
    containers = tuple(
        Container(
            f"{one.container}-r0",
            image=sheets.IMAGE,
            state="running",
            labels={"sparkweb.deployment": "7", "sparkweb.revision": "3", "sparkweb.service": one.service},
            memory_bytes=20 << 30,
        )
        for one in there
    )
    listeners = (*(sheet.listeners or ()), *(Listener("0.0.0.0", one.port) for one in there))
    return {NODE: replace(sheet, containers=containers, listeners=listeners)}


def test_launch() -> None:
    same_as_golden("launch-three-services.txt", story(launch(three(), pair(busy=False), given=GIVEN)))


def test_relaunch_starts_only_what_is_missing() -> None:
    plan = relaunch(three(), served("reranker"), given=replace(GIVEN, serving=("", "embeddings")))
    same_as_golden("relaunch-one-of-three.txt", story(plan))
    assert plan.kept == ("", "embeddings")
    assert [stage.name for stage in plan.stages] == [
        "Preflight",
        "Clear",
        "reranker: Engine",
        "reranker: Serve",
        "reranker: Verify",
    ]


def test_what_the_watch_does_not_vouch_for_is_started_anew() -> None:
    plan = relaunch(three(), served("reranker"), given=replace(GIVEN, serving=("",)))
    assert plan.kept == ("",)
    other = relaunch(three(), served("reranker"), given=replace(GIVEN, revision=4, serving=("", "embeddings")))
    assert other.kept == ()


def test_nothing_to_launch_where_all_three_stand() -> None:
    plan = launch(three(), served(), given=replace(GIVEN, healthy=True))
    assert [one.name for one in plan.problems] == ["already_serving"] and "30000, 30001, 30002" in plan.problems[
        0
    ].meaning


def test_stop_in_reverse_order() -> None:
    plan = stop(three(), served(), given=GIVEN)
    same_as_golden("stop-three-services.txt", story(plan))
    assert [stage.name for stage in plan.stages] == ["Stop reranker", "Stop embeddings", "Stop chat"]


def test_stop_of_one_service_leaves_the_others() -> None:
    main = stop(three(), served(), given=replace(GIVEN, only=("",)))
    assert main.kept == ("embeddings", "reranker")
    script = main.stages[0].steps[0].script
    assert "grep -vxF -e glm-embeddings-r0 -e glm-reranker-r0" in script
    one = stop(three(), served(), given=replace(GIVEN, only=("reranker",)))
    assert "label=sparkweb.service=reranker" in one.stages[0].steps[0].script and len(one.stages) == 1


def test_every_key_is_of_one_step_and_ranks_count_through() -> None:
    plan = launch(three(), pair(busy=False), given=GIVEN)
    keys = [step.key for stage in plan.stages for step in stage.steps]
    assert len(keys) == len(set(keys))
    ranks = {step.service: step.rank for stage in plan.stages for step in stage.steps if step.kind == "serve"}
    assert ranks == {"": 0, "embeddings": 1, "reranker": 2}


def test_a_service_keeps_room_for_the_ranks_that_its_log_names() -> None:
    assert bases(three(tensor_parallel=2)) == {"": 0, "embeddings": 2, "reranker": 3}


def test_stages_of_a_single_service_stay_as_they_are() -> None:
    alone = launch(three().alone, pair(busy=False), given=GIVEN)
    assert together.as_part(three().alone, three().alone, alone.stages) == alone.stages


@pytest.mark.parametrize(
    ("shares", "verdict", "said"),
    [
        ((0.48, 0.18, 0.18), "fits", "Chat: Fits."),
        ((0.55, 0.25, 0.25), "does_not_fit", "chat, embeddings and reranker together claim 125.7 of 119.7 GiB"),
        ((0.4, 0.1, 0.18), "does_not_fit", "Embeddings: Does not fit"),
    ],
)
def test_the_fit_of_all_is_that_of_each_beside_the_others(
    shares: tuple[float, float, float], verdict: str, said: str
) -> None:
    spec = three()
    services = tuple(
        replace(one, gpu_memory_utilization=share) for one, share in zip(spec.services, shares[1:], strict=True)
    )
    plan = launch(replace(spec, gpu_memory_utilization=shares[0], services=services), pair(busy=False), given=GIVEN)
    assert plan.fit and plan.fit.verdict == verdict and said in plan.fit.sentence
    for bar in plan.fit.bars:
        assert verdict != "fits" or sum(size for _, size in bar.segments) == bar.total_bytes


def test_a_missing_model_of_a_further_service_is_named() -> None:
    spec = three()
    lost = replace(spec.services[1], model_path="/models/none")
    plan = launch(replace(spec, services=(spec.services[0], lost)), pair(busy=False), given=GIVEN)
    assert "reranker: There is no model at /models/none on spark-5be3" in [one.title for one in plan.problems]


def test_an_image_that_changed_under_a_further_service_is_seen_by_the_preflight() -> None:
    plan = launch(three(), pair(busy=False), given=GIVEN)
    probe = plan.stages[0].steps[0]
    further = [dict(one, shards=9999) for one in probe.gate["further"]]
    judged = gates.judge_sheet({**probe.gate, "further": further}, pair(busy=False)[NODE])
    assert judged.failed == "model_path_missing" and re.search(r"of \d+ shards", judged.message)
    assert gates.judge_sheet(probe.gate, pair(busy=False)[NODE]).done


def test_a_relaunch_of_what_was_taken_over_ends_the_following_and_clears_what_was_found() -> None:
    spec = replace(three(), nodes=("spark-1a32",))
    spec = replace(spec, services=tuple(replace(one, nodes=spec.nodes) for one in spec.services))
    given = replace(CONSENTED, found=CONSENTED.clear)
    plan = relaunch(spec, pair(), given=given)
    steps = [step for stage in plan.stages if stage.name == "Clear" for step in stage.steps]
    assert [step.ends for step in steps if step.kind == "end"] == [
        "serve.engine.spark-1a32", "serve.embeddings.engine.spark-1a32", "serve.reranker.engine.spark-1a32"
    ]  # fmt: skip
    titles = [step.title for step in steps]
    assert titles.index("End what is left of the engine") < next(
        n for n, one in enumerate(titles) if one.startswith("Stop vllm-")
    )
    stopped = stop(spec, pair(), given=given)
    assert [stage.name for stage in stopped.stages] == ["Clear", "Stop reranker", "Stop embeddings", "Stop chat"]
