"""The part of a batch that one controller has not enqueued yet (rules P8, P9, P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.bus.buffer import Delivery
from fleetbus.worker.backlog import Backlog
from support.eventually import eventually


class Enqueued:
    """Takes events once it may; `skipped` counts those that go unread."""

    def __init__(self, limit: int = 2) -> None:
        self.may_take = asyncio.Event()
        self.sequences: list[int] = []
        self.failures = 0
        self.skipped = 0
        self.is_store_away = False
        self.backlog = Backlog("slow", take=self.take, skip=self.skip, limit=limit)

    async def take(self, part: Sequence[Delivery], _standing: Any, _records: Any) -> None:
        await self.may_take.wait()
        if self.failures:
            self.failures -= 1
            raise OSError("as planned")
        self.sequences += [delivery.sequence for delivery in part]

    async def skip(self, number: int) -> None:
        if self.is_store_away:
            raise OSError("as planned")
        self.skipped += number

    def is_late_with(self, *part: Delivery) -> asyncio.Task[None]:
        task = self.backlog.start(part)
        self.backlog.note_late(task, part)
        return task


def delivery(sequence: int, cluster: str = "eu1") -> Delivery:
    return Delivery(None, sequence, f"fleetbus.events.{cluster}.core.pods.prod.a.added", {})


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.backlog.GRACE", timedelta(milliseconds=50))


async def test_only_clusters_that_are_late_line_up() -> None:
    slow = Enqueued()
    slow.is_late_with(delivery(1))
    second, other = delivery(2), delivery(3, "us1")
    assert await slow.backlog.line_up([second, other]) == [other]
    assert (len(second.unfinished), other.unfinished) == (1, [])
    slow.may_take.set()
    await asyncio.gather(*second.unfinished)
    assert slow.sequences == [1, 2]
    assert await slow.backlog.line_up([delivery(4)]), "it has caught up"


async def test_a_part_that_is_cut_off_leaves_the_one_before_it_in_order() -> None:
    slow, problems = Enqueued(), list[Any]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    slow.is_late_with(delivery(1))
    second = delivery(2)
    await slow.backlog.line_up([second])
    (task,) = second.unfinished
    task.cancel()
    await asyncio.wait([task])
    slow.may_take.set()
    await eventually(lambda: slow.sequences == [1])
    await asyncio.sleep(0)  # its callbacks come in the next turn
    assert problems == []
    assert await slow.backlog.line_up([later := delivery(3)]) == [later]


async def test_b7_what_is_delivered_again_meanwhile_keeps_its_place() -> None:
    slow = Enqueued()
    task = slow.is_late_with(delivery(1), delivery(1))  # twice in one batch
    again = delivery(1)
    assert await slow.backlog.line_up([again]) == []
    assert again.unfinished == [task]
    slow.may_take.set()
    await task
    assert slow.sequences == [1, 1]
    assert await slow.backlog.line_up([later := delivery(2)]) == [later]
    assert slow.skipped == 0


async def test_p12_what_is_too_far_behind_is_skipped() -> None:
    slow = Enqueued()
    slow.is_late_with(delivery(1))
    assert await slow.backlog.line_up([delivery(2)]) == []
    assert await slow.backlog.line_up([delivery(3), delivery(4, "us1")]) != []
    assert slow.skipped == 1
    slow.may_take.set()
    await eventually(lambda: slow.sequences == [1, 2])


async def test_p12_many_clusters_have_no_more_room_than_one() -> None:
    """Else a map that is slow everywhere leaves no room for the messages of others."""
    slow = Enqueued()
    slow.is_late_with(delivery(1), delivery(2, "us1"))
    part = [delivery(3, "jp1")]
    assert await slow.backlog.line_up(part) == part, "it may not be late with this cluster"
    task = slow.backlog.start(part)
    await slow.backlog.let_go(task, part)
    assert slow.skipped == 1
    assert part[0].unfinished == []
    slow.may_take.set()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert await slow.backlog.line_up([again := delivery(4, "jp1")]) == [again]


async def test_p12_what_cannot_be_recorded_as_skipped_comes_again() -> None:
    slow = Enqueued()
    slow.is_late_with(delivery(1), delivery(2, "us1"))
    slow.is_store_away = True
    part = [delivery(3, "jp1")]
    for _ in range(2):
        task = slow.backlog.start(part)
        with pytest.raises(OSError, match="as planned"):
            await slow.backlog.let_go(task, part)
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled(), "it would go on beside the next attempt"
    slow.is_store_away = False
    await slow.backlog.let_go(task := slow.backlog.start(part), part)
    assert slow.skipped == 1
    slow.may_take.set()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_is_late_for_a_moment_is_not_late() -> None:
    slow = Enqueued()
    slow.is_late_with(delivery(1), delivery(2, "us1"))
    task = slow.backlog.start(part := [delivery(3, "jp1")])
    letting_go = asyncio.create_task(slow.backlog.let_go(task, part))
    slow.may_take.set()
    await letting_go
    assert (sorted(slow.sequences), slow.skipped) == ([1, 2, 3], 0)


async def test_p9_an_enqueue_that_fails_is_tried_again() -> None:
    slow = Enqueued()
    slow.failures = 2
    slow.may_take.set()
    await slow.backlog.start([delivery(1)])
    assert slow.sequences == [1]
