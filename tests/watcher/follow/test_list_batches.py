"""The events of a list in atomic batches: rules W7, W15, B3."""

from __future__ import annotations

import time
from functools import partial

import pytest

from fleetbus.bus.batch import PaceLimits
from fleetbus.bus.window import open_window
from fleetbus.watchers.message_key import message_key
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.headers import check_format, message_id
from fleetbus_proto.resources import parse_resource
from support.eventually import eventually
from support.rigs.watcher import Rig

_OBJECTS = 600


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches from the first answers on, however fast the server of the tests is."""
    pace = PaceLimits(dear=0, worth_it=1e9, enough=1, busy=0)
    monkeypatch.setattr("fleetbus_watcher.main.open_window", partial(open_window, pace=pace))


async def test_w7_a_list_in_batches_is_whole_before_its_end_and_b3_so_is_the_next_one(rig: Rig):
    for number in range(_OBJECTS):
        rig.write(f"a{number}")
    async with rig.watching(page_size=100):
        request = ResyncRequest(min_epoch=time.time_ns() // 10**6 + 1, reason="test")
        await request_resync(
            rig.bus, rig.kv, rig.cluster.name, parse_resource("v1/configmaps"), request
        )
        await eventually(lambda: _has_ends(rig, 2))
    stored = await rig.stored()
    listed = [(each.seq, each.message) for each in stored if isinstance(each.message, Event)]
    for seq, end in [(each.seq, each.message) for each in stored]:
        if isinstance(end, EpochEnd):
            assert _names(end, [event for at, event in listed if at < seq]) == _OBJECTS
    batched = [each for each in stored if "Nats-Batch-Id" in each.headers]
    assert len(batched) > _OBJECTS
    key = await message_key(rig.kv, rig.cluster.name)
    for each in batched:
        check_format(each.headers)
        assert each.headers["Nats-Msg-Id"] == each.headers["ce-id"] == message_id(each.message, key)


async def test_w15_of_two_replicas_that_list_at_once_in_batches_an_epoch_that_ends_is_whole(
    rig: Rig,
):
    for number in range(_OBJECTS):
        rig.write(f"a{number}")
    rig.start(page_size=100, replica="r1")
    rig.start(page_size=100, replica="r2")
    await eventually(lambda: _has_ends(rig, 1))
    await rig.stop()
    events = await rig.events()
    for end in await rig.ends():
        assert _names(end, events) == _OBJECTS


def _names(end: EpochEnd, events: list[Event]) -> int:
    """Return how many objects an epoch has; its end says the same, and each is there once."""
    names = [event.name for event in events if event.epoch == end.epoch]
    assert len(names) == len(set(names)) == end.count
    return end.count


async def _has_ends(rig: Rig, count: int) -> bool:
    return len(await rig.ends()) >= count
