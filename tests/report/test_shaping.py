"""The report's pure part: what becomes a problem, what a limitation, and how Markdown keeps foreign text as text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.report import files, markdown, shaping
from apps.report.known import Answers, Decision, Job, Known, KnownDeployment, KnownNode, KnownRevision
from tests.plan import sheets

NOW = datetime(2026, 11, 30, 16, 0, tzinfo=UTC)
SHEET = replace(sheets.head(), taken_at=NOW.timestamp() - 60)
BODY = {"name": "one", "model": "Qwen/Qwen3-8B", "nodes": ["spark-1a32"], "engine": "vllm", "port": 30000}


def node(**changes: Any) -> KnownNode:
    boot = SHEET.machine.boot_id if SHEET.machine else ""
    made = KnownNode(1, "spark-1a32", "10.1.230.180", 22, "aurora", sheet=SHEET, boot_id=boot or "")
    return replace(made, **changes)


def deployment(**changes: Any) -> KnownDeployment:
    made = KnownDeployment(
        id=1,
        name="one",
        state="serving",
        reason="",
        evidence="",
        since=NOW,
        served_at=NOW,
        created_at=NOW,
        created_by="ana",
        body=BODY,
        revisions=(KnownRevision(1, NOW, "ana", "", BODY),),
        revision_count=1,
        running=1,
        policy="once",
    )
    return replace(made, **changes)


def known(*, nodes: tuple[KnownNode, ...] = (), deployments: tuple[KnownDeployment, ...] = (), **changes: Any) -> Known:
    made = Known(NOW, "", nodes, deployments, (), len(nodes), len(deployments))
    return replace(made, **changes)


def problems(of: Known) -> dict[str, str]:
    return {row["what"]: row["severity"] for row in shaping.report(of)["problems"]}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"state": "lost", "reason": "replaced"}, "replaced"),
        ({"state": "failed", "reason": "oom_gpu"}, "oom_gpu"),
        ({"flags": (("open without a key", "port 30000", ""),)}, "flag"),
        ({"running": 1, "revisions": (KnownRevision(2, NOW, "ana", "", BODY),)}, "not_newest"),
    ],
)
def test_what_is_open_about_a_deployment(changes: dict[str, Any], what: str) -> None:
    assert what in problems(known(deployments=(deployment(**changes),)))
    assert what not in problems(known(deployments=(deployment(),)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"unreachable_since": NOW, "unreachable_reason": "no_route", "unreachable_evidence": "No route"}, "no_route"),
        ({"state": "stopped"}, "host_key_changed"),
        ({"state": "unconfirmed"}, "unconfirmed"),
        ({"sheet": None}, "no_facts"),
        ({"sheet": replace(SHEET, taken_at=NOW.timestamp() - 3 * 86_400)}, "old_facts"),
        ({"boot_id": "another"}, "rebooted"),
    ],
)
def test_what_is_open_about_a_node(changes: dict[str, Any], what: str) -> None:
    assert what in problems(known(nodes=(node(**changes),)))
    assert what not in problems(known(nodes=(node(),)))


def test_findings_of_one_kind_are_one_row() -> None:
    many = tuple(node(id=i, name=f"n{i}", sheet=replace(SHEET, node=f"n{i}")) for i in range(30))
    body = shaping.report(known(nodes=many))
    rows = [*body["problems"], *body["limitations"]]
    names = [row["what"] for row in rows]
    assert len(names) == len(set(names)) and any(len(row["nodes"]) == 30 for row in rows)
    assert all(len(row["said"]) <= shaping.MOST_NAMED for row in rows)


def test_a_tunnel_is_a_limitation_with_its_line() -> None:
    only = Answers("", "http://127.0.0.1:30000/v1", "spark-5be3", "ssh -N -L …", "it is reached through spark-1a32")
    (row,) = shaping.report(known(deployments=(deployment(answers=(only,)),)))["limitations"]
    assert row["what"] == "behind_a_tunnel" and "ssh -N -L" in row["said"][0]


def test_files_say_whose_they_are_and_how_many_more() -> None:
    jobs = tuple(Job(f"abc-{i}", "launch", 7, NOW) for i in range(3))
    rows = files.of_node(node(jobs=jobs, job_count=900, provisioned=(4,)))
    ours = [row for row in rows if row["kind"] == "job"]
    assert ours[0]["where"].endswith("/.local/state/sparkweb/jobs/abc-0") and ours[0]["ours"]
    assert ours[-1]["more"] == 897 and ours[-1]["about"] == "and 897 more"
    assert {row["where"] for row in rows if row["kind"] == "record"} >= {"/var/lib/sparkweb"}
    models = [row for row in rows if row["kind"] == "model"]
    assert models and models[0]["bytes"] and not models[0]["ours"]


def test_markdown_keeps_foreign_words_as_words() -> None:
    nasty = "x | y\n# no heading <b>`rm`</b> [a](javascript:1)"
    made = (Decision(1, NOW, "ana | bo", "admin", "run:started", "node", "1", nasty, "done", nasty),)
    text = markdown.of(shaping.report(known(decisions=made, nodes=(node(name=nasty),))))
    (row,) = [line for line in text.splitlines() if line.startswith("| 2026-11-30")]
    assert row.count(" | ") == 5 and "\n# no heading" not in text and "<b>" not in text
    assert markdown.code("a`b``c") == "```a`b``c```" and markdown.code("`") == "`` ` ``"


def test_ages_and_sizes_in_words() -> None:
    assert [markdown.age(one) for one in (None, 0, 59, 61, 7200, 90_000)] == [
        "unknown",
        "0 s",
        "59 s",
        "1 minute",
        "2 hours",
        "1 day",
    ]
    assert [markdown.size(one) for one in (None, 12, 1_500_000, 119_000_000_000)] == [
        "unknown",
        "12 B",
        "1.5 MB",
        "119.0 GB",
    ]


def test_the_same_knowledge_gives_the_same_report() -> None:
    of = known(nodes=(node(seen_at=NOW - timedelta(hours=1)),), deployments=(deployment(),))
    assert shaping.report(of) == shaping.report(of)
