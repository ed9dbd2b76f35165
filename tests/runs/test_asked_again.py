"""A node that was too busy to answer: a probe asks it again, but not for ever."""

from __future__ import annotations

from typing import Any

from apps.facts.sheet import Evidence, Sheet
from apps.plan import stories
from apps.runs.executor import PROBE_TRIES, Executor


class Journal:
    """What a probe step needs of one."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], int] = {}
        self.sheets: list[Sheet] = []
        self.ends: list[str] = []
        self.notes: list[str] = []

    def recall(self, key: str, name: str, default: int) -> int:
        return self.kept.get((key, name), default)

    def remember(self, key: str, name: str, value: int) -> None:
        self.kept[key, name] = value

    def sheet(self, node: str, sheet: Sheet) -> None:
        self.sheets.append(sheet)

    def note(self, key: str, text: str) -> None:
        self.notes.append(text)

    def finish(self, key: str, state: str, **_: Any) -> None:
        self.ends.append(state)


def seen(late: str | None) -> Sheet:
    return Sheet("spark-1", 1.0, evidence={late: Evidence("", exit_code=None, timed_out=True)} if late else {})


def probed(*sheets: Sheet) -> Journal:
    """The journal after these looks, as long as the step asks for one."""
    plan, journal = stories.probe(["spark-1"]), Journal()
    doors: Any = None
    made = Executor(plan, journal, doors, run_id=1, code="abc", environment_of=lambda _: {})  # type: ignore[arg-type]
    for sheet in sheets:
        made._judge_probe(plan.stages[0].steps[0], sheet)
        if journal.ends:
            break
    made.close()
    return journal


def test_what_plans_rest_on_is_asked_again() -> None:
    journal = probed(seen("docker"), seen(None))
    assert (len(journal.sheets), journal.ends) == (2, ["succeeded"])
    assert journal.notes == ["spark-1 gave no answer in time about docker; asking again", "spark-1 answered"]


def test_not_for_ever_and_what_was_seen_is_kept() -> None:
    journal = probed(*[seen("addresses")] * 9)
    assert (len(journal.sheets), journal.ends) == (PROBE_TRIES, ["succeeded"])


def test_a_disk_that_hangs_is_nothing_that_a_plan_rests_on() -> None:
    assert len(probed(seen("disk-network")).sheets) == 1
