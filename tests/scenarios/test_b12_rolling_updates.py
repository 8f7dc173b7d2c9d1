"""Updates that change which controllers a process has lose nothing for any of them (B12, P8, P12).

Twelve of the updates of `make faults-workers`, which has faults beside; its cut in `.ci/run` has
two of them, so `make test` has none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.workers.rollouts import kinds_of, rolling, run_updates

UPDATES = 12
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),  # many processes start, which takes long where cores are few
]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_b12_updates_that_change_the_set_of_controllers_lose_nothing(
    tmp_path: Path, nats_url: str, valkey_url: str, seed: int
) -> None:
    async with rolling(tmp_path, nats_url, valkey_url, seed) as running:
        kinds = kinds_of(running.rollouts.random, UPDATES)
        async for kind, missed in run_updates(running, kinds):
            assert not missed, kind


async def test_v6_a_new_durable_without_a_full_enqueue_is_noticed(
    tmp_path: Path, nats_url: str, valkey_url: str
) -> None:
    async with rolling(tmp_path, nats_url, valkey_url, 1, "no-full-enqueue") as running:
        async for _, missed in run_updates(running, ["add"], patience=15):
            if missed:
                return
    raise AssertionError("it was not noticed")
