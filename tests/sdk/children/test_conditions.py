"""A problem with a child is reported once while it lasts, and again when it comes back."""

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
from fleetbus_proto.keys import SnapshotKeys


class Reporter:
    """A process whose clock the test moves; `report` returns the children of new log lines."""

    def __init__(self) -> None:
        self.now = 0.0
        self.conditions = ConditionReporter("copier", now=lambda: self.now)
        self.fleet = Fleet(Clusters([]), SnapshotReader(Redis(), SnapshotKeys()))

    async def describe_error(self, *children: str, parent: str = "p") -> list[str]:
        conditions = [
            Condition(
                ChildState.CONFLICT, ("b", "core/configmaps", "default", name), "of another owner"
            )
            for name in children
        ]
        with capture_logs() as lines:
            await self.conditions.report(
                Request("copier", "a", "default", parent), conditions, None, self.fleet
            )
        return [line["child_name"] for line in lines]


async def test_a_problem_is_reported_once_while_it_lasts_and_again_when_it_comes_back() -> None:
    reporter = Reporter()
    assert await reporter.describe_error("x") == ["x"]
    assert await reporter.describe_error("x", "y") == ["y"]
    assert await reporter.describe_error("y") == []
    assert await reporter.describe_error("x", "y") == ["x"], "it was solved, and came back"
    assert await reporter.describe_error() == []
    assert await reporter.describe_error("x", "y") == ["x", "y"]


async def test_what_another_process_may_have_seen_solved_is_reported_again() -> None:
    reporter, hour = Reporter(), UNSEEN.total_seconds()
    assert await reporter.describe_error("x") == ["x"]
    reporter.now += hour
    assert await reporter.describe_error("x") == [], "it lasts"
    reporter.now += hour + 1
    assert await reporter.describe_error("x") == ["x"]


async def test_only_so_many_parents_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.children.conditions.PARENTS", 2)
    reporter = Reporter()
    for parent in ("p", "q", "p", "r"):
        await reporter.describe_error("x", parent=parent)
    assert await reporter.describe_error("x", parent="p") == [], "it was seen after q"
    assert await reporter.describe_error("x", parent="q") == ["x"]
    assert await reporter.describe_error("x", parent="p") == []
