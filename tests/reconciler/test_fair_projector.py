"""The list of one cluster does not hold up the changes of others (rules P9, B17)."""

from __future__ import annotations

from fleetbus_proto import codec, headers
from fleetbus_proto.admission import subject_of
from fleetbus_proto.events import Message
from support.eventually import eventually
from support.rigs.projector import PODS, ProjectorRig, heartbeat
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

OBJECTS = 600
LIST_VERSION, RANK = 2_000, (2_000, 5)
JOINING, OTHER = Source(cluster="eu1", rank=RANK), Source(cluster="us1")


async def publish_at_once(rig: ProjectorRig, *messages: Message) -> None:
    """Publish in this order, as a watcher does, without waiting for each answer."""
    for message in messages:
        await rig.bus.nc.publish(
            subject_of(message),
            codec.encode(message),
            headers=headers.build(message, MESSAGE_KEY),
        )
    await rig.bus.nc.flush()


async def publish_join(rig: ProjectorRig) -> None:
    """All that the projector finds: a change, a whole list, and a change behind it."""
    await rig.started("eu1", "us1")
    await rig.publish(heartbeat("eu1"), heartbeat("us1"))
    await eventually(rig.is_through)
    await rig.stop()
    listed = [JOINING.listed(f"p{n}", n + 1) for n in range(OBJECTS)]
    await publish_at_once(
        rig,
        OTHER.modified("first", 1),
        *listed[: OBJECTS // 2],
        JOINING.modified("p0", LIST_VERSION + 1),
        JOINING.deleted("p1", LIST_VERSION + 2),
        *listed[OBJECTS // 2 :],
        JOINING.end(OBJECTS),
        OTHER.modified("behind", 2),
    )


async def counter(rig: ProjectorRig, cluster: str, name: str) -> int:
    """When it was written, by the counter of the snapshot."""
    entry = await rig.snapshot.reader.get(cluster, PODS, "prod", name)
    assert entry is not None, name
    return entry.counter


async def check_joined(rig: ProjectorRig) -> None:
    """All of the list is there, and what had changed meanwhile is as it was changed last."""
    await rig.synced("eu1", epoch=f"{RANK[0]} {RANK[1]}")
    await eventually(rig.is_through)
    names = await rig.snapshot.names(clusters=["eu1"])
    assert set(names) == {f"p{n}" for n in range(OBJECTS)} - {"p1"}
    entry = await rig.snapshot.reader.get("eu1", PODS, "prod", "p0")
    assert entry is not None
    assert entry.resource_version == str(LIST_VERSION + 1)
    assert rig.deleted[1:] == [], "the sweep took something for gone"


async def test_p9_a_change_overtakes_the_list_of_another_cluster(rig: ProjectorRig) -> None:
    await publish_join(rig)
    rig.start()
    await check_joined(rig)
    assert await counter(rig, "us1", "behind") < await counter(rig, "eu1", f"p{OBJECTS - 1}")


async def test_p9_a_projector_that_ends_in_the_middle_of_a_list_loses_nothing(
    rig: ProjectorRig,
) -> None:
    await publish_join(rig)
    rig.start()

    async def is_half_done() -> bool:
        return await rig.snapshot.reader.count("eu1", PODS) >= OBJECTS // 4

    await eventually(is_half_done)
    await rig.stop()
    assert await rig.snapshot.reader.count("eu1", PODS) < OBJECTS - 1, "it had ended before"
    rig.start()
    await check_joined(rig)
    assert await rig.snapshot.names(clusters=["us1"]) == ["behind", "first"]
