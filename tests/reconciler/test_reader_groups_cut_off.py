"""Groups end whole, whatever dies or is forged in between (rules B12, P12, S4)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import consumer_info, delete_consumer, ensure_consumer
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import ReaderGroup, Registration, read_groups, read_registration
from fleetbus.errors import BusError
from fleetbus_proto.keys import kv_reader
from fleetbus_reconciler.projector.reader_groups import ReaderGroups
from support.rigs.reader_groups import (
    DEPLOYMENTS,
    PODS,
    filters_of,
    group_of,
    open_bus,
    publish,
    read_all,
    reading,
    serve,
    served,
)

OLD, NEW = group_of("old", copier=PODS), group_of("new", copier=PODS)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.bus.durables.CHECK_EVERY", timedelta(milliseconds=5))


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with open_bus(nats_url) as made:
        yield made


class KilledAt(KeyValue):
    """The bucket of a projector that is killed after so many writes."""

    def __init__(self, bus: Bus, writes: int) -> None:
        super().__init__(bus)
        self._left = writes

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        if not self._left:
            raise BusError("killed")
        self._left -= 1
        return await super().update(key, value, revision)


async def repeats(bus: Bus, group: ReaderGroup) -> Mapping[str, int]:
    found = await read_registration(KeyValue(bus), group)
    assert found is not None
    return found.repeats


async def test_b12_a_projector_killed_before_the_delete_leaves_no_durable(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(_bus: Bus, durable: str) -> None:
        raise BusError(f"killed before {durable} was deleted")

    await served(bus, OLD, synced=True)
    await served(bus, NEW, synced=True)
    async with reading(bus, "copier-2"):
        with monkeypatch.context() as patch:
            patch.setattr("fleetbus_reconciler.projector.reader_groups.delete_consumer", killed)
            await serve(bus)
        await serve(bus)
        assert await consumer_info(bus, "copier-1") is None
        assert await repeats(bus, NEW) == {"copier": 1}


async def test_p12_a_projector_killed_after_the_delete_still_lets_the_others_evaluate_again(
    bus: Bus,
) -> None:
    await served(bus, OLD, synced=True)
    await served(bus, NEW, synced=True)
    async with reading(bus, "copier-2"):
        await ReaderGroups(bus, KilledAt(bus, 1), quiet=timedelta(0)).serve()
        for _ in range(2):
            await serve(bus)
            assert await repeats(bus, NEW) == {"copier": 1}


async def test_b12_what_a_projector_that_slept_makes_after_the_end_goes_with_the_name(
    bus: Bus,
) -> None:
    await served(bus, OLD, synced=True)
    await served(bus, NEW, synced=True)
    async with reading(bus, "copier-2"):
        await serve(bus)
        await ensure_consumer(bus, "copier-1", PODS, description=OLD.id)
        await serve(bus, name_rests=timedelta(0))
        assert await consumer_info(bus, "copier-1") is None
        assert [stored.group.id for stored in await read_groups(bus)] == [NEW.id]


async def test_p12_what_is_left_of_a_group_with_other_filters_is_evaluated_again(bus: Bus) -> None:
    """Its durable stays for a controller that was removed; nobody reads it any more."""
    old = group_of("old", copier=PODS, gone=DEPLOYMENTS)
    await served(bus, old, synced=True)
    await served(bus, NEW, synced=True)
    async with reading(bus, "copier-2"):
        async with reading(bus, "copier-1"):
            await publish(bus, "a")
            await serve(bus)
            assert await repeats(bus, NEW) == {}
        await read_all(bus, "copier-1")
        for _ in range(3):
            await serve(bus)
            assert await repeats(bus, NEW) == {"copier": 1}
        await publish(bus, "b")
        await read_all(bus, "copier-1")
        await serve(bus)
        assert await repeats(bus, NEW) == {"copier": 2}, "it was started again for a while"


async def test_p12_a_durable_that_was_made_again_counts_from_the_beginning(bus: Bus) -> None:
    old = group_of("old", copier=PODS, gone=DEPLOYMENTS)
    await served(bus, old, synced=True)
    await served(bus, NEW, synced=True)
    async with reading(bus, "copier-2"):
        await publish(bus, "a")
        await read_all(bus, "copier-1")
        await serve(bus)
        await delete_consumer(bus, "copier-1")
        await served(bus, old, synced=True)
        await read_all(bus, "copier-1")  # the same message again
        await serve(bus)
        assert await repeats(bus, NEW) == {"copier": 2}


async def test_b12_releases_that_never_caught_up_do_not_use_up_the_names(bus: Bus) -> None:
    for number in range(4):
        await served(bus, group_of(str(number), copier=PODS))
    assert await served(bus, group_of("that works", copier=PODS), synced=True)


@pytest.mark.parametrize(
    "forged",
    [
        {"start": 10**30},
        {"gone_at": 10**30},
        {"repeats": {"attacker": 10**30}},
        {"start": -5},
        {"start": 2**62},
        {"durable": "", "start": 1},
        {"gone_at": 1, "is_created": True, "durable": ""},
    ],
)
async def test_s4_a_forged_registration_harms_nobody_else(bus: Bus, forged: dict[str, Any]) -> None:
    own = group_of(attacker=PODS)
    fields = {"durable": "attacker-1", **forged}
    registration = msgspec.structs.replace(Registration(dict(own.controllers)), **fields)
    await KeyValue(bus).put(kv_reader("attacker", own.id), msgspec.json.encode(registration))
    await served(bus, group_of(victim=PODS))
    assert await filters_of(bus, "victim-1") == PODS
    for _ in range(2):
        await serve(bus)
    assert len(await read_groups(bus)) <= 2


@pytest.mark.parametrize("subject", [r"\ud800", "", " ", "a..b", "\x00", "$JS.>"])
async def test_s4_a_forged_subject_harms_nobody_else(bus: Bus, subject: str) -> None:
    own = group_of(attacker=["SUBJECT"])
    body = msgspec.json.encode(Registration(dict(own.controllers)))
    await KeyValue(bus).put(
        kv_reader("attacker", own.id), body.replace(b"SUBJECT", subject.encode())
    )
    other = group_of(attacker=[subject.replace("\x00", "?")])
    if subject != r"\ud800":
        await KeyValue(bus).put(
            kv_reader("attacker", other.id),
            msgspec.json.encode(Registration(dict(other.controllers))),
        )
    await served(bus, group_of(victim=PODS))
    assert await filters_of(bus, "victim-1") == PODS
