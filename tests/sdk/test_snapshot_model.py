"""The Lua on a real server and the model in plain Python agree on every answer (rules P1 to P6)."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from snapshot_rig import Snapshot
from snapshot_sequences import compare_store, make_lane, run_lanes

if TYPE_CHECKING:
    from redis.asyncio import Redis

LANES = 50
ROUNDS_OF_LANES = 10
CHUNKS = 20 if os.environ.get("FLEETBUS_TEST_FULL") else 2
"""Of 500 sequences; all of `make scenarios` are 10,000."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_p1_to_p6_random_sequences_end_equal_to_the_model(redis: Redis, chunk: int):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    completed = 0
    for group in range(ROUNDS_OF_LANES):
        first = (chunk * ROUNDS_OF_LANES + group) * LANES
        lanes = [make_lane(seed) for seed in range(first, first + LANES)]
        await run_lanes(snapshot, lanes, random.Random(first))
        for lane in lanes:
            await compare_store(redis, lane)
        completed += sum(len(lane.model.completed) for lane in lanes)
    assert completed > LANES * ROUNDS_OF_LANES / 10, "the sequences must reach completed epochs"
