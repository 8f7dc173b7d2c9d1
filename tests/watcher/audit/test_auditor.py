"""Audits: identities in pages, now and then or on request, never one in doubt (W18, W8)."""

from __future__ import annotations

import asyncio
import itertools
import json
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.process.settings import load_settings
from fleetbus.watchers.resync import request_audit
from fleetbus_cli.clusters.audit import audit_cluster
from fleetbus_cli.unknown import UnknownName
from fleetbus_emulator.apiserver import CutAnswer, Delay, Expire, Fail
from fleetbus_proto.events import AuditPage
from fleetbus_proto.keys import kv_audit
from fleetbus_watcher.audit.pages import ITEMS, Paginator, read_identity
from fleetbus_watcher.audit.schedule import interval
from fleetbus_watcher.errors import AuditAbandoned
from fleetbus_watcher.settings import WatcherSettings
from support.eventually import eventually
from support.rigs.watcher import Rig
from support.rows import each_row

OFTEN: dict[str, Any] = {
    "audit_shortest": timedelta(milliseconds=300),
    "audit_longest": timedelta(milliseconds=300),
}
ON_REQUEST: dict[str, Any] = {"audit_shortest": timedelta()}
ROOM = 1_000_000


async def pages(rig: Rig) -> list[AuditPage]:
    messages = [stored.message for stored in await rig.stored()]
    return [message for message in messages if isinstance(message, AuditPage)]


async def audits(rig: Rig) -> list[list[AuditPage]]:
    """The complete ones, each with its pages in order."""
    by_rank: dict[Any, dict[int, AuditPage]] = {}
    for page in await pages(rig):
        by_rank.setdefault(page.epoch, {})[page.page] = page
    complete = [[numbered[n] for n in sorted(numbered)] for numbered in by_rank.values()]
    return [audit for audit in complete if audit[-1].last and len(audit) == audit[-1].page + 1]


async def test_w18_an_audit_tells_the_identity_of_every_object_and_nothing_else(rig: Rig):
    for number in range(7):
        rig.write(f"a{number}")
    async with rig.watching(**OFTEN, page_size=3):
        first_audit = (await eventually(lambda: audits(rig)))[0]
        end = (await rig.ends())[-1]
    truth = rig.cluster.list("v1/configmaps")
    expected = [
        ("default", o["metadata"]["name"], o["metadata"]["uid"], o["metadata"]["resourceVersion"])
        for o in sorted(truth, key=lambda o: o["metadata"]["name"])
    ]
    assert [item for page in first_audit for item in page.items] == expected
    assert first_audit[0].incarnation == end.incarnation
    assert int(first_audit[0].epoch.resource_version) >= max(int(rv) for *_, rv in expected)
    requests = [r for r in rig.requests("list") if "PartialObjectMetadataList" in r.accept]
    assert [r.query.get("resourceVersion") for r in requests] == [None] * len(requests)
    assert [r.query["limit"] for r in requests[:3]] == ["3"] * 3


async def test_w18_audits_come_again_and_again_within_their_interval(rig: Rig):
    async with rig.watching(**OFTEN):
        await eventually(lambda: has_audits(rig, 2))


async def has_audits(rig: Rig, number: int) -> bool:
    return len(await audits(rig)) >= number


async def test_w18_without_an_interval_audits_come_on_request_only_and_once(rig: Rig):
    async with rig.watching(**ON_REQUEST):
        before = len(await audits(rig))
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: has_audits(rig, 1))
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert (before, len(await audits(rig))) == (0, 1)


async def test_w18_the_command_asks_for_an_audit_of_a_cluster_that_somebody_watches(
    rig: Rig,
):
    async with rig.watching(**ON_REQUEST):
        with pytest.raises(
            UnknownName, match="no watcher has ever connected to a cluster 'nobody'"
        ):
            await asyncio.to_thread(audit_cluster, "nobody", rig.nats_url)
        assert await asyncio.to_thread(audit_cluster, "alpha", rig.nats_url) == 0
        await eventually(lambda: has_audits(rig, 1))


@pytest.mark.slow
async def test_w18_a_request_written_while_the_watcher_was_down_is_answered(rig: Rig):
    await request_audit(rig.bus, rig.kv, "alpha")
    async with rig.watching(**ON_REQUEST):
        await eventually(lambda: has_audits(rig, 1))
    async with rig.watching_on(**ON_REQUEST):
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert len(await audits(rig)) == 1


async def test_w15_w18_what_one_replica_audits_the_other_does_not(rig: Rig):
    async with rig.watching(**ON_REQUEST), rig.watching_on(replica="r2", **ON_REQUEST):
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: has_audits(rig, 1))
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert len(await audits(rig)) == 1


@pytest.mark.slow
async def test_w15_w18_an_audit_that_takes_long_is_not_begun_anew_by_the_other_replica(
    rig: Rig,
):
    """Or neither would ever end: the pages of a newer one displace those of an older one."""
    rig.timing = replace(
        rig.timing,
        audit_taken_over=timedelta(seconds=1),
        audit_renewed=timedelta(seconds=0.1),
    )
    for number in range(6):
        rig.write(f"a{number}")
    slow: dict[str, Any] = ON_REQUEST | {"page_size": 1}
    async with rig.watching(**slow), rig.watching_on(replica="r2", **slow):
        rig.cluster.faults.add(Delay(timedelta(seconds=0.25)), verb="list", resource="configmaps")
        await request_audit(rig.bus, rig.kv, "alpha")
        ((page,),) = await eventually(lambda: audits(rig))
        record = await rig.kv.get(kv_audit("alpha", "core", "configmaps", ""))
    assert record is not None
    assert json.loads(record.value)["id"] == page.epoch.id


async def test_w12_w18_changes_while_the_list_of_an_audit_is_answered_are_no_restored_etcd(
    rig: Rig,
):
    async with rig.watching(**ON_REQUEST):
        first = (await rig.ends())[-1].incarnation
        late = Delay(timedelta(seconds=0.3), after_commit=True)
        rule = rig.cluster.faults.add(late, verb="list", resource="configmaps")
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: rule.hits > 0)
        rig.write("a")
        await eventually(rig.is_mirrored)
        ((page,),) = await eventually(lambda: audits(rig))
        assert page.incarnation == first


@pytest.mark.parametrize(
    "fault",
    [Fail(503), Fail(403), CutAnswer(0.5)],
    ids=["503", "403", "cut"],
)
async def test_w8_w18_an_audit_in_doubt_has_no_end_and_is_tried_again(rig: Rig, fault: Any):
    for number in range(5):
        rig.write(f"a{number}")
    async with rig.watching(**ON_REQUEST, page_size=2):
        rule = rig.cluster.faults.add(fault, verb="list", resource="configmaps", skip=1)
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: rule.hits > 1)
        assert await audits(rig) == []
        rig.cluster.faults.clear()
        await eventually(lambda: has_audits(rig, 1))


async def test_w2_w18_an_audit_that_expires_is_repeated_with_larger_pages(rig: Rig):
    for number in range(5):
        rig.write(f"a{number}")
    async with rig.watching(**ON_REQUEST, page_size=2):
        rig.cluster.faults.add(Expire("page"), verb="list", resource="configmaps")
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: has_audits(rig, 1))
        assert len({page.epoch.id for page in await pages(rig)}) == 1
    limits = [r.query["limit"] for r in rig.requests("list") if "Metadata" in r.accept]
    assert limits == ["2", "2", "8"]


async def test_w18_where_metadata_alone_is_refused_whole_objects_are_read(rig: Rig):
    rig.write("a")
    async with rig.watching(**ON_REQUEST):
        rule = rig.cluster.faults.add(
            Fail(406, reason="NotAcceptable"), verb="list", resource="configmaps", count=1
        )
        await request_audit(rig.bus, rig.kv, "alpha")
        await eventually(lambda: has_audits(rig, 1))
    assert rule.hits == 1
    assert [r.accept for r in rig.requests("list")][-1] == "application/json"


async def test_w18_nothing_is_audited_before_it_has_been_listed(rig: Rig):
    rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps")
    rig.start(**OFTEN)
    await eventually(lambda: len(rig.requests("list")) > 3)
    assert await pages(rig) == []
    assert await rig.kv.get(kv_audit("alpha", "core", "configmaps", "")) is None


# --- pages ------------------------------------------------------------------------------------


def test_w18_pages_join_without_a_gap_and_stay_below_the_limit():
    names = ["-", "a b", "a.b", "é☃", "*", ">", "x" * 3000, *(f"n{i:04}" for i in range(1200))]
    items = sorted([("ns", name, "u", "1") for name in names], key=lambda i: i[1].encode())
    paginator = Paginator(max_body=20_000)
    parts = [*paginator.add(items), paginator.end()]
    assert [item for each_part in parts for item in each_part.items] == items
    assert [each_part.number for each_part in parts] == list(range(len(parts)))
    assert [each_part.is_last for each_part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[0].after is None
    for before, page in itertools.pairwise(parts):
        assert page.after == before.items[-1][:2]
        assert len(msgspec.msgpack.encode(page.items)) < 20_000


def test_w14_w18_an_audit_of_many_objects_holds_no_more_than_a_page():
    paginator = Paginator(ROOM)
    tracemalloc.start()
    for at in range(0, 4_000, ITEMS):
        numbers = range(at, at + ITEMS)
        list(paginator.add([("ns", f"n{i:09}", f"uid-{i}", str(i)) for i in numbers]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert paginator.end().number == 4_000 // ITEMS - 1
    assert peak < 600_000


def test_w18_a_short_list_in_no_order_is_sorted_and_a_long_one_is_given_up():
    paginator = Paginator(ROOM)
    assert (
        list(paginator.add([("b", "x", "", "1"), ("a-b", "x", "", "1"), ("a", "x", "", "1")])) == []
    )
    assert [item[0] for item in paginator.end().items] == ["a-b", "a", "b"]
    paginator = Paginator(ROOM)
    list(paginator.add([("b", "x", "", "1")]))
    with pytest.raises(AuditAbandoned, match="order"):
        list(paginator.add([("a", "x", "", "1")]))


def test_w8_w18_an_object_that_no_message_can_carry_ends_the_audit():
    with pytest.raises(AuditAbandoned, match="bytes"):
        list(Paginator(20_000).add([("", "n" * 30_000, "", "1")]))


@each_row("text", ["{}", '{"metadata":{}}', '{"metadata":{"name":1}}', "[]", "null"])
def test_w8_w18_an_item_without_a_key_ends_the_audit(text: str):
    with pytest.raises(AuditAbandoned):
        read_identity(msgspec.Raw(text.encode()))


def test_w16_w18_an_identity_is_read_whatever_else_the_object_holds():
    metadata = b'{"name":"n","uid":"u","resourceVersion":"7","labels":{"a":"b"}}'
    deep = b'{"spec":' + b"[" * 20_000 + b"]" * 20_000 + b',"metadata":' + metadata + b"}"
    assert read_identity(msgspec.Raw(deep)) == ("", "n", "u", "7")


def test_w18_large_resources_are_audited_seldom():
    minutes, hours = timedelta(minutes=10), timedelta(hours=6)
    assert interval(0, minutes, hours) == interval(2_700, minutes, hours) == minutes
    assert interval(50_000, minutes, hours) == hours / 2
    assert interval(100_000, minutes, hours) == interval(9_000_000, minutes, hours) == hours
    settings = load_settings(WatcherSettings, cluster="a")
    assert (settings.audit_shortest, settings.audit_longest) == (minutes, hours)
