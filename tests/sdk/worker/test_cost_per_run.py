"""A run costs no more than a known number of calls, callbacks and commands of the store.

Such counts are the same on any machine, unlike times. Changes come one by one, so nothing is done
for several of them together: that is the most that one costs. The limits are a fifth to a quarter
above what was counted; whoever exceeds them looks for what has been added, with `cProfile` in a
worker and `INFO commandstats`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from bench.rig.pipeline import load, make_cluster, pipeline
from fleetbus_emulator.apiserver import serve

OBJECTS = 40
RATE = 40
SECONDS = 2.0
CALLS = 2_300
"""Calls of functions for each run, of Python and of C as cProfile counts them."""
CALLBACKS = 22
"""Callbacks of the event loop for each run."""
COMMANDS = 34
"""Commands of the store for each change, those of scripts among them, and those of all parts."""


class Costs(NamedTuple):
    """Counts of one measurement."""

    runs: int
    calls: float
    callbacks: float
    commands: float


@pytest.mark.slow
async def test_a_run_costs_few_calls_callbacks_and_commands(tmp_path: Path) -> None:
    costs = await measure(tmp_path)
    assert costs.runs > RATE * SECONDS / 2
    assert costs.calls < CALLS, costs
    assert costs.callbacks < CALLBACKS, costs
    assert costs.commands < COMMANDS, costs


async def measure(folder: Path) -> Costs:
    cluster = make_cluster(OBJECTS)
    async with serve([cluster]) as servers:
        servers.write_kubeconfig(folder / "kubeconfig")
        async with (
            pipeline(
                cluster, folder, folder / "kubeconfig", workers=1, BENCH_COUNT="calls"
            ) as running,
            connected(running.redis_url) as redis,
        ):
            await load(cluster, rate=RATE, objects=OBJECTS, seconds=0.5)  # scripts are loaded
            before = await commands(redis)
            changes = await load(cluster, rate=RATE, objects=OBJECTS, seconds=SECONDS)
            await asyncio.sleep(0.1)  # until the last ones have run
            executed = await commands(redis) - before
    [notes] = running.notes.glob("*.json")
    samples = json.loads(notes.read_text())["counts"]
    last, first = samples[-1], next(one for one in samples if one[0] > samples[-1][0] - SECONDS)
    runs = last[1] - first[1]
    calls, callbacks = ((last[at] - first[at]) / runs for at in (4, 5))
    return Costs(runs, calls, callbacks, executed / changes)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Redis]:
    redis = Redis.from_url(url)
    try:
        yield redis
    finally:
        await redis.aclose()


async def commands(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(each["calls"] for each in stats.values())
