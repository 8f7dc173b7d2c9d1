"""Which durable a reader group has, where it begins, and when it goes (rules B12, P12, S4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

import msgspec
import pytest

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info, delete_consumer
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import (
    Registration,
    durables_of,
    mark_removed,
    read_groups,
    read_registration,
    register,
    registered_controllers,
)
from fleetbus_proto.keys import kv_reader
from fleetbus_proto.subjects import EVENTS_ALL, STREAM
from fleetbus_reconciler.projector.reader_groups import ReaderGroups
from support.eventually import eventually
from support.rigs.reader_groups import (
    DEPLOYMENTS,
    PODS,
    created,
    filters_of,
    group_of,
    open_bus,
    pending,
    publish,
    read_all,
    reading,
    serve,
    served,
)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.intake.binding.CHECK_EVERY", timedelta(milliseconds=50))
    monkeypatch.setattr("fleetbus.intake.binding.PAUSE", timedelta(milliseconds=20))
    monkeypatch.setattr("fleetbus.bus.durables.CHECK_EVERY", timedelta(milliseconds=5))


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with open_bus(nats_url) as made:
        yield made


# --- the durable of a group -----------------------------------------------------------------------


async def test_b12_a_group_gets_one_durable_with_the_filters_of_all_its_controllers(
    bus: Bus,
) -> None:
    group = group_of(copier=PODS, scaler=DEPLOYMENTS, other=PODS)
    found = await served(bus, group)
    assert await registered_controllers(bus) == ["copier", "other", "scaler"]
    assert found.durable == "copier-1"
    assert await filters_of(bus, "copier-1") == DEPLOYMENTS + PODS
    # Registered again as after a restart: nothing changes.
    assert await served(bus, group) == found
    for name in group.controllers:
        assert await durables_of(bus, name) == ["copier-1"]


async def test_b12_a_group_with_a_controller_of_everything_needs_no_other_filter(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS, all=[EVENTS_ALL]))
    assert await filters_of(bus, "all-1") == [EVENTS_ALL]


async def test_b12_the_groups_of_two_releases_have_a_durable_each_until_one_is_left(
    bus: Bus,
) -> None:
    old, new = group_of(copier=PODS), group_of(copier=PODS, scaler=DEPLOYMENTS)
    await served(bus, old, synced=True)
    async with reading(bus, "copier-1"):
        found = await served(bus, new)
        assert found.durable == "copier-2"
        await serve(bus)
        assert await filters_of(bus, "copier-1") == PODS, "the other has not caught up"
        await served(bus, new, synced=True)
        await serve(bus)
        assert await filters_of(bus, "copier-1") == PODS, "it is read"
    await serve(bus)
    assert await filters_of(bus, "copier-1") is None
    assert await filters_of(bus, "copier-2") == DEPLOYMENTS + PODS


async def test_b12_after_a_rollback_the_durable_of_the_new_release_goes(bus: Bus) -> None:
    old, new = group_of(copier=PODS), group_of(copier=PODS, scaler=DEPLOYMENTS)
    await served(bus, old, synced=True)
    async with reading(bus, "copier-1"):
        await served(bus, new, synced=True)
        await serve(bus)
        assert await filters_of(bus, "copier-2"), "nobody else reads for the scaler"
        assert await mark_removed(bus, "scaler")
        await serve(bus)
        assert await filters_of(bus, "copier-2") is None
        assert await filters_of(bus, "copier-1") == PODS


async def test_b12_a_durable_stays_as_long_as_one_of_its_controllers_is_read_nowhere_else(
    bus: Bus,
) -> None:
    await served(bus, group_of(copier=PODS, scaler=DEPLOYMENTS), synced=True)
    await served(bus, group_of(copier=PODS), synced=True)
    async with reading(bus, "copier-2"):
        await serve(bus)
        assert await filters_of(bus, "copier-1") is not None
        await served(bus, group_of(scaler=DEPLOYMENTS), synced=True)
        await serve(bus)
        assert await filters_of(bus, "copier-1") is None


async def test_b12_of_two_durables_that_nobody_reads_one_stays(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS), synced=True)
    await served(bus, group_of("other", copier=PODS), synced=True)
    for _ in range(3):
        await serve(bus)
    assert len(await durables_of(bus, "copier")) == 1


@pytest.mark.slow
async def test_b12_a_durable_stays_while_a_process_is_busy_with_what_it_has(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS), synced=True)
    busy = await served(bus, group_of("other", copier=PODS))  # it has not caught up yet
    await publish(bus, "a", "b", "c")
    groups = ReaderGroups(bus, KeyValue(bus), quiet=timedelta(milliseconds=300))
    for reply in await pull(bus, busy.durable, 3):
        await bus.publish(reply, b"+ACK")
        await asyncio.sleep(0.2)  # at work, without a pull
        await groups.serve()
    assert busy.durable in await durables_of(bus, "copier")

    async def is_one_left() -> bool:
        await groups.serve()
        return len(await durables_of(bus, "copier")) == 1

    await eventually(is_one_left)


async def pull(bus: Bus, durable: str, number: int) -> list[str]:
    """Where so many messages are acknowledged; they are not, and no further pull waits."""
    inbox = bus.nc.new_inbox()
    messages = await bus.nc.subscribe(inbox)
    body = msgspec.json.encode({"batch": number, "no_wait": True})
    await bus.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{durable}", body, reply=inbox)
    replies = [(await messages.next_msg(5)).reply for _ in range(number)]
    await messages.unsubscribe()
    return replies


async def test_b12_a_name_rests_before_another_group_gets_it(
    bus: Bus,
) -> None:
    for number in range(4):
        await served(bus, group_of(str(number), copier=PODS), synced=True)
        await serve(bus)
        assert await durables_of(bus, "copier") == [f"copier-{number + 1}"]
    await served(bus, group_of("4", copier=PODS), synced=True, name_rests=timedelta(0))
    await serve(bus, name_rests=timedelta(0))
    assert await durables_of(bus, "copier") == ["copier-1"]
    assert len(await read_groups(bus)) <= 2


async def test_b12_a_group_whose_durable_has_gone_gets_it_back_where_the_others_are(
    bus: Bus,
) -> None:
    old, new = group_of("old", copier=PODS), group_of("new", copier=PODS)
    await served(bus, old, synced=True)
    await served(bus, new, synced=True)
    [durable] = await gone_of(bus, "copier-1", "copier-2")
    await publish(bus, "a", "b")
    [left] = await durables_of(bus, "copier")
    await read_all(bus, left)
    await publish(bus, "c")
    group = old if durable == "copier-1" else new
    again = await served(bus, group)
    assert again.durable == durable
    assert again.origins["copier"].durable == left
    assert await pending(bus, durable) == 1


async def gone_of(bus: Bus, *names: str) -> list[str]:
    await serve(bus)
    return [name for name in names if await consumer_info(bus, name) is None]


async def test_what_processes_with_other_filters_wrote_last_is_evaluated_again(bus: Bus) -> None:
    old, new = group_of("old", copier=PODS), group_of("new", copier=PODS)
    await served(bus, old, synced=True)
    await served(bus, new, synced=True)
    async with reading(bus, "copier-2"):
        await serve(bus)
    found = await read_registration(KeyValue(bus), new)
    assert found is not None
    assert found.repeats == {"copier": 1}


async def test_b12_after_the_loss_of_the_bucket_the_durable_is_found_not_made_again(
    bus: Bus,
) -> None:
    group = group_of(copier=PODS, scaler=DEPLOYMENTS)
    await served(bus, group_of(copier=PODS))
    await served(bus, group, synced=True)
    before = await created(bus, "copier-2")
    for stored in await read_groups(bus):
        for name in stored.members:
            await KeyValue(bus).delete(kv_reader(name, stored.group.id))
    found = await served(bus, group)
    assert found.durable == "copier-2"
    assert await created(bus, "copier-2") == before


async def test_b12_two_projectors_make_the_same(bus: Bus) -> None:
    groups = [group_of(str(number), copier=PODS) for number in range(3)]
    for group in groups:
        await register(KeyValue(bus), group)

    async def are_served() -> bool:
        await asyncio.gather(serve(bus), serve(bus))
        found = [await read_registration(KeyValue(bus), group) for group in groups]
        return all(one is not None and one.is_created for one in found)

    await eventually(are_served)
    found = {one.decided.durable: one.group.id for one in await read_groups(bus)}
    assert len(found) == 3
    for durable, group in found.items():
        info = await consumer_info(bus, durable)
        assert info is not None
        assert info["config"]["description"] == group


async def test_b12_what_a_killed_projector_had_planned_is_made(bus: Bus) -> None:
    group = group_of(copier=PODS)
    await served(bus, group)
    [stored] = await read_groups(bus)
    await delete_consumer(bus, "copier-1")
    key = kv_reader("copier", group.id)
    planned = msgspec.structs.replace(stored.decided, is_created=False)
    await KeyValue(bus).put(key, msgspec.json.encode(planned))
    await served(bus, group)
    assert await filters_of(bus, "copier-1") == PODS


# --- where it begins ------------------------------------------------------------------------------


async def test_p12_a_durable_begins_where_the_projector_has_applied_everything(bus: Bus) -> None:
    await publish(bus, "a", "b", "c")

    async def one_only(deliveries: Sequence[Delivery]) -> None:
        if deliveries[0].sequence > 1:
            await asyncio.Event().wait()

    async def is_behind() -> bool:
        info = await consumer_info(bus, PROJECTOR)
        return info is not None and info["ack_floor"]["stream_seq"] == 1

    with pytest.MonkeyPatch.context() as batch_of_one:
        batch_of_one.setattr("fleetbus.bus.buffer.BATCH", 1)
        async with reading(bus, PROJECTOR, one_only):
            await eventually(is_behind)
            found = await served(bus, group_of(copier=PODS))
    assert found.origins == {}
    assert await pending(bus, "copier-1") == 2  # b and c: a full enqueue might not find them yet


async def test_p12_a_new_durable_of_an_idle_fleet_has_nothing_to_deliver(bus: Bus) -> None:
    await publish(bus, "a", "b")
    await read_all(bus, PROJECTOR)
    await served(bus, group_of(copier=PODS))
    assert await pending(bus, "copier-1") == 0


async def test_b12_a_group_begins_where_the_one_before_it_was(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS), synced=True)
    await publish(bus, "a", "b")
    await read_all(bus, "copier-1")
    await publish(bus, "c")
    await read_all(bus, PROJECTOR)
    found = await served(bus, group_of(copier=PODS, scaler=DEPLOYMENTS))
    origin = found.origins["copier"]
    assert (origin.durable, origin.floor) == ("copier-1", 2)
    assert origin.created == await created(bus, "copier-1")
    assert "scaler" not in found.origins, "it is new, and enqueues what is known"
    assert await pending(bus, "copier-2") == 1


async def test_b12_a_group_of_controllers_of_two_begins_where_the_slower_one_was(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS), synced=True)
    await served(bus, group_of(scaler=PODS), synced=True)
    await publish(bus, "a", "b", "c")
    await read_all(bus, "scaler-1")
    found = await served(bus, group_of(copier=PODS, scaler=PODS))
    assert {name: one.durable for name, one in found.origins.items()} == {
        "copier": "copier-1",
        "scaler": "scaler-1",
    }
    assert await pending(bus, "copier-2") == 3


async def test_b12_a_durable_without_messages_of_its_own_does_not_hold_back_the_next(
    bus: Bus,
) -> None:
    """Its ack floor stands still while others publish."""
    await served(bus, group_of(scaler=DEPLOYMENTS), synced=True)
    await publish(bus, *"abcdefgh")
    await read_all(bus, PROJECTOR)
    await served(bus, group_of(copier=PODS, scaler=DEPLOYMENTS))
    assert await pending(bus, "copier-1") == 0


async def test_p12_one_that_watches_more_than_before_enqueues_what_is_known(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS), synced=True)
    wider = await served(bus, group_of(copier=DEPLOYMENTS + PODS), synced=True)
    assert wider.origins == {}
    narrower = await served(bus, group_of("again", copier=PODS))
    assert narrower.origins["copier"].durable in {"copier-1", "copier-2"}


async def test_p12_one_that_has_not_caught_up_vouches_for_nothing(bus: Bus) -> None:
    await served(bus, group_of(copier=PODS))
    found = await served(bus, group_of(copier=PODS, scaler=DEPLOYMENTS))
    assert found.origins == {}


# --- rights ---------------------------------------------------------------------------------------


async def test_s4_a_group_counts_only_once_all_of_its_controllers_are_registered(bus: Bus) -> None:
    """Whoever has the rights of one controller cannot end the durable of another."""
    kv = KeyValue(bus)
    await served(bus, group_of(victim=PODS), synced=True)
    forged = group_of(attacker=PODS, victim=PODS)
    found = Registration(dict(forged.controllers), synced=await created(bus, "victim-1"))
    await kv.put(kv_reader("attacker", forged.id), msgspec.json.encode(found))
    await serve(bus)
    await serve(bus)
    assert await consumer_info(bus, "attacker-1") is None
    assert await filters_of(bus, "victim-1") == PODS


async def test_an_unreadable_registration_is_as_good_as_none_and_is_written_again(
    bus: Bus,
) -> None:
    group = group_of(copier=PODS)
    await KeyValue(bus).put(kv_reader("copier", group.id), b"\xff")
    await serve(bus)
    assert await read_registration(KeyValue(bus), group) is None
    assert (await served(bus, group)).durable == "copier-1"
