"""T21: kill -9 of NATS, of Redis, of every fleetbus process; Redis wiped; NATS wiped.

Each time the snapshot equals the API servers within 60 s, every change made meanwhile is
reconciled, one key never runs twice at a time and nothing is deleted by it. With real
processes and their own timers, so it is part of `make scenarios` only; losses with scaled timers
are in test_p14_store_losses.py.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from support.eventually import eventually
from support.rigs.copies import WITHIN, Copies, copies_rig

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
]


@dataclass
class Machine:
    """Everything as processes, on one machine."""

    nats: NatsServer
    valkey: ValkeyServer
    copies: Copies


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncGenerator[Machine]:
    async with (
        nats_server(store_dir=tmp_path / "nats") as nats,
        valkey_server(dir=tmp_path / "valkey", appendonly=True) as valkey,
        copies_rig(tmp_path, nats.url, valkey.url) as copies,
    ):
        yield Machine(nats, valkey, copies)


async def kill_nats(machine: Machine) -> None:
    machine.nats.kill()
    await asyncio.sleep(1)  # it is away under load
    await machine.nats.restart()


async def kill_redis(machine: Machine) -> None:
    machine.valkey.kill()
    await asyncio.sleep(1)  # it is away under load
    await machine.valkey.restart()


async def kill_services(machine: Machine) -> None:
    for child in machine.copies.services:
        child.kill()
    await asyncio.sleep(1)  # they are away under load
    for child in machine.copies.services:
        child.respawn()


async def wipe_redis(machine: Machine) -> None:
    async with Redis.from_url(machine.valkey.url) as redis:
        await redis.flushall()


async def wipe_nats(machine: Machine) -> None:
    machine.nats.kill()
    shutil.rmtree(machine.nats.store_dir / "jetstream")
    await machine.nats.restart()


async def test_t21_after_kills_and_wipes_the_snapshot_equals_the_api_servers(
    machine: Machine,
) -> None:
    for loss in (kill_nats, kill_redis, kill_services, wipe_redis, wipe_nats):
        load = asyncio.create_task(machine.copies.load.run())
        try:
            await asyncio.sleep(2)  # under load
            await loss(machine)
            await asyncio.sleep(2)  # under load
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        try:
            await eventually(machine.copies.is_in_step, WITHIN)
            machine.copies.check()
        except AssertionError as e:
            e.add_note(f"after: {loss.__name__}")
            raise
