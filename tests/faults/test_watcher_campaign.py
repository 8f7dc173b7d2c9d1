"""The campaign takes a fleet for settled only when the stream is right, too."""

from __future__ import annotations

from faults.rig.recorder import StreamReader
from faults.watchers.campaign import StreamState
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_stream
from fleetbus_proto import codec
from fleetbus_proto.subjects import event_subject
from support.wire.samples import event


async def publish(bus: Bus, version: str, name: str = "web") -> None:
    change = event(resource_version=version, name=name)
    subject = event_subject(
        change.cluster,
        change.group,
        change.resource,
        change.namespace,
        change.name,
        change.verb,
    )
    await bus.request(subject, codec.encode(change))


async def test_i1_nothing_has_settled_before_the_stream_tells_all_that_the_clusters_hold(
    nats_url: str,
):
    final = {"eu1": {"apps/deployments": {"prod/web": [event().uid, "4720"]}}}
    async with connected(nats_url, name="test") as bus:
        state = StreamState(StreamReader(bus), believes_epochs=True)
        assert not await state.agrees(final)  # there is no stream yet
        await ensure_stream(bus)
        assert not await state.agrees(final)
        await publish(bus, "4719")
        assert not await state.agrees(final)
        await publish(bus, "4720")
        assert await state.agrees(final)
        await publish(bus, "4721", "another")
        assert not await state.agrees(final)
