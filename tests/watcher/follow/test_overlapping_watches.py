"""A list that is asked for opens no hole in what is published: rule W24.

The observer is a subscriber that ignores epochs: for it only a `deleted` removes an object.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.kube.list_watch import reflect
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_emulator.apiserver import Expire, Fail, HideBookmarks, StallWatch
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from support.eventually import eventually
from support.rigs.watcher import Rig
from support.wire.grant_messages import Asker

ASKS: dict[str, Any] = {"grant_patience": timedelta(minutes=1)}
"""There is somebody to ask: the test."""
_CONFIG_MAPS = parse_resource("v1/configmaps")


async def start(rig: Rig, *names: str, **settings: Any) -> None:
    """A watcher whose first list is complete, and its checkpoint written."""
    for name in names:
        rig.write(name)
    rig.start(**ASKS, **settings)
    await grant(rig)
    await eventually(rig.checkpoint)


async def ask_for_list(rig: Rig) -> None:
    """Ask for one, and wait until the watcher waits for its grant."""
    await Asker(rig.kv, "alpha", "configmaps").leave()
    request = ResyncRequest(min_epoch=(await rig.ends())[-1].epoch.id + 1, reason="test")
    await request_resync(rig.bus, rig.kv, "alpha", _CONFIG_MAPS, request)
    await eventually(Asker(rig.kv, "alpha", "configmaps").is_there)


def move_on(rig: Rig) -> None:
    """The cluster's version grows, and no watched resource shows it."""
    rig.cluster.create("v1/secrets", {"metadata": {"generateName": "s-"}}, "default")


async def grant(rig: Rig) -> None:
    asker = Asker(rig.kv, "alpha", "configmaps")
    await eventually(asker.is_there)
    await asker.grant(rig.bus)


async def deletions(rig: Rig) -> Counter[str]:
    """Return how often each name was published as deleted."""
    return Counter(event.name for event in await rig.events() if event.verb is Verb.DELETED)


async def are_published(rig: Rig, *names: str) -> None:
    async def are_reported() -> bool:
        return {*names} <= (await deletions(rig)).keys()

    await eventually(are_reported)


async def has_ends(rig: Rig, count: int) -> None:
    async def are_there() -> bool:
        return len(await rig.ends()) >= count

    await eventually(are_there)


async def test_w24_what_is_deleted_while_a_list_waits_for_its_grant_is_published(rig: Rig):
    await start(rig, "a", "b", "c")
    await ask_for_list(rig)
    rig.remove("a")
    await are_published(rig, "a")
    rig.write("short-lived")
    rig.remove("short-lived")
    await are_published(rig, "short-lived")
    assert len(rig.requests("list")) == 1  # and nobody has granted it yet
    await grant(rig)
    await has_ends(rig, 2)
    rig.remove("b")
    await are_published(rig, "b")
    assert (await deletions(rig)) == Counter({"a": 1, "short-lived": 1, "b": 1})


async def test_w24_the_old_watch_ends_when_it_has_passed_the_version_of_the_list(rig: Rig):
    await start(rig, "a")
    await ask_for_list(rig)
    await grant(rig)
    await has_ends(rig, 2)
    await eventually(lambda: len(rig.requests("watch")) == 2)
    await eventually(lambda: rig.cluster.open_watches == 1)
    rig.write("b")
    await eventually(rig.is_mirrored)
    assert len(rig.requests("watch")) == 2


async def test_w24_an_old_watch_that_lags_tells_what_came_before_the_list(rig: Rig):
    """Its last changes come after the end of the epoch: no checkpoint before that (W4)."""
    stall = rig.cluster.faults.add(StallWatch(), verb="watch", resource="configmaps")
    await start(rig, "a", "b", silence=timedelta(seconds=3))
    await ask_for_list(rig)
    checkpoint = await rig.checkpoint()
    rig.remove("a")
    await grant(rig)
    await has_ends(rig, 2)
    assert not await deletions(rig)
    listed_at = int((await rig.ends())[-1].epoch.resource_version)
    assert (await rig.checkpoint())["resourceVersion"] == checkpoint["resourceVersion"]
    stall.remove()
    await are_published(rig, "a")
    await eventually(lambda: _is_checkpointed(rig, listed_at))


async def _is_checkpointed(rig: Rig, version: int) -> bool:
    return int((await rig.checkpoint())["resourceVersion"]) >= version


async def test_w24_a_restart_while_a_list_waits_goes_on_at_the_checkpoint_besides(rig: Rig):
    await start(rig, "a", "b")
    await ask_for_list(rig)
    await rig.stop()
    rig.remove("a")
    rig.start(**ASKS)
    await are_published(rig, "a")
    rig.remove("b")
    await are_published(rig, "b")
    assert len(rig.requests("list")) == 1
    await grant(rig)
    await has_ends(rig, 2)


async def test_w24_a_list_that_fails_half_way_opens_no_hole_either(rig: Rig):
    await start(rig, *(f"a{number}" for number in range(4)), page_size=2)
    await ask_for_list(rig)
    rule = rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps", skip=1, count=1)
    await grant(rig)
    await eventually(lambda: rule.hits)
    rig.remove("a1")
    await are_published(rig, "a1")
    await grant(rig)
    await has_ends(rig, 2)
    await eventually(lambda: rig.cluster.open_watches == 1)
    assert (await deletions(rig)) == Counter({"a1": 1})


async def test_w24_a_second_request_keeps_the_watch_that_tells_more(rig: Rig):
    """Without bookmarks the first watch is still there when the next list is asked for."""
    rig.cluster.faults.add(HideBookmarks(), verb="watch")
    await start(rig, "a", "b")
    for number in range(2, 5):
        move_on(rig)
        await ask_for_list(rig)
        await grant(rig)
        await has_ends(rig, number)
    await eventually(lambda: rig.cluster.open_watches == 2)  # not one more for each list
    rig.remove("a")
    await are_published(rig, "a")
    await eventually(lambda: rig.cluster.open_watches == 1)
    assert (await deletions(rig)) == Counter({"a": 1})


async def test_w24_without_bookmarks_the_old_watch_ends_after_one_that_began_behind_the_list(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reflect, "TOO_SHORT_SECONDS", 0)  # an end in good order, at once
    rig.cluster.faults.add(HideBookmarks(), verb="watch")
    await start(rig, "a")
    move_on(rig)
    await ask_for_list(rig)
    await grant(rig)
    await has_ends(rig, 2)
    for count in (2, 4):
        await eventually(lambda asked=count: len(rig.requests("watch")) == asked)
        await eventually(lambda: rig.cluster.open_watches == 2)
        rig.cluster.close_watches()
    await eventually(lambda: rig.cluster.open_watches == 1)
    rig.remove("a")
    await are_published(rig, "a")


async def test_w24_a_watch_that_is_lost_is_replaced_by_the_list_alone(rig: Rig):
    await start(rig, "a", "b")
    rig.cluster.faults.add(Expire("stream"), verb="watch", count=1)
    await ask_for_list(rig)
    rig.write("a", "changed")
    await eventually(lambda: rig.cluster.open_watches == 0)
    rig.remove("b")
    await grant(rig)
    await has_ends(rig, 2)
    await eventually(rig.is_mirrored)
    assert len(await rig.ends()) == 2
