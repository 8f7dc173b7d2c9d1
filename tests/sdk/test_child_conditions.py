"""A problem with a child is told once while it lasts, and again when it comes back."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.children.conditions import UNSEEN, Condition, ConditionReporter
from fleetbus.children.writes import ChildState
from fleetbus.clusters.registry import Clusters
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader


class Telling:
    """A process whose clock the test moves; `told` answers the names of children of new lines."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reports = ConditionReporter("copier", now=lambda: self.now)
        self.fleet = Fleet(Clusters([]), SnapshotReader(Redis()))

    async def describe_error(self, *children: str, parent: str = "p") -> list[str]:
        problems = [
            Condition(
                ChildState.CONFLICT, ("b", "core/configmaps", "default", name), "of another owner"
            )
            for name in children
        ]
        with capture_logs() as lines:
            await self.reports.report(
                Request("copier", "a", "default", parent), problems, None, self.fleet
            )
        return [line["child_name"] for line in lines]


async def test_a_problem_is_told_once_while_it_lasts_and_again_when_it_comes_back() -> None:
    telling = Telling()
    assert await telling.describe_error("x") == ["x"]
    assert await telling.describe_error("x", "y") == ["y"]
    assert await telling.describe_error("y") == []
    assert await telling.describe_error("x", "y") == ["x"], "it was solved, and came back"
    assert await telling.describe_error() == []
    assert await telling.describe_error("x", "y") == ["x", "y"]


async def test_what_another_process_may_have_seen_solved_is_told_again() -> None:
    telling, hour = Telling(), UNSEEN.total_seconds()
    assert await telling.describe_error("x") == ["x"]
    telling.now += hour
    assert await telling.describe_error("x") == [], "it lasts"
    telling.now += hour + 1
    assert await telling.describe_error("x") == ["x"]


async def test_only_so_many_parents_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.children.conditions.PARENTS", 2)
    telling = Telling()
    for parent in ("p", "q", "p", "r"):
        await telling.describe_error("x", parent=parent)
    assert await telling.describe_error("x", parent="p") == [], "it was seen after q"
    assert await telling.describe_error("x", parent="q") == ["x"]
    assert await telling.describe_error("x", parent="p") == []
