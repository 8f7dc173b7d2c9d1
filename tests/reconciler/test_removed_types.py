"""The end of a type: its objects are deleted, and it is forgotten (rules W17, P5 to P7)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from fleetbus.snapshot.records import ResourceState
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.rigs.projector import LATER, ProjectorRig, heartbeat
from support.stores.snapshot import Source

FIRST = LATER
WIDGETS = "example.com/widgets"
OF = Source(group="example.com", resource="widgets")
LISTED = replace(OF, rank=(100, FIRST))
ENDED = replace(OF, rank=(200, FIRST + 1))


async def filled(rig: ProjectorRig, count: int) -> None:
    rig.resource = WIDGETS
    await rig.started("eu1")
    await rig.publish_epoch(LISTED, **{f"o{number:02}": 10 for number in range(count)})
    await rig.synced(epoch=f"100 {FIRST}")


async def is_forgotten(rig: ProjectorRig) -> bool:
    rows = await rig.snapshot.reader.count("eu1", WIDGETS)
    return await rig.record() is None and not rows


async def test_w17_the_end_of_a_type_deletes_all_its_objects_however_many(rig: ProjectorRig):
    rig.settings["fuse_wait"] = timedelta(hours=1)
    await filled(rig, 30)
    await rig.publish(ENDED.end(0, removed=True))
    await eventually(lambda: is_forgotten(rig))
    await eventually(lambda: len({event.name for event in rig.deleted}) == 30)
    assert {event.resource_version for event in rig.deleted} == {"200"}
    assert await rig.resync_request() is None
    await eventually(lambda: has_no_tombstones(rig))


async def has_no_tombstones(rig: ProjectorRig) -> bool:
    return not await rig.redis.exists(SnapshotKeys().deleted("eu1", WIDGETS))


async def test_p7_w17_an_empty_list_alone_is_no_end_of_a_type(rig: ProjectorRig):
    await filled(rig, 30)
    await rig.publish(ENDED.end(0))
    await rig.resync_requested("deletion fuse")
    assert rig.deleted == []
    assert await rig.state() is ResourceState.DEGRADED


async def test_w17_an_end_that_was_held_as_a_list_is_released_by_the_end_of_the_type(
    rig: ProjectorRig,
):
    rig.settings["fuse_wait"] = timedelta(hours=1)
    await filled(rig, 30)
    await rig.publish(replace(OF, rank=(150, FIRST + 1)).end(0))
    await eventually(lambda: is_degraded(rig))
    await rig.publish(replace(OF, rank=(200, FIRST + 2)).end(0, removed=True))
    await eventually(lambda: is_forgotten(rig))


async def is_degraded(rig: ProjectorRig) -> bool:
    return await rig.state() is ResourceState.DEGRADED


async def test_w17_the_end_of_a_type_outlives_the_projector(rig: ProjectorRig):
    rig.settings["fuse_wait"] = timedelta(hours=1)
    await filled(rig, 3)
    await rig.stop()
    # Another projector took the marker, and died before its sweep.
    assert (await rig.snapshot.writer.end_epoch(ENDED.end(0, removed=True))).complete
    rig.start()
    await eventually(lambda: is_forgotten(rig))
    await eventually(lambda: len({event.name for event in rig.deleted}) == 3)


async def test_w17_a_type_that_came_again_stays(rig: ProjectorRig):
    await filled(rig, 3)
    await rig.publish(ENDED.end(0, removed=True))
    again = replace(OF, rank=(210, FIRST + 2))
    await rig.publish_epoch(again, new=205)
    await rig.publish(heartbeat(group="example.com", resource="widgets", resource_version="210"))
    await rig.synced(epoch=f"210 {FIRST + 2}")
    await eventually(lambda: has_names(rig, "new"))
    await rig.publish(again.added("late", 220))
    await eventually(lambda: has_names(rig, "late", "new"))
    assert await rig.state() is ResourceState.SYNCED
    await eventually(lambda: {event.name for event in rig.deleted} == {"o00", "o01", "o02"})


async def has_names(rig: ProjectorRig, *names: str) -> bool:
    return await rig.snapshot.names(resource=WIDGETS) == list(names)


async def test_p4_w17_what_is_late_does_not_bring_a_type_back(rig: ProjectorRig):
    await filled(rig, 1)
    await rig.publish(ENDED.end(0, removed=True))
    await eventually(lambda: is_forgotten(rig))
    await rig.publish(LISTED.modified("o00", 150), LISTED.added("other", 160))
    await rig.publish(ENDED.added("mark", 300))
    await eventually(lambda: has_names(rig, "mark"))
