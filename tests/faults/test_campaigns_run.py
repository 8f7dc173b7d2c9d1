"""The campaigns still run: a few seconds of each, with all of their processes.

CI runs a minute of each (`make faults-cut` and the like), so `make test` does not.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from faults.distributors.campaign import DistributorPlan, run_distributors
from faults.distributors.main import check as check_distributors
from faults.queries.campaign import QueryPlan, run_queries
from faults.queries.main import check as check_queries
from faults.watchers.campaign import Plan, run
from faults.watchers.main import check_phase
from faults.workers.campaign import WorkerPlan, run_workers
from faults.workers.main import check

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(180),  # services start and stop, which takes long where cores are few
]


async def phases_of(generator: AsyncGenerator[Path]) -> list[Path]:
    async with aclosing(generator) as phases:
        return [phase async for phase in phases]


async def test_the_campaign_of_watchers_runs(tmp_path: Path):
    plan = Plan(seed=1, kills=1, losses=0, rate=50, pace=0.3, kinds=("compact",), ends=0)
    (phase,) = await phases_of(run(plan, tmp_path))
    figures = check_phase(phase)
    assert figures.phase == "kills"
    assert figures.writes
    assert figures.kills  # a fault beside them may have killed more
    assert figures.violations == []


async def test_the_campaign_of_workers_runs(tmp_path: Path):
    plan = WorkerPlan(
        seed=1,
        kills=1,
        pauses=0,
        rate=20,
        pace=0.3,
        peace=0.5,
        deaths=0,
        faults=("kill-projector",),
        longest=0.5,
        ends=0,
        updates=0,  # tests/scenarios/test_b12_rolling_updates.py has them
    )
    all_figures = [check(phase) for phase in await phases_of(run_workers(plan, tmp_path))]
    assert [figures.phase for figures in all_figures] == ["kills", "peace"]
    assert all(figures.runs for figures in all_figures)
    assert all_figures[0].kills
    assert [figures.violations for figures in all_figures] == [[], []]


async def test_the_campaign_of_distributors_runs(tmp_path: Path):
    plan = DistributorPlan(
        seed=1, kills=2, points=1, stops=1, pace=0.5, rounds=0, steps=("protected",)
    )
    all_figures = [
        check_distributors(phase) for phase in await phases_of(run_distributors(plan, tmp_path))
    ]
    assert [figures.phase for figures in all_figures] == ["points", "stops", "storm", "steps"]
    storm = all_figures[2]
    assert storm.kills >= 2
    assert all(figures.writes for figures in all_figures[1:])
    assert storm.agent_writes
    assert [figures.violations for figures in all_figures] == [[], [], [], []]


async def test_the_campaign_of_the_query_api_runs(tmp_path: Path):
    plan = QueryPlan(
        seed=1,
        decks=1,
        rate=40,
        calm=0.5,
        faults=("api-killed", "valkey-flushed"),
        kinds=frozenset({"kube", "events"}),
    )
    (figures,) = [check_queries(phase) for phase in await phases_of(run_queries(plan, tmp_path))]
    assert figures.phase == "watches"
    assert len(figures.clients) == 4
    assert figures.faults == {"api-killed": 1, "valkey-wiped": 1, "last-changes": 1}
    assert figures.events
    assert figures.expired >= 4
    assert figures.violations == []
