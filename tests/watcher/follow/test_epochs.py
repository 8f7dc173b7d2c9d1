"""Lists and epochs: rules W1, W2, W6 to W8, W19, W20."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_emulator.apiserver import Abort, Delay, Expire, Fail, Hang, PartialList
from fleetbus_emulator.apiserver.faults import Action
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from support.eventually import eventually, never, stays
from support.rigs.watcher import Rig

_CONFIG_MAPS = parse_resource("v1/configmaps")


async def test_w7_the_end_follows_all_objects_and_counts_them(rig: Rig):
    for number in range(7):
        rig.write(f"a{number}")
    async with rig.watching(page_size=3):
        messages = [stored.message for stored in await rig.stored()]
    body = [m for m in messages if isinstance(m, Event | EpochEnd)]
    *listed, end = body
    assert isinstance(end, EpochEnd)
    assert end.count == len(listed) == 7
    assert {m.verb for m in listed if isinstance(m, Event)} == {Verb.LISTED}
    assert {m.epoch for m in body} == {end.epoch}
    assert {m.incarnation for m in body} == {end.incarnation}


async def test_w2_lists_ask_for_a_consistent_state_in_pages(rig: Rig):
    for number in range(5):
        rig.write(f"a{number}")
    async with rig.watching(page_size=2):
        pass
    lists = rig.requests("list")
    assert len(lists) == 3
    assert all("resourceVersion" not in request.query for request in lists)
    assert {request.query["limit"] for request in lists} == {"2"}


async def test_w1_the_watch_starts_at_the_version_of_the_list(rig: Rig):
    rig.write("a")
    rig.cluster.create("v1/secrets", {"metadata": {"name": "s"}}, "default")
    async with rig.watching():
        end = (await rig.ends())[0]
        await eventually(lambda: rig.requests("watch"))  # it may begin after the end of the list
    first = rig.requests("watch")[0]
    assert first.query["resourceVersion"] == end.epoch.resource_version
    assert end.epoch.resource_version != rig.truth()["a"]
    assert first.query["allowWatchBookmarks"] == "true"


async def test_w7_changes_and_deletions_during_a_slow_list_are_not_lost(rig: Rig):
    for number in range(6):
        rig.write(f"a{number}")
    rig.cluster.faults.add(
        Delay(timedelta(seconds=0.3)), verb="list", resource="configmaps", skip=1
    )
    rig.start(page_size=2)
    await eventually(lambda: rig.requests("watch"))
    rig.write("a0", "changed")
    rig.write("new")
    rig.remove("a5")
    assert await rig.ends() == []
    await eventually(rig.ends)
    await eventually(rig.is_mirrored)
    events = await rig.events()
    assert {e.verb for e in events if e.name == "new"} == {Verb.ADDED}
    assert len({e.epoch for e in events}) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fail(401),
        Fail(403),
        Fail(404),
        Fail(429, retry_after=timedelta()),  # else each takes a second
        Fail(500),
        Fail(503),
        Abort(),
        Expire("page"),
    ],
    ids=["401", "403", "404", "429", "500", "503", "cut", "410"],
)
async def test_w8_no_epoch_ends_while_a_later_page_is_in_doubt(rig: Rig, fault: Action):
    for number in range(4):
        rig.write(f"a{number}")
    # 410 befalls later pages alone, the others would befall the first one too.
    skip = 0 if isinstance(fault, Expire) else 1
    rule = rig.cluster.faults.add(fault, verb="list", resource="configmaps", skip=skip)
    rig.start(page_size=2)
    # 410 gives up after larger pages and one page that holds all; there the fault ends.
    attempts = 3 if isinstance(fault, Expire) else 4
    await eventually(lambda: len(rig.requests("list")) >= attempts)
    if not isinstance(fault, Expire):
        await eventually(lambda: is_failing(rig))
        assert await rig.ends() == []
    rule.remove()
    await eventually(rig.ends)
    assert (await rig.ends())[0].count == 4
    await eventually(rig.is_mirrored)


async def is_failing(rig: Rig) -> bool:
    status = await rig.status()
    return status is not None and status.state == "failing"


async def test_w8_an_empty_page_of_which_the_one_before_said_that_there_is_more_ends_no_epoch(
    rig: Rig,
):
    for number in range(4):
        rig.write(f"a{number}")
    rig.cluster.faults.add(PartialList(), verb="list", resource="configmaps", skip=1, count=1)
    rig.start(page_size=2)
    await eventually(rig.ends)
    assert [end.count for end in await rig.ends()] == [4]


async def test_w8_a_list_that_is_never_answered_ends_no_epoch(rig: Rig):
    rig.write("a")
    rule = rig.cluster.faults.add(Hang(), verb="list", resource="configmaps")
    rig.start(silence=timedelta(seconds=0.2))
    await eventually(lambda: rule.hits >= 2)
    assert await rig.ends() == []
    rule.remove()
    await eventually(rig.is_mirrored)


async def test_w2_a_list_that_expires_is_repeated_with_larger_pages_then_with_one(rig: Rig):
    for number in range(9):
        rig.write(f"a{number}")
    rig.cluster.faults.add(Expire("page"), verb="list", resource="configmaps")
    async with rig.watching(page_size=2):
        end = (await rig.ends())[0]
    assert end.count == 9
    limits = [request.query.get("limit") for request in rig.requests("list")]
    assert limits[0] == "2"
    assert "8" in limits
    assert limits[-1] is None


async def test_w7_an_abandoned_epoch_takes_its_watch_with_it(rig: Rig):
    for number in range(4):
        rig.write(f"a{number}")
    rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps", skip=1, count=1)
    async with rig.watching(page_size=2):
        await eventually(lambda: rig.cluster.open_watches == 1)
        ranks = {event.epoch for event in await rig.events()}
        ends = await rig.ends()
    assert len(ranks) == 2
    assert len(ends) == 1
    assert ends[0].epoch == max(ranks, key=lambda rank: rank.key)


async def test_w20_a_resync_request_is_followed_at_once_and_only_once(rig: Rig):
    rig.write("a")
    async with rig.watching():
        first = (await rig.ends())[0]
        request = ResyncRequest(min_epoch=first.epoch.id + 1_000_000, reason="test")
        await request_resync(rig.bus, rig.kv, "alpha", _CONFIG_MAPS, request)
        await eventually(lambda: _count(rig, 2))
        await request_resync(rig.bus, rig.kv, "alpha", _CONFIG_MAPS, request)
        await never(lambda: _count(rig, 3), timedelta(seconds=0.2))
        ends = await rig.ends()
    assert ends[1].epoch.id >= request.min_epoch


async def test_w20_a_resync_request_written_while_the_watcher_was_down_is_followed(rig: Rig):
    rig.write("a")
    async with rig.watching():
        first = (await rig.ends())[0]
        await eventually(rig.checkpoint)
    request = ResyncRequest(min_epoch=first.epoch.id + 1, epoch=first.epoch.id + 5)
    await request_resync(rig.bus, rig.kv, "alpha", _CONFIG_MAPS, request)
    async with rig.watching():
        ends = await rig.ends()
    assert ends[1].epoch.id > first.epoch.id + 5


async def test_w6_with_a_selector_a_deletion_is_marked(rig: Rig):
    rig.cluster.create(
        "v1/configmaps", {"metadata": {"name": "a", "labels": {"app": "x"}}}, "default"
    )
    rig.cluster.create("v1/configmaps", {"metadata": {"name": "b"}}, "default")
    selection = {"resource": "configmaps", "labelSelector": "app=x"}
    async with rig.watching(resources=(selection,)):
        assert [e.name for e in await rig.events()] == ["a"]
        rig.cluster.patch("v1/configmaps", "default", "a", {"metadata": {"labels": {"app": "y"}}})
        await eventually(lambda: _has_verb(rig, Verb.DELETED))
        event = (await rig.events())[-1]
    assert event.left_selection
    assert event.scope != ""


async def test_w7_each_namespace_of_a_narrowed_resource_is_a_scope_of_its_own(rig: Rig):
    rig.cluster.create("v1/namespaces", {"metadata": {"name": "other"}})
    rig.cluster.create("v1/configmaps", {"metadata": {"name": "a"}}, "default")
    rig.cluster.create("v1/configmaps", {"metadata": {"name": "b"}}, "other")
    rig.cluster.create("v1/configmaps", {"metadata": {"name": "c"}}, "kube-system")
    selection = {"resource": "configmaps", "namespaces": ["default", "other"]}
    rig.start(resources=(selection,))
    await eventually(lambda: _count(rig, 2))
    ends = await rig.ends()
    assert [end.count for end in ends] == [1, 1]
    assert len({end.scope for end in ends}) == 2
    assert {event.name for event in await rig.events()} == {"a", "b"}


async def test_w19_no_more_than_two_lists_run_at_once(rig: Rig):
    def lists() -> int:
        return sum(request.verb == "list" for request in rig.cluster.requests)

    rig.cluster.faults.add(Hang(), verb="list")
    rig.start(resources=("*",))
    await eventually(lambda: lists() >= 2)
    await stays(2, lists, timedelta(seconds=0.2))


async def _count(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def _has_verb(rig: Rig, verb: Verb) -> bool:
    return any(event.verb is verb for event in await rig.events())
