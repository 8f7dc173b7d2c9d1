"""The projector publishes the states that changes replace, for the history (rule A9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.bus.stream_reads import last_messages
from fleetbus.run.current import ObjectRef
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.prior import decode_prior_state
from fleetbus_proto.subjects import PRIOR_STREAM, prior_subject
from fleetbus_query_api.past.states import PastStates
from support.eventually import eventually
from support.rigs.projector import PODS, ProjectorRig
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from fleetbus_proto.prior import PriorState

EU1 = Source(rank=(100, 1_700_000_000_000))
PRIOR = "fleetbus_reconciler.projector.prior_states"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_INTERVAL", "_CLOCK_INTERVAL", "_SETTLED_AFTER"):
        monkeypatch.setattr(f"{PRIOR}.{name}", timedelta(milliseconds=20))


async def settled(rig: ProjectorRig) -> None:
    """Wait until all that there is counts as not changed for long."""
    keys = SnapshotKeys()
    count: Any = await rig.redis.get(keys.counter(0))

    async def is_settled() -> bool:
        version: Any = await rig.redis.get(keys.settled_version(0))
        return int(version or 0) >= int(count)

    await eventually(is_settled)


async def published(rig: ProjectorRig, name: str) -> PriorState | None:
    subject = prior_subject("eu1", "core", "pods", "prod", name)
    messages = await last_messages(rig.bus, PRIOR_STREAM, [subject])
    return decode_prior_state(messages[0].body) if messages else None


async def test_a9_the_replaced_state_of_a_settled_object_is_on_its_stream(rig: ProjectorRig):
    await rig.started("eu1")
    await rig.publish(EU1.added("web", 200, body=pod("web", 200, "a")))
    await eventually(rig.is_through)
    await settled(rig)
    await rig.publish(EU1.modified("web", 201, body=pod("web", 201, "b")))
    state = await eventually(lambda: published(rig, "web"))
    assert state is not None
    assert (state.resource_version, state.replaced_by) == ("200", "201")
    assert state.object == pod("web", 200, "a")
    await eventually(lambda: _is_empty(rig))


async def _is_empty(rig: ProjectorRig) -> bool:
    return not await rig.redis.exists(SnapshotKeys().prior_states(0))


async def test_a9_a_state_that_left_the_stream_of_events_is_known_all_the_same(rig: ProjectorRig):
    """The event that brought it is never on the stream here, as after a day."""
    await rig.started("eu1")
    await rig.snapshot.apply(EU1.added("web", 200, body=pod("web", 200, "a")))
    await settled(rig)
    at = datetime.now(UTC)
    await rig.publish(EU1.modified("web", 201, body=pod("web", 201, "b")))
    await eventually(lambda: published(rig, "web"))
    states = PastStates(bus=rig.bus, reader=rig.snapshot.reader)
    ref = ObjectRef("eu1", PODS, "prod", "web")
    assert (await states.at([ref], at))[ref].body == pod("web", 200, "a")
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert (await states.at([ref], now))[ref].body == pod("web", 201, "b")
