"""Types that end, that only seem to, and that come again (rule W17)."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus_emulator.apiserver import Fail, GroupDown
from fleetbus_proto.events import EpochEnd
from fleetbus_proto.keys import kv_audit, kv_checkpoint, kv_epoch, kv_types
from fleetbus_proto.subjects import Verb
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually, never, stays
from support.rigs.watcher import QUICK_TIMING, Rig, rig_for
from support.servers.restricted_nats import restricted_server

API_SERVICES = "apiregistration.k8s.io/v1/apiservices"
WIDGETS = "example.com/v1/widgets"
PLACE = ("alpha", "example.com", "widgets")
CRD = definition("example.com", "widgets", "Widget")
ALL: dict[str, Any] = {"resources": ("widgets.example.com", "customresourcedefinitions")}
OFTEN: dict[str, Any] = ALL | {"discovery_interval": timedelta(milliseconds=50)}

WITHOUT_CRDS: dict[str, Any] = OFTEN | {"resources": ("widgets.example.com", "configmaps")}


SOON = replace(
    QUICK_TIMING,
    second_discovery=timedelta(milliseconds=50),
    crd_settles=timedelta(milliseconds=50),
)


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    async with rig_for(nats_url, timing=SOON) as opened:
        yield opened


@pytest.fixture
async def known(rig: Rig) -> Rig:
    """A watcher has seen two widgets, and is gone."""
    rig.cluster.create(CRDS, CRD)
    for name in ("w1", "w2"):
        rig.cluster.create(WIDGETS, {"metadata": {"name": name}}, "default")
    async with rig.watching(**ALL):
        await eventually(lambda: recorded(rig))
        await eventually(lambda: rig.is_mirrored(WIDGETS))
        await eventually(lambda: rig.kv.get(kv_checkpoint(*PLACE, "")))
    return rig


async def test_w8_types_that_cannot_be_read_are_named_in_the_log(rig: Rig):
    rig.cluster.create(CRDS, CRD)
    with capture_logs() as logs:
        async with rig.watching(**OFTEN):
            rig.cluster.faults.add(GroupDown(), group="example.com")
            await eventually(lambda: any(line["event"] == "types_unread" for line in logs))
    (line,) = (line for line in logs if line["event"] == "types_unread")
    assert (line["group_versions"], line["count"]) == ("example.com/v1", 1)
    assert "example.com/v1" in line["error"]


async def recorded(rig: Rig) -> list[dict[str, Any]]:
    entry = await rig.kv.get(kv_types("alpha"))
    return json.loads(entry.value)["types"] if entry is not None else []


async def removals(rig: Rig) -> list[EpochEnd]:
    return [end for end in await rig.ends("widgets") if end.removed]


async def deletions(rig: Rig) -> list[str]:
    return [event.name for event in await rig.events("widgets") if event.verb is Verb.DELETED]


def drop_type(rig: Rig) -> None:
    """The CRD goes, and no event of its objects comes."""
    rig.cluster.delete(CRDS, None, "widgets.example.com")


async def test_w17_a_type_that_ends_while_it_is_watched_is_reported_as_ended(rig: Rig):
    rig.cluster.create(CRDS, CRD)
    async with rig.watching(**ALL):
        await eventually(lambda: recorded(rig))
        rig.cluster.create(WIDGETS, {"metadata": {"name": "w"}}, "default")
        await eventually(lambda: rig.is_mirrored(WIDGETS))
        drop_type(rig)
        (end,) = await eventually(lambda: removals(rig))
        assert (end.count, end.kind, end.version, end.scope) == (0, "Widget", "v1", "")
        await eventually(lambda: is_left(rig))
    assert int(end.epoch.resource_version) <= rig.cluster.resource_version
    assert await rig.mirror("widgets") == {}
    assert len(await removals(rig)) == 1


async def test_w17_a_removed_type_is_not_read_any_more_when_its_end_is_published(rig: Rig):
    """A report of a watcher after that would make it known again."""
    rig.cluster.create(CRDS, CRD)
    with capture_logs() as logs:
        async with rig.watching(**ALL):
            await eventually(lambda: recorded(rig))
            drop_type(rig)
            await eventually(lambda: any(line["event"] == "type_removed" for line in logs))
            await eventually(lambda: is_left(rig))
    widgets = [line["event"] for line in logs if line.get("resource") == WIDGETS]
    assert widgets.index("resource_unwatched") < widgets.index("type_removed")
    assert widgets[-1] == "type_removed"


async def is_left(rig: Rig) -> bool:
    """The heartbeat says nothing of it but that the server does not serve it."""
    status = await rig.status("widgets")
    return status is not None and "does not serve it" in status.message and not status.kind


async def test_s3_w17_the_end_of_a_type_needs_no_more_than_the_rights_of_a_watcher(tmp_path: Path):
    async with (
        restricted_server(tmp_path, "alpha") as address,
        rig_for(f"nats://admin:p@{address}", timing=SOON) as rig,
    ):
        rig.cluster.create(CRDS, CRD)
        task = rig.start(f"nats://w:p@{address}", **ALL)
        await eventually(lambda: recorded(rig))
        drop_type(rig)
        await eventually(lambda: removals(rig))
        await eventually(lambda: is_unrecorded(rig))
        assert not task.done()


async def test_w17_a_type_that_ended_while_no_watcher_ran_is_reported_as_ended(known: Rig):
    drop_type(known)
    known.start(**ALL)
    await eventually(lambda: removals(known))
    assert await known.mirror("widgets") == {}
    await eventually(lambda: is_unrecorded(known))
    for key in (kv_checkpoint(*PLACE, ""), kv_audit(*PLACE, "")):
        assert await known.kv.get(key) is None
    assert await known.kv.get(kv_epoch(*PLACE)) is not None


async def is_unrecorded(rig: Rig) -> bool:
    return await recorded(rig) == []


async def test_w17_a_type_that_comes_again_is_listed_anew(known: Rig):
    drop_type(known)
    known.start(**ALL)
    (removal,) = await eventually(lambda: removals(known))
    known.cluster.create(CRDS, CRD)
    known.cluster.create(WIDGETS, {"metadata": {"name": "w3"}}, "default")
    await eventually(lambda: known.is_mirrored(WIDGETS))
    await eventually(lambda: recorded(known))
    last = (await known.ends("widgets"))[-1]
    assert not last.removed
    assert last.epoch.key > removal.epoch.key


async def test_w17_another_served_version_is_no_end_and_no_beginning(known: Rig):
    listed = len(await known.ends("widgets"))
    flipped = copy.deepcopy(CRD)
    flipped["spec"]["versions"][0]["name"] = "v2"
    async with known.watching_on(**OFTEN):
        held = known.cluster.get(CRDS, None, "widgets.example.com")
        assert held is not None
        flipped["metadata"] = held["metadata"]
        old = copy.deepcopy(CRD["spec"]["versions"][0]) | {"storage": False}
        flipped["spec"]["versions"].append(old)
        known.cluster.update(CRDS, flipped)
        await eventually(lambda: follows_version(known, "v2"))
        known.cluster.patch(
            "example.com/v2/widgets", "default", "w1", {"metadata": {"labels": {"a": "b"}}}
        )
        await eventually(lambda: has_version(known, "v2"))
    assert await deletions(known) == await removals(known) == []
    # It is listed once, for every body is another one in the other version.
    assert len(await known.ends("widgets")) == listed + 1
    published = [event for event in await known.events("widgets") if event.version == "v2"]
    assert [event.verb for event in published] == [Verb.LISTED, Verb.LISTED, Verb.MODIFIED]
    assert all(b'"example.com/v2"' in (event.object or b"") for event in published)


async def follows_version(rig: Rig, version: str) -> bool:
    status = await rig.status("widgets")
    return status is not None and (status.version, status.state) == (version, "watching")


async def has_version(rig: Rig, version: str) -> bool:
    return any(event.version == version for event in await rig.events("widgets"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [GroupDown(), Fail(404)], ids=["down", "404"])
async def test_w8_w17_a_group_that_is_down_ends_no_type(known: Rig, fault: Any):
    rule = known.cluster.faults.add(fault, group="example.com")
    known.start(**OFTEN)
    await eventually(lambda: rule.hits > 6)
    assert await deletions(known) == await removals(known) == []
    assert [removal["resource"] for removal in await recorded(known)] == ["widgets"]


def drop_type_of_a_group_that_stays(rig: Rig) -> None:
    rig.cluster.create(CRDS, definition("example.com", "gadgets", "Gadget"))
    drop_type(rig)


async def test_w17_w19_a_group_in_doubt_is_not_discovered_in_a_hurry(known: Rig):
    drop_type_of_a_group_that_stays(known)
    rule = known.cluster.faults.add(GroupDown(), group="example.com", skip=1)
    known.start(**ALL)
    await eventually(lambda: rule.hits > 0)
    # five hurried discoveries take no longer
    await never(lambda: rule.hits >= 4, timedelta(seconds=0.5))


async def test_w8_w17_while_discovery_is_in_doubt_no_type_of_the_group_ends(known: Rig):
    drop_type_of_a_group_that_stays(known)
    rule = known.cluster.faults.add(GroupDown(), group="example.com")
    known.start(**OFTEN)
    await eventually(lambda: rule.hits > 6)
    assert await removals(known) == []
    rule.remove()
    await eventually(lambda: removals(known))


async def test_w17_one_discovery_alone_ends_no_type(known: Rig):
    known.timing = replace(SOON, second_discovery=timedelta(hours=1))
    drop_type(known)
    known.start(**ALL)
    await eventually(lambda: is_left(known))
    # time enough to look at the CRDs
    await stays([], lambda: removals(known), timedelta(seconds=0.2))
    known.cluster.create(CRDS, {**CRD, "metadata": {"name": "widgets.example.com"}})
    await eventually(lambda: has_ended(known, 2))
    assert await removals(known) == []


async def has_ended(rig: Rig, number: int) -> bool:
    return len(await rig.ends("widgets")) >= number


async def test_w8_w17_without_a_list_of_crds_there_is_no_proof(known: Rig):
    drop_type(known)
    rule = known.cluster.faults.add(Fail(403), verb="list", resource="customresourcedefinitions")
    known.start(**WITHOUT_CRDS)
    await eventually(lambda: rule.hits > 2)
    assert await removals(known) == []
    rule.remove()
    await eventually(lambda: removals(known))


@pytest.mark.parametrize("is_reported", [True, False], ids=["down", "unknown"])
async def test_w17_a_type_that_an_aggregated_api_serves_now_does_not_end(
    known: Rig, *, is_reported: bool
):
    """Its CRD was replaced by an APIService, which discovery no longer returns."""
    group = "apiregistration.k8s.io"
    api = definition(group, "apiservices", "APIService", scope="Cluster")
    api["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    known.cluster.create(CRDS, api)
    service = {"spec": {"group": "example.com", "version": "v1", "service": {"name": "s"}}}
    other_service = {"spec": {"group": "other.example.com", "version": "v1", "service": None}}
    for name, body in (("v1.example.com", service), ("v1.other.example.com", other_service)):
        known.cluster.create(API_SERVICES, body | {"metadata": {"name": name}})
    if not is_reported:
        known.cluster.faults.add(Fail(403), verb="list", resource="apiservices")
    drop_type(known)
    known.start(**OFTEN)
    await eventually(lambda: len(known.requests("list", "apiservices")) > 0)
    if is_reported:
        await eventually(lambda: is_unrecorded(known))
    else:
        await eventually(lambda: len(known.requests("list", "apiservices")) > 2)
        assert await recorded(known)
    assert await deletions(known) == await removals(known) == []


async def test_w17_a_crd_that_serves_nothing_is_no_end(known: Rig):
    held = known.cluster.get(CRDS, None, "widgets.example.com")
    assert held is not None
    held["spec"]["versions"][0]["served"] = False
    known.cluster.update(CRDS, held)
    known.start(**OFTEN)
    lists = len(known.requests("list", "customresourcedefinitions"))
    await eventually(lambda: len(known.requests("list", "customresourcedefinitions")) > lists + 2)
    assert await deletions(known) == await removals(known) == []


async def test_w17_only_types_with_a_crd_can_end(rig: Rig):
    async with rig.watching(resources=("configmaps", "deployments.apps")):
        await eventually(lambda: rig.status("deployments"))
        rig.write("a")
        await eventually(rig.is_mirrored)
    assert await rig.kv.get(kv_types("alpha")) is None
    assert rig.requests("list", "customresourcedefinitions") == []


async def test_w15_w17_two_replicas_end_a_type_once_or_twice_alike(known: Rig):
    drop_type(known)
    known.start(**ALL)
    known.start(**ALL, replica="r2")
    await eventually(lambda: is_unrecorded(known))

    async def kinds() -> set[tuple[int, bool]]:
        return {(end.count, end.removed) for end in await removals(known)}

    await stays({(0, True)}, kinds, timedelta(seconds=0.2))
    assert await known.mirror("widgets") == {}
