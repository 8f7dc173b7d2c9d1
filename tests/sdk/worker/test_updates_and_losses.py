"""A store that is set back to before an update: nothing that came since is lost (P11, P12)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.bus.connection import connected
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus.controller.controller import Controller
from fleetbus_proto.keys import queue, queue_checkpoint
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
SOON = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))


def recorded(name: str) -> Recorder:
    controller = Controller(name)
    controller.watch(PODS)
    return Recorder(controller, PODS)


class Backup:
    """The queue of a controller at one time."""

    def __init__(self, redis: Redis, controller: str) -> None:
        self._redis: Any = redis
        self._pattern = queue(controller, "*")
        self._values: dict[bytes, bytes] = {}

    async def take(self) -> None:
        self._values = {key: await self._redis.dump(key) for key in await self._keys()}

    async def restore(self) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(*await self._keys())
            for key, value in self._values.items():
                pipe.restore(key, 0, value, replace=True)
            await pipe.execute()

    async def _keys(self) -> list[bytes]:
        return [key async for key in self._redis.scan_iter(self._pattern)]


@pytest.mark.slow
@pytest.mark.parametrize("is_running", [True, False])
async def test_p11_what_the_new_durable_had_handled_is_read_again(
    open_rig: OpenRig, *, is_running: bool
) -> None:
    first, second = recorded("first"), recorded("second")
    rig = await open_rig("a", resources=(PODS,))
    rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=200))
    rig.clusters["a"].create(PODS, pod("p"), "default")
    rig.clusters["a"].create(PODS, pod("doomed"), "default")
    rig.start_reconciler(first.controller)
    rig.start_watcher("a")
    await eventually(lambda: len(first.keys()) == 2, SOON)
    await rig.quiet("first")

    async def has_checkpoint() -> bool:
        low = await _of(rig, "first-1", "low")
        return int(low or 0) >= await _floor(rig, "first-1") > 0

    await eventually(has_checkpoint, SOON)
    await rig.stop_reconciler()
    backup = Backup(rig.redis, "first")
    await backup.take()
    rig.start_reconciler(first.controller, second.controller)
    await eventually(lambda: _of(rig, "first-2", "synced"), SOON)
    await rig.quiet("first")
    first.runs.clear()
    rig.clusters["a"].patch(PODS, "default", "p", {"metadata": {"labels": {"x": "y"}}})
    rig.clusters["a"].delete(PODS, "default", "doomed")
    await eventually(lambda: len(first.keys()) == 2, SOON)
    await rig.quiet("first")
    end = await _end(rig)

    async def are_acknowledged() -> bool:
        return await _floor(rig, "first-2") == end

    await eventually(are_acknowledged, SOON)
    if not is_running:
        await rig.stop_reconciler()
    first.runs.clear()
    await backup.restore()  # with it went what these runs had read
    if not is_running:
        rig.start_reconciler(first.controller, second.controller)
    await eventually(lambda: len(first.keys()) == 2, SOON)


async def _end(rig: Rig) -> int:
    async with connected(rig.shared.nats_url, name="test") as bus:
        info = await stream_info(bus)
    assert info is not None
    return int(info["state"]["last_seq"])


async def _of(rig: Rig, durable: str, field: str) -> str:
    redis: Any = rig.redis
    return (await redis.hget(queue_checkpoint("first", durable), field) or b"").decode()


async def _floor(rig: Rig, durable: str) -> int:
    async with connected(rig.shared.nats_url, name="test") as bus:
        info = await consumer_info(bus, durable)
    assert info is not None
    return int(info["ack_floor"]["stream_seq"])
