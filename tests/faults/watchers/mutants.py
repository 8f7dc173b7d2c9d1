"""A watcher with one rule taken away, to see that the campaign notices (V6).

    python tests/run.py faults.watchers.mutants NAME --cluster alpha ...

Product code has no switches: what is taken away is patched here, in the process of the watcher.
"""

# The patches name private parts, so that pyright fails when a patch no longer fits the code.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec

import fleetbus_watcher.follow.resource_watcher as watching
from fleetbus.errors import KubeError
from fleetbus.kube.list_watch import listing
from fleetbus_proto import headers
from fleetbus_proto.events import Event, Message, Rank
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import Verb
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.low_water_mark import LowWaterMark, Slot
from fleetbus_watcher.follow.overlap import OverlappingWatches
from fleetbus_watcher.follow.resume import Position
from fleetbus_watcher.main import main
from fleetbus_watcher.publish.checkpoint import HeartbeatAt
from fleetbus_watcher.publish.loss_detector import LossDetector


def checkpoint_before_puback() -> None:
    """W3: the mark moves when an event is handed over, not when it is stored."""
    sent = LowWaterMark.sent

    def move(self: LowWaterMark, resource_version: str) -> Slot:
        slot = sent(self, resource_version)
        self.resource_version = resource_version
        return slot

    LowWaterMark.sent = move


def checkpoint_last_acked() -> None:
    """W4: the mark is the last event that was acknowledged, whatever is missing before it."""

    def settle(self: LowWaterMark, slot: Slot) -> None:
        slot.is_done = True
        self.resource_version = slot.resource_version

    LowWaterMark.settle = settle


def end_on_failed_page() -> None:
    """W8: a list that breaks off behind its first page is called complete."""
    pages = watching.list_pages

    async def until_it_breaks(*arguments: Any, **more: Any) -> AsyncGenerator[listing.ListPage]:
        count = 0
        try:
            async with aclosing(pages(*arguments, **more)) as page_stream:
                async for page in page_stream:
                    count += 1
                    yield page
        except KubeError:
            if not count:
                raise

    watching.list_pages = until_it_breaks


def end_before_objects() -> None:
    """W7: the end of an epoch does not wait for the objects to be stored."""

    async def at_once(self: EpochState) -> None:
        del self

    EpochState.wait_listed = at_once


def id_without_rank() -> None:
    """B3: an object that is listed twice has the same id, so the second list stores nothing."""
    change_id = headers.message_id

    def without(message: Message, key: bytes) -> str:
        if isinstance(message, Event) and message.verb is Verb.LISTED:
            message = msgspec.structs.replace(message, epoch=Rank("0", 0))
        return change_id(message, key)

    headers.message_id = without


def no_loss_detection() -> None:
    """W9, W10: nobody looks whether the bus still has the heartbeats that checkpoints name."""

    async def verify(self: LossDetector) -> None:
        del self

    async def check(self: LossDetector, at: HeartbeatAt, resource: Resource, scope: str) -> bool:
        del self, at, resource, scope
        return True

    publish = LossDetector.publish

    async def unverified(self: LossDetector, heartbeat: Any) -> HeartbeatAt | None:
        self.restart()  # whatever is there now is said to be ours
        return await publish(self, heartbeat)

    LossDetector.verify, LossDetector.check = verify, check
    LossDetector.publish = unverified


def list_drops_watch() -> None:
    """W24: whoever makes a list stops watching, and goes on nowhere before it."""

    notice = OverlappingWatches.keep

    async def keep(self: OverlappingWatches) -> None:
        await notice(self)  # which of them are lost
        await self.forget()

    list_and_watch = watching.ResourceWatcher._list_and_watch

    async def alone(
        self: watching.ResourceWatcher, position: Position | None
    ) -> watching.Restart | None:
        del position
        return await list_and_watch(self, None)

    OverlappingWatches.keep = keep
    watching.ResourceWatcher._list_and_watch = alone


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    "checkpoint-before-puback": checkpoint_before_puback,
    "checkpoint-last-acked": checkpoint_last_acked,
    "end-on-failed-page": end_on_failed_page,
    "end-before-objects": end_before_objects,
    "id-without-rank": id_without_rank,
    "no-loss-detection": no_loss_detection,
    "list-drops-watch": list_drops_watch,
}

if __name__ == "__main__":
    MUTATIONS[sys.argv[1]]()
    main(sys.argv[2:])
