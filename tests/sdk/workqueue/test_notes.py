"""Notes for the next run, and the trace of what caused a run, for both queues."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.workqueue import NOTE_BYTES, Add, QueuePolicy
from support.stores.workqueue import Rig, named

if TYPE_CHECKING:
    from fleetbus.workqueue import Lease

LEASE = QueuePolicy().lease
A, B = named("a"), named("b")
FIRST = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECOND = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b8-00"


async def run(rig: Rig, add: Add = Add(A)) -> Lease:  # noqa: B008 -- frozen
    """Add and take."""
    await rig.queue.add([add])
    [lease] = await rig.queue.take(1)
    return lease


async def die(rig: Rig) -> Lease:
    """The owner of all leases dies; returns the lease of the next one."""
    await rig.advance(LEASE * 1.1)
    await rig.queue.reap()
    await rig.advance(LEASE / 5)
    assert (await rig.queue.reap()).recovered == 1
    [lease] = await rig.queue.take(1)
    return lease


async def test_q12_the_note_of_a_run_is_there_for_the_next_one(rig: Rig):
    lease = await run(rig)
    assert lease.note == b""
    assert await rig.queue.done([lease], {A: b"wrote \x00 9"}) == []
    assert (await run(rig)).note == b"wrote \x00 9"


async def test_q12_a_done_without_a_note_removes_the_last_one(rig: Rig):
    await rig.queue.done([await run(rig)], {A: b"old"})
    await rig.queue.done([await run(rig)], {B: b"of another"})
    assert await rig.is_empty()
    assert (await run(rig)).note == b""


async def test_q12_each_item_of_a_batch_has_its_own_note(rig: Rig):
    await rig.queue.add([Add(A), Add(B)])
    await rig.queue.done(await rig.queue.take(2), {A: b"1", B: b"2"})
    await rig.queue.add([Add(A), Add(B)])
    assert {lease.request: lease.note for lease in await rig.queue.take(2)} == {A: b"1", B: b"2"}


async def test_q12_a_note_outlives_a_dead_owner_and_a_run_given_back(rig: Rig):
    await rig.queue.done([await run(rig)], {A: b"kept"})
    await run(rig)
    lease = await die(rig)
    assert lease.note == b"kept"
    await rig.queue.give_back([lease])
    [again] = await rig.queue.take(1, token="t")
    assert again.note == b"kept"
    assert [one.note for one in await rig.queue.take(1, token="t")] == [b"kept"]


async def test_q4_q12_a_lost_lease_leaves_no_note(rig: Rig):
    await rig.queue.done([await run(rig)], {A: b"old"})
    stale = await run(rig)
    current = await die(rig)
    assert await rig.queue.done([stale], {A: b"stale"}) == [stale]
    await rig.queue.give_back([current])
    assert [lease.note for lease in await rig.queue.take(1)] == [b"old"]


async def test_q12_a_note_that_is_too_long_is_refused_before_anything_ends(rig: Rig):
    lease = await run(rig)
    with pytest.raises(ValueError, match="16385 bytes, the limit is 16384"):
        await rig.queue.done([lease], {A: b"x" * (NOTE_BYTES + 1)})
    assert await rig.queue.done([lease], {A: b"x" * NOTE_BYTES}) == []
    assert (await run(rig)).note == b"x" * NOTE_BYTES


async def test_the_last_trace_of_an_item_goes_with_its_run_and_no_further(rig: Rig):
    await rig.queue.add([Add(A, trace=FIRST)])
    await rig.queue.add([Add(A, trace=SECOND)])
    lease = await run(rig)
    assert lease.trace == SECOND
    await rig.queue.done([lease])
    assert await rig.is_empty()
    assert (await run(rig)).trace == ""


async def test_a_run_that_comes_back_has_its_trace_unless_a_newer_one_came(rig: Rig):
    lease = await run(rig, Add(A, trigger=b"1/5", trace=FIRST))
    await rig.queue.retry(lease)
    await rig.queue.done([lease])
    await rig.advance(timedelta(seconds=1))
    [lease] = await rig.queue.take(1)
    assert (lease.trace, lease.trigger) == (FIRST, b"1/5")
    lease = await die(rig)
    assert (lease.trace, lease.trigger) == (FIRST, b"1/5")
    await rig.queue.add([Add(A, trace=SECOND)])
    await rig.queue.give_back([lease])
    [lease] = await rig.queue.take(1, token="t")
    assert lease.trace == SECOND
    assert [one.trace for one in await rig.queue.take(1, token="t")] == [SECOND]


@pytest.mark.parametrize("trace", ["no trace", FIRST + "0", FIRST.upper(), "a b", "\n"])
async def test_what_is_no_trace_is_not_carried(rig: Rig, trace: str):
    assert (await run(rig, Add(A, trace=trace))).trace == ""
