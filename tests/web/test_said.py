"""What the pages say is so: ranks, ways on and back, one wording, nothing twice."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from apps.deployments.models import Deployment
from apps.diagnosis.refusal import Refused
from apps.pages.deployments import sentence_of
from apps.pages.facts import Group
from apps.pages.refusing import error_of
from apps.pages.words import wrapping
from apps.plan.step import Step
from apps.runs import services as runs
from apps.runs.models import Run
from tests.web import seed as story

SignedIn = Callable[[str], Client]


def page(client: Client, path: str) -> str:
    return client.get(path).content.decode()


@pytest.mark.parametrize(
    ("state", "word"), [("serving", "serving"), ("lost", "gone"), ("stopping", "stopping"), ("launching", "starting")]
)
def test_a_rank_serves_only_while_its_deployment_does(
    state: str, word: str, seeded: story.Seeded, signed_in: SignedIn
) -> None:
    Deployment.objects.filter(pk=seeded.serving.pk).update(state=state, reason=None, evidence="")
    ranks = page(signed_in("viewer"), seeded.serving.get_absolute_url()).partition('id="ranks-head"')[2]
    cells = re.findall(r'data-label="State">(.*?)</td>', ranks, re.DOTALL)
    assert [re.sub(r"<[^>]+>", "", cell) for cell in cells[:2]] == [word, word]
    here = (
        page(signed_in("viewer"), seeded.head.get_absolute_url()).partition('id="runs-here"')[2].partition("</ul>")[0]
    )
    about = next(row for row in here.split("<li>") if f">{seeded.serving.name}<" in row)
    assert re.sub(r"<[^>]+>", "", about).split()[-1] == word


def test_ranks_of_a_run_that_ended_do_not_start(seeded: story.Seeded, signed_in: SignedIn) -> None:
    Run.objects.filter(pk=seeded.failed_run.pk).update(state="failed")
    seeded.failed_run.steps.update(progress={})
    ranks = page(signed_in("viewer"), seeded.failed_run.get_absolute_url()).partition('id="ranks-head"')[2]
    assert "did not load" in ranks.partition("</section>")[0] and "starting" not in ranks.partition("</section>")[0]


def test_what_never_served_is_launched_again_and_has_nothing_to_stop(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("editor")
    text = page(client, seeded.failed.get_absolute_url())
    assert "plan?story=launch" in text and "Relaunch…" not in text and "Stop…" not in text
    text = page(client, seeded.lost.get_absolute_url())
    assert "plan?story=launch" not in text and "Relaunch…" in text and "Stop…" in text


def test_a_probe_for_a_plan_leads_back_to_it(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    plan = f"/deployments/{seeded.lost.pk}/plan?story=relaunch"
    form = page(client, plan).partition('action="/nodes/probe"')[2].partition("</form>")[0]
    fields = re.findall(r'name="(name|plan|story)" value="([^"]*)"', form)
    body: dict[str, list[str]] = {}
    for name, value in fields:
        body.setdefault(name, []).append(value)
    answer = client.post("/nodes/probe", body)
    text = page(client, answer.headers["Location"])
    assert f'href="{plan}"' in text.replace("&amp;", "&") and "Back to the plan" in text
    for other in ("plan=1&story=//elsewhere", "plan=//elsewhere&story=launch", "plan=1", "story=stop"):
        assert "Back to the plan" not in page(client, f"/runs/{seeded.loading.pk}?{other}")


def test_a_node_tells_of_a_probe_of_several(seeded: story.Seeded, signed_in: SignedIn) -> None:
    run = runs.probe(story.OPERATOR, [seeded.head, seeded.second])
    for node in (seeded.head, seeded.second):
        told = page(signed_in("viewer"), node.get_absolute_url()).partition('id="history-head"')[2]
        assert f'href="/runs/{run.pk}"' in told and "asked to probe" in told
        assert f'href="/audit?object=node:{node.pk}"' in told, "the page has the newest acts, the trail all"
        assert "confirmed the ed25519 host key of" in page(signed_in("viewer"), f"/audit?object=node:{node.pk}")


def test_refusals_keep_the_way_to_the_other_pages(seeded: story.Seeded, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    for path, status in (("/deployments/new", 403), ("/nothing/here", 404)):
        answer = client.get(path)
        assert answer.status_code == status and 'href="/deployments"' in answer.content.decode(), path


def test_the_cluster_stacks_its_nodes_for_a_phone(seeded: story.Seeded, signed_in: SignedIn) -> None:
    stack = page(signed_in("viewer"), "/cluster").partition('class="rows only-phone"')[2].partition("</ul>")[0]
    head, second, away = stack.split("<li>")[1:]
    assert "192.168.200.12" in head and "management 10.1.230.180" in head
    assert "192.168.200.13" in second and "through spark-1a32" in second
    assert "no fabric address" in away


def test_one_wording_for_an_act(seeded: story.Seeded, signed_in: SignedIn) -> None:
    rows = page(signed_in("viewer"), "/audit").partition('id="entries"')[2]
    assert "asked to launch" in rows and ">deployment:launch<" not in rows


def test_a_word_without_end_is_cut() -> None:
    shown = error_of(Refused("bad_input", f"{'x' * 300!r} is no node name.", field="name"))
    assert len(shown.detail) < 120 and shown.detail.endswith("… is no node name.")


@pytest.mark.parametrize(
    ("title", "why", "said"),
    [
        ("Wait until 98 GiB are free", "waits until 98 GiB are free, at most 2 min", "Wait until 98 GiB are free: at most 2 min"),
        ("End the engine's job", "the job that served", "End the engine's job: the job that served"),
        ("Serve", "", "Serve"),
    ],
)  # fmt: skip
def test_a_step_says_nothing_twice(title: str, why: str, said: str) -> None:
    assert sentence_of(Step(key="a", node="n", title=title, kind="wait", why=why)) == said


def test_only_long_words_may_break() -> None:
    assert wrapping("vllm_embeddings") == "" and wrapping(3) == "" and wrapping("/models/" + "a" * 30) == "anywhere"


def test_a_folded_section_says_its_gist() -> None:
    assert Group("Ports", heads=("Port",), table=((22,), (80,))).gist == "2"
    assert Group("Machine", pairs=(("Model", "Spark"), ("System", "Ubuntu"), ("Kernel", "6"))).gist == "Spark · Ubuntu"
