"""History: every look for an hour, minutes for a day, quarters of an hour for thirty days; bounded rows, gaps that stay gaps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from apps.inventory.models import Node
from apps.watch import history
from apps.watch.judging import NodeSeen
from apps.watch.models import Mark, Point
from tests.web.conftest import browser_of
from tests.web.seed import Seeded, seed

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
GIB = 1 << 30


def looks(
    node: Node, *, hours: float, every_s: int = 20, until: datetime = NOW, without: tuple[float, float] = (0, 0)
) -> None:
    """Looks up to `until`; none from the first to the second of `without`, in hours before it."""
    made = []
    for number in range(int(hours * 3600 / every_s)):
        before = number * every_s
        if without[1] * 3600 <= before < without[0] * 3600:
            continue
        at = until - timedelta(seconds=before + 1)
        made.append(
            Point(
                node=node,
                step=0,
                at=at,
                used_bytes=(50 + at.minute) * GIB,
                total_bytes=120 * GIB,
                temp_c=40 + at.second % 20,
            )
        )
    history.keep(made)


@pytest.fixture
def node() -> Node:
    return seed().head


def test_rows_are_bounded_and_old_ones_go(node: Node) -> None:
    looks(node, hours=3)
    history.thin(NOW)
    kept = {step: Point.objects.filter(step=step).count() for step in (0, 60, 900)}
    assert kept[0] == 180, "every look of the last hour"
    assert 58 <= kept[60] <= 62 and 3 <= kept[900] <= 5
    history.thin(NOW)
    assert {step: Point.objects.filter(step=step).count() for step in (0, 60, 900)} == kept, "twice is once"
    history.thin(NOW + timedelta(hours=2))
    assert not Point.objects.filter(step=0).exists() and Point.objects.filter(step=60).exists()
    history.thin(NOW + timedelta(days=2))
    assert not Point.objects.filter(step=60).exists() and Point.objects.filter(step=900).exists()
    history.thin(NOW + timedelta(days=31))
    assert not Point.objects.exists()


def test_a_minute_is_the_mean_of_its_looks_and_the_largest_temperature(node: Node) -> None:
    for second, used, temp in ((1, 10, 50), (21, 20, 71), (41, 30, 60)):
        at = NOW - timedelta(minutes=2) + timedelta(seconds=second)
        history.keep([Point(node=node, step=0, at=at, used_bytes=used * GIB, total_bytes=100 * GIB, temp_c=temp)])
    history.thin(NOW)
    minute = Point.objects.get(step=60)
    assert (minute.at, minute.used_bytes, minute.temp_c) == (NOW - timedelta(minutes=2), 20 * GIB, 71)


def test_a_month_of_looks_minute_by_minute_stays_small(node: Node) -> None:
    """What beat does, an hour at a time, for three days."""
    for hour in range(72):
        until = NOW + timedelta(hours=hour)
        looks(node, hours=1, every_s=60, until=until)
        history.thin(until)
    counts = {step: Point.objects.filter(step=step).count() for step in (0, 60, 900)}
    assert counts[0] <= 61 and counts[60] <= 1441 and 280 <= counts[900] <= 290


def test_where_nobody_saw_the_node_is_a_gap(node: Node) -> None:
    looks(node, hours=1, without=(0.5, 0.25))
    found = history.points(node, "hour", NOW)
    (gap,) = history.gaps(found, "hour", 20)
    assert gap.end - gap.start == pytest.approx(920, abs=25)
    assert history.last_gap(found, "hour", 20, NOW.timestamp()) == []
    (last,) = history.last_gap(found, "hour", 20, NOW.timestamp() + 300)
    assert last.end - last.start == 301
    looks(node, hours=0.1, until=NOW - timedelta(hours=0.7))
    assert len(history.gaps(history.points(node, "hour", NOW), "hour", 20)) == 1


def test_the_figures_of_a_look() -> None:
    node = Node(pk=1, name="n")
    unified = NodeSeen("n", 1.0, memory={"total_bytes": 100, "available_bytes": 30}, gpus=[{"temp_c": 61, "power_w": 40.5, "util_pct": 90, "unified": True}])  # fmt: skip
    made = history.point(node, unified)
    assert (made.used_bytes, made.total_bytes, made.temp_c, made.power_w, made.busy_pct) == (70, 100, 61, 40.5, 90)
    two = [{"memory_total_mib": 100, "memory_used_mib": 60, "temp_c": 50, "power_w": 100.0}, {"memory_total_mib": 100, "memory_used_mib": 1, "temp_c": 70, "power_w": 50.0}]  # fmt: skip
    made = history.point(node, NodeSeen("n", 1.0, gpus=two))
    assert (made.used_bytes, made.total_bytes, made.temp_c, made.power_w) == (61 << 20, 200 << 20, 70, 150)
    made = history.point(node, NodeSeen("n", 1.0))
    assert (made.used_bytes, made.temp_c, made.power_w) == (None, None, None)


def with_history() -> Seeded:
    made = seed()
    now = datetime.now(UTC)
    looks(made.head, hours=1, until=now, without=(0.6, 0.5))
    history.mark([made.head.pk], "rebooted", at=now - timedelta(minutes=31))
    history.mark([made.head.pk], "lost", "qwen: <b>replaced</b>", at=now - timedelta(minutes=30))
    return made


def test_the_node_page_draws_it_and_says_it_in_words() -> None:
    made = with_history()
    browser = browser_of(made.people["viewer"])
    text = browser.get(f"/nodes/{made.head.pk}").content.decode()
    assert text.count('class="over-time"') == 2 and text.count("time-gap") == 2
    assert "Memory in use: " in text and "Rebooted" in text and "&lt;b&gt;replaced" in text
    piece = browser.get(f"/nodes/{made.head.pk}?span=day", headers={"HX-Request": "true", "HX-Target": "node-history"})
    assert "No look of this time is kept yet" in piece.content.decode() and "<h1>" not in piece.content.decode()
    other = browser.get(f"/nodes/{made.second.pk}?span=nonsense").content.decode()
    assert "No look of this time is kept yet" in other


def test_the_api_gives_points_gaps_and_marks() -> None:
    made = with_history()
    browser = browser_of(made.people["viewer"])
    said = browser.get(f"/api/v1/nodes/{made.head.pk}/history").json()
    assert said["span"] == "hour" and said["step_s"] == 0 and len(said["points"]) > 100 and len(said["gaps"]) == 1
    assert [one["kind"] for one in said["marks"]] == ["rebooted", "lost"]
    assert browser.get(f"/api/v1/nodes/{made.head.pk}/history?span=year").status_code == 422
    assert browser.get("/api/v1/nodes/999999/history").status_code == 404


def test_marks_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_MARKS", 5)
    for number in range(9):
        history.mark([node.pk], "reachable", str(number), at=NOW - timedelta(minutes=number))
    history.thin(NOW)
    assert list(Mark.objects.values_list("text", flat=True)) == ["4", "3", "2", "1", "0"]
