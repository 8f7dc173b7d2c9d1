"""Workers with one rule taken away, to see that the campaign notices (V6).

Product code has no switches: what is taken away is patched here, in the process of the worker.
"""

# The patches name private parts, so that pyright fails when a patch no longer fits the code.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, Final

import nats.errors

from fleetbus.bus.buffer import Buffered, Delivery
from fleetbus.bus.consume import Consumer
from fleetbus.bus.reader_groups import read_groups
from fleetbus.errors import BusError
from fleetbus.intake.full_enqueue import FullEnqueue
from fleetbus.worker.backlog import Backlog
from fleetbus.worker.hosted import Hosted
from fleetbus.worker.initial_sync import InitialSync
from fleetbus.worker.reader import Reader
from fleetbus.workqueue import scripts
from fleetbus.workqueue.heartbeat import Heartbeat
from fleetbus.workqueue.queue import Lease
from fleetbus_proto.events import Event

_SOON: Final = 0.2
_SLOW_STORE: Final = 0.1
"""So long a write to the store may take; else a worker would seldom be quicker."""


def _edit(old: str, new: str, *, only: Sequence[str] = ()) -> None:
    """Change the text of all Lua scripts, or of some.

    Raises:
        LookupError: the text is not there any more, so the mutation would be none.
    """
    load = scripts.load

    @cache
    def edited(name: str) -> scripts.Script:
        script = load(name)
        if only and name not in only:
            return script
        if old not in script.text:
            raise LookupError(f"{old!r} is not in {name}.lua")
        text = script.text.replace(old, new)
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return scripts.Script(text, digest)

    scripts.load = edited


def no_fence_check() -> None:
    """Q4: whoever names a key may extend and end its lease."""
    _edit("string.sub(value, 1, #fence + 1) == fence .. ' '", "true")


def lease_never_extended() -> None:
    """Q5: a lease is a time limit that nobody renews."""

    def confirm(self: Heartbeat, leases: list[Lease]) -> None:
        for lease in leases:
            if watched := self._watched.get(id(lease)):
                watched.confirmed_until = time.monotonic() + 3600

    Heartbeat._extend = confirm


def ack_before_enqueue() -> None:
    """P9: a batch is acknowledged as soon as it has come."""
    inner = Consumer._handle_until_done

    async def early(self: Consumer, batch: Sequence[Buffered]) -> AbstractSet[int]:
        for buffered in batch:
            await self._publish(buffered.reply, b"")
        with contextlib.suppress(nats.errors.Error):  # it stands still
            await self._nats.flush()  # the server has it
        return await inner(self, batch)

    Consumer._handle_until_done = early


def enqueue_before_apply() -> None:
    """P9: workers are woken before the snapshot has what they are woken for."""
    inner = Reader._give

    async def reversed_(self: Reader, parts: dict[Hosted, list[Delivery]]) -> None:
        for hosted, deliveries in parts.items():
            events = [d.message for d in deliveries if isinstance(d.message, Event)]
            await hosted._intake.take(events)
        await asyncio.sleep(_SLOW_STORE)
        await inner(self, parts)

    Reader._give = reversed_


def done_drops_dirty() -> None:
    """Q1: what was added while a key was processed is taken for done."""
    old, new = "make_ready(item, parse_dirty(dirty[i]))", "call('HDEL', DIRTY, item)"
    _edit(old, new, only=("add", "done"))


def heartbeat_on_the_loop() -> None:
    """Q5: whoever blocks the event loop stops the heartbeat, too."""
    tick: Final = 1 / 15
    turning: dict[Heartbeat, asyncio.Task[None]] = {}

    async def turn(self: Heartbeat) -> None:
        while not self._stopped.is_set():
            await asyncio.sleep(self._lease * tick)
            began = time.monotonic()
            if began >= self._next_beat:
                self._beat()
            self._report_unconfirmed(began)
            self._report_stuck()

    def start(self: Heartbeat) -> None:
        self._loop = asyncio.get_running_loop()
        turning[self] = self._loop.create_task(turn(self), name="heartbeat")

    async def aclose(self: Heartbeat) -> None:
        self._stopped.set()
        task = turning.pop(self)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        self._client.close()

    Heartbeat.start = start
    Heartbeat.aclose = aclose


WORKER_MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    "no-fence-check": no_fence_check,
    "lease-never-extended": lease_never_extended,
    "ack-before-enqueue": ack_before_enqueue,
    "enqueue-before-apply": enqueue_before_apply,
    "done-drops-dirty": done_drops_dirty,
    "heartbeat-on-the-loop": heartbeat_on_the_loop,
}


# --- rolling updates ------------------------------------------------------------------------------


def no_full_enqueue() -> None:
    """P12: a new durable is taken for one that has had all that is known."""
    inner = InitialSync._enqueue_all

    async def pretended(self: InitialSync, place: Any) -> None:
        run = FullEnqueue.run
        FullEnqueue.run = _nothing
        try:
            await inner(self, place)
        finally:
            FullEnqueue.run = run

    InitialSync._enqueue_all = pretended


async def _nothing(self: FullEnqueue, **_: Any) -> None: ...


def reads_for_another_group() -> None:
    """B12: a process also acknowledges what newer groups with its controllers are to read.

    If it read for older ones, too, each process would have most events from some durable.
    """
    inner = Reader.run

    async def durables(self: Reader) -> set[str]:
        binding, start = self._binding, self._durable.decided.start
        return {
            stored.decided.durable
            for stored in await read_groups(binding._bus)
            if stored.is_complete and stored.decided.is_created and not stored.decided.gone_at
            if stored.decided.start > start > 0
            if not stored.group.controllers.keys().isdisjoint(binding._group.controllers)
        }

    async def run(self: Reader) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner(self))
            reading: set[str] = set()
            while True:
                await asyncio.sleep(_SOON)
                with contextlib.suppress(BusError):
                    for durable in await durables(self) - reading - {self._durable.name}:
                        reading.add(durable)
                        group.create_task(self._make_consumer(durable).run())

    Reader.run = run


def late_is_acknowledged() -> None:
    """P9: a message is acknowledged before controllers that are late have enqueued for it."""
    inner = Backlog.note_late

    def forgotten(self: Backlog, task: asyncio.Task[None], part: Sequence[Delivery]) -> None:
        inner(self, task, part)
        for delivery in part:
            delivery.unfinished.clear()

    Backlog.note_late = forgotten


def skips_without_a_note() -> None:
    """P12: a controller that is too far behind skips events for good."""

    async def skip(self: Hosted, number: int) -> None:
        del self, number

    Hosted.skip = skip


ROLLOUT_MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    "no-full-enqueue": no_full_enqueue,
    "reads-for-another-group": reads_for_another_group,
    "late-is-acknowledged": late_is_acknowledged,
    "skips-without-a-note": skips_without_a_note,
}
