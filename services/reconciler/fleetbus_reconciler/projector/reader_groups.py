"""Creates and deletes the durables of reader groups (rules B12, P12).

The durable of a new group begins where its controllers are read to: at the lowest ack floor of the
durables that they had, or where the projector is for a controller that had none. What is planned is
written before it is made, so that two projectors, or one that was killed in between, make the same.

A durable goes once each of its controllers is read through another group that has caught up, or was
removed, and nobody has pulled from it or acknowledged for a while: a process that is busy with what
it has, or gets too little CPU, does not pull for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info, delete_consumer, ensure_consumer, is_read
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.reader_groups import (
    Origin,
    Selection,
    StoredGroup,
    decide,
    forget_group,
    read_groups,
)
from fleetbus.errors import BusError
from fleetbus.process.clock import now_ms
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.offsets.stream_end import StreamEnd

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus.bus.key_value import KeyValue

log = structlog.get_logger()

_NAME_RESTS: Final = timedelta(minutes=10)


class _Reader(NamedTuple):
    """A durable that a controller is read through."""

    origin: Origin
    selection: Selection
    end: int
    """Up to where it was handled: its ack floor, or the end of the stream if nothing is left."""


class _Counters(NamedTuple):
    """The part of a durable's description that changes when somebody reads it."""

    created: str
    delivered: int
    floor: int
    unacknowledged: int


class ReaderGroups:
    """Serves the registrations of controllers.

    Args:
        bus: a connection.
        kv: the bucket.
        quiet: time without a delivery or an acknowledgement, as this projector has seen it, after
            which nobody reads a durable.
        name_rests: the time for which a durable that has gone keeps its name: a process may have
            slept for so long that still acknowledges to it.
    """

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        *,
        quiet: timedelta,
        name_rests: timedelta = _NAME_RESTS,
    ) -> None:
        self._bus = bus
        self._quiet = quiet.total_seconds()
        self._active: dict[str, tuple[_Counters, float]] = {}
        """The counters of durables that may go, and since when they are the same."""
        self._name_rests_ms = name_rests.total_seconds() * 1000
        self._kv = kv
        self._log_once = LogOnce()

    async def serve(self) -> None:
        """Create what is missing, and delete what nobody needs any more.

        Raises:
            BusError: nothing is known; to be repeated.
        """
        groups = await self._complete()
        for name in list(groups):  # one after the other: no two may plan the same name
            if await self._try(self._plan, groups[name], list(groups.values())):
                groups |= await self._complete()
                await self._try(self._create, groups[name])
        complete = sorted(groups.values(), key=_written)
        for stored in complete:  # of two that nobody reads the newer one stays
            # One at a time: two that cover each other may not both go.
            if await self._try(self._retire, stored, complete):
                groups = await self._complete()
                break
        for name in list(groups):
            if await self._try(self._follow_up, groups[name], list(groups.values())):
                groups = await self._complete()

    async def _complete(self) -> dict[str, StoredGroup]:
        return {one.group.id: one for one in await read_groups(self._bus) if one.is_complete}

    async def _try(self, step: Any, stored: StoredGroup, *others: Any) -> bool:
        try:
            return bool(await step(stored, *others))
        except BusError as e:
            # The others are served all the same; the next turn tries again.
            names = sorted(stored.members)
            if self._log_once.should_log(str(e), key=str(names)):
                log.warning("registration_failed", controllers=names, error=str(e))
            return False

    # --- a durable for each group ---------------------------------------------------------------

    async def _create(self, stored: StoredGroup) -> None:
        """Make what is planned."""
        plan, group = stored.decided, stored.group
        if plan.start and not plan.is_created and not plan.gone_at:
            await ensure_consumer(
                self._bus, plan.durable, group.filters, start=plan.start, description=group.id
            )
            await decide(self._kv, stored, is_created=True)

    async def _plan(self, stored: StoredGroup, groups: Sequence[StoredGroup]) -> bool:
        """Decide on name and start of a durable; returns whether it is to be made now."""
        plan = stored.decided
        if plan.gone_at or stored.is_removed:
            return False
        info = await consumer_info(self._bus, plan.durable) if plan.durable else None
        if info is not None and info["config"].get("description") == stored.group.id:
            return not plan.is_created and await decide(self._kv, stored, is_created=True)
        if info is None and plan.start and not plan.is_created:
            return True  # planned by another projector, or by one that was killed
        # New; or its durable was lost with the stream, or by somebody's hand.
        name, is_there = await self._name(stored, groups)
        if is_there:  # the bucket was lost, and with it the registration
            return await decide(self._kv, stored, durable=name, is_created=True)
        stream = await stream_info(self._bus)
        others = [one for one in groups if one is not stored]
        starts: list[int] = []
        origins: dict[str, Origin] = {}
        for controller, selection in stored.group.controllers.items():
            readers = await self._readers(controller, others, stream)
            wanted = set(selection.filters)
            fitting = [one for one in readers if wanted <= set(one.selection.filters)]
            if fitting:
                reader = max(fitting, key=lambda one: one.end)
                origins[controller] = reader.origin
                starts.append(reader.end)
        if len(origins) < len(stored.group.controllers):
            starts.append(await self._applied())
        plan = {"durable": name, "start": min(starts) + 1, "origins": origins}
        return await decide(self._kv, stored, **plan, is_created=False, repeated_at=0)

    async def _name(self, stored: StoredGroup, groups: Sequence[StoredGroup]) -> tuple[str, bool]:
        """A free name, and whether it has the durable of this very group already."""
        taken = {one.decided.durable for one in groups if one is not stored}
        free = [name for name in stored.group.durables if name not in taken]
        free.sort(key=lambda name: name != stored.decided.durable)
        infos = {name: await consumer_info(self._bus, name) for name in free}
        for name, info in infos.items():
            if info is not None and info["config"].get("description") == stored.group.id:
                return name, True
        for name, info in infos.items():
            if info is None:
                return name, False
        for name in free:  # of a group whose registration was lost
            if not await is_read(self._bus, [name]):
                await delete_consumer(self._bus, name)
                return name, False
        users = [one for one in groups if one.decided.durable in stored.group.durables]
        own = [user for user in users if user.decided.gone_at]
        if own:
            oldest = min(own, key=lambda user: user.decided.gone_at)
            await self._delete_of(oldest)
            await forget_group(self._kv, oldest)
            return oldest.decided.durable, False
        for user in users:  # as of a release that crashed whenever it was started
            if user is not stored and await self._is_of_no_use(user):
                await delete_consumer(self._bus, user.decided.durable)
                await forget_group(self._kv, user)
                return user.decided.durable, False
        raise BusError(f"all durables of {', '.join(stored.group.controllers)} are in use")

    async def _is_of_no_use(self, stored: StoredGroup) -> bool:
        """Whether nobody reads a group's durable, and none of its controllers has caught up."""
        plan = stored.decided
        if plan.gone_at or any(one.registration.synced for one in stored.members.values()):
            return False
        return not await is_read(self._bus, [plan.durable])

    async def _readers(
        self, controller: str, groups: Sequence[StoredGroup], stream: Mapping[str, Any] | None
    ) -> list[_Reader]:
        """The durables that a controller has caught up on."""
        found: list[_Reader] = []
        for other in groups:
            member = other.members.get(controller)
            if member is None or not member.registration.synced or member.registration.is_removed:
                continue
            durable, selection = other.decided.durable, other.group.controllers[controller]
            reader = await self._reader(durable, selection, stream)
            if reader is not None and reader.origin.created == member.registration.synced:
                found.append(reader)
        return found

    async def _reader(
        self, durable: str, selection: Selection, stream: Mapping[str, Any] | None
    ) -> _Reader | None:
        info = await consumer_info(self._bus, durable) if durable else None
        if info is None or stream is None:
            return None
        floor = int(info["ack_floor"]["stream_seq"])
        end = StreamEnd().low_water(stream, info)
        return _Reader(Origin(durable, info["created"], floor), selection, end)

    async def _applied(self) -> int:
        """The sequence up to which the projector has applied everything (rule P12).

        A full enqueue finds what is before it. A durable that began at the end of the stream would
        miss what the projector has not applied yet.
        """
        info = await consumer_info(self._bus, PROJECTOR)
        return int(info["ack_floor"]["stream_seq"]) if info is not None else 0

    # --- durables that nobody needs -------------------------------------------------------------

    async def _retire(self, stored: StoredGroup, groups: Sequence[StoredGroup]) -> bool:
        """Decide that a durable goes; returns whether it was decided."""
        plan = stored.decided
        if plan.gone_at:
            return False
        others = _others(stored, groups)
        for controller, member in stored.members.items():
            if not member.registration.is_removed and not await self._is_read(controller, others):
                return False
        if plan.durable and not await self._is_left(stored):
            return False
        await decide(self._kv, stored, gone_at=now_ms())
        return True  # or somebody has registered again

    async def _is_left(self, stored: StoredGroup) -> bool:
        """Whether nobody reads the durable of a group any more.

        Of a group that was removed it was found out before, when a person asked for that.
        """
        durable = stored.decided.durable
        is_quiet = stored.is_removed or await self._is_quiet(durable)
        return is_quiet and not await is_read(self._bus, [durable])

    async def _is_quiet(self, durable: str) -> bool:
        info = await consumer_info(self._bus, durable)
        if info is None:
            return True
        counters = _Counters(
            info["created"],
            info["delivered"]["consumer_seq"],
            info["ack_floor"]["consumer_seq"],
            info["num_ack_pending"],
        )
        now = time.monotonic()
        before, since = self._active.get(durable, (None, now))
        since = since if counters == before else now
        self._active[durable] = counters, since
        return now - since >= self._quiet

    async def _follow_up(self, stored: StoredGroup, groups: Sequence[StoredGroup]) -> bool:
        """Do what the end of a group asks for; returns whether something was written.

        Each step is repeated until the last one is written: a projector may be killed in between.
        """
        plan, others = stored.decided, _others(stored, groups)
        if plan.gone_at:
            if plan.is_created and plan.durable:
                await delete_consumer(self._bus, plan.durable)
                log.info("durable_deleted", durable=plan.durable, group=stored.group.id)
                return await self._repeat(stored, others, is_created=False)
            if now_ms() - plan.gone_at > self._name_rests_ms:
                # Again: a projector that slept may have made it meanwhile.
                await self._delete_of(stored)
                await forget_group(self._kv, stored)
            return False
        if not plan.is_created or not any(_differing(stored, other) for other in others):
            return False
        # It stays, for a controller that is read nowhere else.
        info = await consumer_info(self._bus, plan.durable)
        delivered = int(info["delivered"]["consumer_seq"]) if info is not None else 0
        if delivered == plan.repeated_at or await is_read(self._bus, [plan.durable]):
            return False
        return await self._repeat(stored, others, repeated_at=delivered)

    async def _delete_of(self, stored: StoredGroup) -> None:
        durable = stored.decided.durable
        info = await consumer_info(self._bus, durable) if durable else None
        if info is not None and info["config"].get("description") == stored.group.id:
            await delete_consumer(self._bus, durable)

    async def _is_read(self, controller: str, groups: Sequence[StoredGroup]) -> bool:
        """Whether a controller is read through one of these groups."""
        for other in groups:
            member = other.members.get(controller)
            if member is None or not member.registration.synced or member.registration.is_removed:
                continue
            info = await consumer_info(self._bus, other.decided.durable)
            if info is not None and info["created"] == member.registration.synced:
                return True
        return False

    async def _repeat(
        self, stored: StoredGroup, others: Sequence[StoredGroup], **done: object
    ) -> bool:
        """Let the others evaluate again what a group with other filters has written last."""
        for other in others:
            if differing := _differing(stored, other):
                counts = other.decided.repeats
                repeats = counts | {name: counts.get(name, 0) + 1 for name in differing}
                if not await decide(self._kv, other, repeats=repeats):
                    return False  # somebody has written; the next turn repeats all of it
        return await decide(self._kv, stored, **done)


def _others(stored: StoredGroup, groups: Sequence[StoredGroup]) -> list[StoredGroup]:
    return [
        other for other in groups if other.group.id != stored.group.id and not other.decided.gone_at
    ]


def _differing(stored: StoredGroup, other: StoredGroup) -> list[str]:
    """The controllers of both groups that have other filters in each."""
    ours, theirs = stored.group.controllers, other.group.controllers
    return [name for name in ours if name in theirs and ours[name] != theirs[name]]


def _written(stored: StoredGroup) -> int:
    return stored.members[stored.group.first].revision
