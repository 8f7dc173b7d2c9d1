"""One message of many that is late, or is published again: rules W4, B3, B6."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from fleetbus.bus.window import open_window
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_newer
from support.eventually import eventually
from support.hostile.chaos_proxy import Link, chaos_link
from support.rigs.watcher import Rig

BEAT = timedelta(seconds=0.1)


@pytest.fixture
async def link(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Link]:
    quick = functools.partial(open_window, deadline=timedelta(seconds=0.1))
    monkeypatch.setattr("fleetbus_watcher.main.open_window", quick)
    async with chaos_link(int(rig.nats_url.rpartition(":")[2])) as opened:
        yield opened


async def test_w4_no_checkpoint_passes_an_event_that_is_not_acknowledged(rig: Rig, link: Link):
    task = rig.start(link.url, stop_patience=timedelta(seconds=0.1), heartbeat_idle=BEAT)
    await eventually(rig.checkpoint)
    await _hold_one_back(rig, link)
    assert not await _is_recorded(rig, rig.truth()["held"])
    await rig.stop(task)
    assert not await _is_recorded(rig, rig.truth()["held"])
    link.heal()
    rig.start(link.url)
    await eventually(rig.is_mirrored)
    assert len(rig.requests("list")) == 1


async def test_w4_b6_the_checkpoint_follows_once_the_late_event_is_stored(rig: Rig, link: Link):
    async with rig.watching(nats_url=link.url, heartbeat_idle=BEAT):
        await eventually(rig.checkpoint)
        await _hold_one_back(rig, link)
        last = rig.truth()["a19"]
        link.heal()
        await eventually(lambda: _is_recorded(rig, last))
        published = Counter((event.name, event.resource_version) for event in await rig.events())
        assert set(published.values()) == {1}


async def test_b3_two_lists_inside_the_window_are_both_complete(rig: Rig):
    for number in range(5):
        rig.write(f"a{number}")
    async with rig.watching():
        config_maps = parse_resource("v1/configmaps")
        first = (await rig.ends())[0].epoch
        request = ResyncRequest(min_epoch=first.id + 1)
        await request_resync(rig.bus, rig.kv, "alpha", config_maps, request)
        await eventually(lambda: _has_ends(rig, 2))
        ends = await rig.ends()
        listed = Counter(e.epoch for e in await rig.events() if e.verb is Verb.LISTED)
    assert [listed[end.epoch] for end in ends] == [5, 5]


async def _hold_one_back(rig: Rig, link: Link) -> None:
    """One event never arrives, however often it is sent; all that come after it do."""
    link.loses = lambda subject: ".held." in subject
    rig.write("held")
    for number in range(20):
        rig.write(f"a{number}")
    await eventually(lambda: link.lost >= 2)
    await eventually(lambda: _is_reported(rig, "a19"))
    await _beats_more(rig, 3)


async def _beats_more(rig: Rig, number: int) -> None:
    expected = len(await rig.heartbeats()) + number

    async def has_beaten() -> bool:
        return len(await rig.heartbeats()) >= expected

    await eventually(has_beaten)


async def _is_reported(rig: Rig, name: str) -> bool:
    return any(event.name == name for event in await rig.events())


async def _is_recorded(rig: Rig, version: str) -> bool:
    record = await rig.checkpoint()
    return not is_newer(version, record["resourceVersion"])


async def _has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number
