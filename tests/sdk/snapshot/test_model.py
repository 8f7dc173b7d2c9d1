"""The Lua on a real server and the model in plain Python agree on every answer (rules P1 to P6)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from support.full import FULL
from support.stores.snapshot import Snapshot
from support.stores.snapshot_sequences import CLUSTERS, compare_store, make_sequence, run_sequences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

SEQUENCES = 50
ROUNDS_OF_SEQUENCES = 10 if FULL else 1
CHUNKS = 20 if FULL else 2
"""Chunks of 50 sequences; those of `make scenarios` are 10,000."""


@pytest.mark.longer
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_p1_to_p6_random_sequences_end_equal_to_the_model(redis: Redis, chunk: int):
    rounds = range(chunk * ROUNDS_OF_SEQUENCES, (chunk + 1) * ROUNDS_OF_SEQUENCES)
    await compare_sequences(Snapshot(redis, shards=4 if chunk % 2 else 1), rounds)


@pytest.mark.stores("redis")
async def test_p1_to_p6_some_sequences_end_equal_on_redis_too(redis: Redis):
    await compare_sequences(Snapshot(redis), range(1))


async def compare_sequences(snapshot: Snapshot, rounds: Sequence[int]) -> None:
    await snapshot.set_up(*CLUSTERS)
    completed = 0
    for number in rounds:
        first = number * SEQUENCES
        sequences = [make_sequence(seed) for seed in range(first, first + SEQUENCES)]
        await run_sequences(snapshot, sequences, random.Random(first))
        for sequence in sequences:
            await compare_store(snapshot, sequence)
        completed += sum(len(sequence.model.completed) for sequence in sequences)
    assert completed > SEQUENCES * len(rounds) / 10, "the sequences must reach completed epochs"
