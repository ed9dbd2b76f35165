"""Explain and Cluster, and the findings of a node's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from apps.audit.models import Entry
from apps.inventory import services as inventory
from apps.pages import charts, cluster
from apps.pages.explain import MOST_BYTES, explained
from tests.plan import sheets
from tests.web import seed as story

CASES = Path(__file__).resolve().parent.parent / "cases"
SignedIn = Callable[[str], Client]


def case(number: str) -> str:
    folder = next(CASES.glob(f"{number}-*"))
    return next(iter(folder.glob("input.*"))).read_text(errors="replace")


def test_the_form_is_there_for_a_viewer(signed_in: SignedIn) -> None:
    page = signed_in("viewer").get("/explain")
    assert page.status_code == 200
    assert b'name="text"' in page.content
    assert b'aria-current="page">Explain' in page.content


def test_a_failure_with_the_line_that_proves_it(signed_in: SignedIn) -> None:
    page = signed_in("viewer").post("/explain", {"text": case("080")}, headers={"HX-Request": "true"})
    text = page.content.decode()
    assert page.status_code == 200
    assert "<html" not in text
    assert "Out of GPU memory" in text
    assert "<mark>" in text and "CUDA out of memory" in text.partition("<mark>")[2].partition("</mark>")[0]
    assert "What to do:" in text
    assert "vLLM log" in text


def test_without_scripts_the_whole_page_comes_back_with_what_was_typed(signed_in: SignedIn) -> None:
    page = signed_in("viewer").post("/explain", {"text": "rsync: command not found"})
    assert b"<html" in page.content
    assert b"rsync: command not found</textarea>" in page.content


def test_a_file(signed_in: SignedIn) -> None:
    file = SimpleUploadedFile("log.txt", case("063").encode())
    page = signed_in("viewer").post("/explain", {"file": file, "text": ""}, headers={"HX-Request": "true"})
    assert "weights loaded" in page.content.decode()


def test_too_large_and_empty_say_what_to_do(signed_in: SignedIn) -> None:
    client = signed_in("viewer")
    large = client.post(
        "/explain",
        {"file": SimpleUploadedFile("x", b"x" * (MOST_BYTES + 1))},
        headers={"HX-Request": "true"},
    )
    assert large.status_code == 422
    assert "manage.py explain FILE" in large.content.decode()
    empty = client.post("/explain", {"text": "  "}, headers={"HX-Request": "true"})
    assert empty.status_code == 422
    assert "Paste some output" in empty.content.decode()


def test_secrets_are_masked(signed_in: SignedIn) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"[:34]
    text = f"export HF_TOKEN={secret}\nTraceback (most recent call last):\nValueError: bad {secret}\n"
    for sent in (
        text,
        f'[{{"Id": "a", "Name": "/v", "State": {{}}, "HostConfig": {{}}, "Config": {{"Cmd": ["--api-key={secret}"]}}}}]',
    ):
        page = signed_in("viewer").post("/explain", {"text": sent}, headers={"HX-Request": "true"}).content.decode()
        assert secret not in page


def test_nothing_is_stored(signed_in: SignedIn) -> None:
    client = signed_in("viewer")
    before = Entry.objects.count()
    client.post("/explain", {"text": case("080")})
    assert Entry.objects.count() == before


def test_the_output_of_a_command_gives_facts_and_findings() -> None:
    (answer,) = explained(b"rocep1s0f0 port 1 ==> enp1s0f0np0 (Up)\nroceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)\n")
    assert answer.title == "Facts: fabric tools"
    assert answer.tone == "warn"
    assert [one.sentence for one in answer.findings] == [
        "roceP2p1s0f0 on this node is down while its twin is up",
    ]


@pytest.mark.parametrize("path", sorted(CASES.glob("*/input.*")), ids=lambda path: path.parent.name[:30])
def test_every_handed_case_gives_a_page(path: Path, signed_in: SignedIn) -> None:
    file = SimpleUploadedFile("input", path.read_bytes())
    page = signed_in("viewer").post("/explain", {"file": file}, headers={"HX-Request": "true"})
    assert page.status_code == 200
    assert 'class="panel explained"' in page.content.decode()
    assert "Not recognised" not in page.content.decode() or path.parent.name[:3] in {"003", "022", "031", "047", "103"}


def test_markup_in_a_log_is_shown_and_not_run(signed_in: SignedIn) -> None:
    text = "ERROR 02-03 10:11:42 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. <b>2</b>\n"
    page = signed_in("viewer").post("/explain", {"text": text}, headers={"HX-Request": "true"}).content.decode()
    assert "GiB. &lt;b&gt;2&lt;/b&gt;" in page
    assert "<b>2</b>" not in page


def test_any_bytes_are_answered(signed_in: SignedIn) -> None:
    file = SimpleUploadedFile("x", bytes(range(256)) * 64)
    assert signed_in("viewer").post("/explain", {"file": file}).status_code == 200


# Cluster


def test_the_cluster_of_the_story(seeded: story.Seeded, signed_in: SignedIn) -> None:
    text = signed_in("viewer").get("/cluster").content.decode()
    assert text.count('class="graph-node"') == 3
    assert "192.168.200.0/24" in text and "192.168.201.0/24" in text
    assert ">192.168.200.12</text>" in text
    assert "200 Gb/s · MTU 9000" in text
    assert "via spark-1a32" in text
    assert "rocep1s0f1 on spark-5be3 have no link" in text
    assert "10.1.230.180" in text


def test_the_queries_do_not_grow_with_the_nodes(
    seeded: story.Seeded, signed_in: SignedIn, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for number in range(6):
        story.node(f"more-{number}", f"10.0.1.{number}", sheet=replace(sheets.second(), node=f"more-{number}"))
    client = signed_in("viewer")
    with django_assert_max_num_queries(12):  # type: ignore[attr-defined]
        client.get("/cluster")


def test_the_graph_is_the_same_for_the_same_figures() -> None:
    nodes = [
        charts.GraphNode("a", "/nodes/1", "GB10", "ok", "10.0.0.1"),
        charts.GraphNode("<b>", "/", "", "bad", "", 0),
    ]
    lines = [charts.Bus("192.168.1.0/24", (charts.Junction(0, "eth0", "192.168.1.2", "100 Gb/s", "ok"),))]
    first = charts.cluster_graph(nodes, lines)
    assert first == charts.cluster_graph(nodes, lines)
    assert "&lt;b&gt;" in first and "<b>" not in first
    assert 'data-alone="yes"' in first
    assert charts.cluster_graph([], []).startswith("<svg")


def test_buses_join_those_in_one_subnet(seeded: story.Seeded) -> None:
    nodes = [seeded.head, seeded.second, seeded.away]
    lines = cluster.buses(nodes, cluster.newest_sheets(nodes))
    assert [(line.name, [one.node for one in line.junctions]) for line in lines] == [
        ("192.168.200.0/24", [0, 1]),
        ("192.168.201.0/24", [0, 1]),
    ]


# The node's findings


def test_findings_of_the_node_come_first_with_meaning_fix_and_evidence(
    seeded: story.Seeded, signed_in: SignedIn
) -> None:
    text = signed_in("viewer").get(seeded.head.get_absolute_url()).content.decode()
    assert text.index("98.1 GiB of 119.7 GiB on spark-1a32 are held by") < text.index('id="facts-machine"')
    assert "Stopping frees: vllm_node 80.0 GiB" in text
    assert 'href="#raw-container-memory"' in text and 'id="raw-container-memory"' in text


def test_what_changed_since_the_sheet_before(seeded: story.Seeded, signed_in: SignedIn) -> None:
    text = signed_in("viewer").get(seeded.head.get_absolute_url()).content.decode()
    assert "it was rebooted" in text
    assert "container vllm_node is new (running)" in text
    second = signed_in("viewer").get(seeded.second.get_absolute_url()).content.decode()
    assert "Changed since" not in second
    again = replace(sheets.second(), taken_at=(timezone.now() + timedelta(seconds=5)).timestamp())
    inventory.store_sheet(seeded.second, again)
    folded = signed_in("viewer").get(seeded.second.get_absolute_url()).content.decode()
    assert "nothing that matters" in folded and '<details class="panel section" id="changes"' not in folded


@pytest.mark.parametrize(("piece", "kind"), [("node-findings", "stack"), ("node-facts", "sections")])
def test_a_fresh_sheet_brings_only_the_facts(piece: str, kind: str, seeded: story.Seeded, signed_in: SignedIn) -> None:
    headers = {"HX-Request": "true", "HX-Target": piece}
    text = signed_in("viewer").get(seeded.head.get_absolute_url(), headers=headers).content.decode()
    assert text.startswith(f'<div class="{kind}" id="{piece}"')
