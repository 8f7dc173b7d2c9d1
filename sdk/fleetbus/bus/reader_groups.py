"""Reader groups: processes with the same controllers and filters, which share one durable (B12).

A process reads the bus once for all its controllers, and acknowledges an event once all of them
have it. So only processes with the same set of controllers may share a durable: another one would
acknowledge for controllers that it does not have. While an update changes the set, the groups of
the old and of the new one run side by side; both receive every event, and the record of each
controller makes the second one harmless (P8).

Each controller of a group has a key of its own in the bucket, because rights are given by
controller (S4): a group counts once all of its controllers are registered in it. What the projector
decides is in the key of the first of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import structlog

from fleetbus.bus.durables import consumer_info, is_read
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_CONTROLLERS, kv_reader
from fleetbus_proto.subjects import EVENTS_ALL

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus.bus.key_value import Entry

log = structlog.get_logger()

NAMES: Final = 4
"""Durables that a controller gives its name to. They are used in turn: a process that slept while
its group went may still acknowledge, and must not do so for another group."""


Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Others write registrations, too: a larger one could not be sent to the server (B18)."""


class ControllerRunning(BusError):
    """A process of the controller is running, so it cannot be removed."""


class Selection(msgspec.Struct, frozen=True, rename="camel"):
    """The events that one controller of a group acts on."""

    filters: list[str]
    """Subjects, sorted."""
    digest: str = ""
    """A hash of all that decides which of their events matter: who differs decides for himself."""


class Origin(msgspec.Struct, frozen=True, rename="camel"):
    """The durable that a controller was read through before its group had one."""

    durable: str
    created: str
    """The time of its creation: a durable that was made again is another one."""
    floor: Number
    """Its ack floor when the group's durable was planned; what it had not handled comes again."""


class Registration(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a controller in one group; the projector's part is that of the first one."""

    controllers: dict[str, Selection]
    """All of the group."""
    synced: str = ""
    """When the durable was created that the controller has caught up on (P12)."""
    is_removed: bool = False
    """The controller was removed for good."""
    durable: str = ""
    """Written by the projector, like all that follows."""
    start: Number = 0
    """The first sequence that it delivers."""
    origins: dict[str, Origin] = {}
    """By controller; one without an origin enqueues all that is known."""
    is_created: bool = False
    repeats: dict[str, Number] = {}
    """Counts the groups with other filters that ended: what they wrote last is evaluated again."""
    repeated_at: Number = 0
    """The number of deliveries to the group when the others last had to evaluate again."""
    gone_at: Number = 0
    """When the group ended (ms). Its durable is deleted once it is not `is_created` any more; the
    name stays taken for a while."""


@dataclass(frozen=True)
class ReaderGroup:
    """A set of controllers that are read for together.

    Attributes:
        controllers: by name.
    """

    controllers: Mapping[str, Selection]

    @cached_property
    def id(self) -> str:
        """The same in every process with these controllers and filters."""
        body = msgspec.json.encode(dict(self.controllers), order="sorted")
        return hashlib.sha256(body).hexdigest()[:16]

    @property
    def first(self) -> str:
        """The controller whose key has what the projector decides."""
        return min(self.controllers)

    @cached_property
    def filters(self) -> list[str]:
        """The subjects of all its controllers."""
        found = {subject for one in self.controllers.values() for subject in one.filters}
        return [EVENTS_ALL] if EVENTS_ALL in found else sorted(found)

    @property
    def durables(self) -> list[str]:
        """The names that its durable may have, which no other user has rights to (S4)."""
        names = sorted(self.controllers)
        return [f"{name}-{number}" for name in names for number in range(1, NAMES + 1)]


@dataclass(frozen=True, slots=True)
class Stored:
    """A registration as the bucket has it."""

    registration: Registration
    revision: int


@dataclass
class StoredGroup:
    """All that the bucket has of one group.

    Attributes:
        group: its controllers.
        members: their registrations; some may be missing.
    """

    group: ReaderGroup
    members: dict[str, Stored] = field(default_factory=dict[str, Stored])

    @property
    def is_complete(self) -> bool:
        """Whether all of its controllers are registered: else it may be an invention (S4)."""
        return self.members.keys() == self.group.controllers.keys()

    @property
    def decided(self) -> Registration:
        """The decisions of the projector; of a complete group."""
        return self.members[self.group.first].registration

    @property
    def is_removed(self) -> bool:
        """Whether all of its controllers were removed."""
        return all(one.registration.is_removed for one in self.members.values())

    @property
    def registered(self) -> dict[str, Stored]:
        """The registrations that are in force; none of a group whose durable has gone."""
        if self.group.first in self.members and self.decided.gone_at:
            return {}
        found = self.members.items()
        return {name: one for name, one in found if not one.registration.is_removed}


class BoundDurable:
    """The durable that this process consumes from; it changes when the group gets another (B12).

    Attributes:
        name: empty while this process is not bound.
        created: when it was created.
        decided: what the projector has decided for the group.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.created = ""
        self.decided = Registration({})
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time this process is bound, or is not any more."""
        self._listeners.append(listener)

    def bind(self, name: str, created: str = "") -> None:
        """Consume from this one from now on; from none if the name is empty."""
        self.name, self.created = name, created
        for listener in self._listeners:
            listener()


# --- a process of a group -------------------------------------------------------------------------


async def register(kv: KeyValue, group: ReaderGroup) -> Registration:
    """Register all controllers of a group; returns the registration of the first.

    Raises:
        BusError: it may not have been written.
    """
    for name in sorted(group.controllers.keys() - {group.first}):
        await _register(kv, group, name)
    return await _register(kv, group, group.first)


async def _register(kv: KeyValue, group: ReaderGroup, controller: str) -> Registration:
    while True:
        found, revision = await _read(kv, controller, group.id)
        if found is not None and not found.is_removed and not found.gone_at:
            return found
        wanted = Registration(dict(group.controllers))
        if found is not None and found.gone_at:
            wanted = msgspec.structs.replace(wanted, durable=found.durable)
        elif found is not None:
            wanted = msgspec.structs.replace(found, synced="", is_removed=False)
        if await _write(kv, controller, group, wanted, revision):
            return wanted


async def read_registration(kv: KeyValue, group: ReaderGroup) -> Registration | None:
    """Read the decisions of the projector for a group; None if it is not registered.

    Raises:
        BusError: nothing is known.
    """
    found, _ = await _read(kv, group.first, group.id)
    return None if found is None or found.is_removed or found.gone_at else found


async def report_synced(kv: KeyValue, group: ReaderGroup, controller: str, created: str) -> None:
    """Report that a controller has caught up on the group's durable: others may go (B12).

    Raises:
        BusError: it may not have been written.
    """
    found, revision = await _read(kv, controller, group.id)
    if found is not None and found.synced != created:
        # If it was changed concurrently, the next check reports it again.
        synced = msgspec.structs.replace(found, synced=created)
        await _write(kv, controller, group, synced, revision)


async def _read(kv: KeyValue, controller: str, group: str) -> tuple[Registration | None, int]:
    entry = await kv.get(kv_reader(controller, group))
    return (None, 0) if entry is None else (_decode(controller, group, entry), entry.revision)


def _decode(controller: str, group: str, entry: Entry) -> Registration | None:
    """Decode a registration; None if it names another group, or durables of others (S4)."""
    try:
        found = msgspec.json.decode(entry.value, type=Registration)
        named = ReaderGroup(found.controllers)
        if named.id != group or controller not in found.controllers:
            raise msgspec.ValidationError("it is of another group")
        if found.durable and found.durable not in named.durables:
            raise msgspec.ValidationError("it names a durable of others")
    except DECODE_ERRORS as e:
        # The controller writes it again; until then it counts as absent.
        log.warning("registration_unreadable", controller=controller, error=str(e))
        return None
    return found


async def _write(
    kv: KeyValue, controller: str, group: ReaderGroup, registration: Registration, revision: int
) -> bool:
    """Compare-and-set; `revision` is 0 if the key did not exist."""
    body = msgspec.json.encode(registration)
    return await kv.update(kv_reader(controller, group.id), body, revision) is not None


# --- all groups -----------------------------------------------------------------------------------


async def read_groups(bus: Bus) -> list[StoredGroup]:
    """All groups that the bucket has something of; needs rights to all its keys.

    Raises:
        BusError: nothing is known.
    """
    found: dict[str, StoredGroup] = {}
    for key, entry in (await scan_keys(bus, KV_CONTROLLERS)).items():
        _, controller, *parts = key.split(".")
        if len(parts) != 1 or (registration := _decode(controller, parts[0], entry)) is None:
            continue
        group = found.setdefault(parts[0], StoredGroup(ReaderGroup(registration.controllers)))
        group.members[controller] = Stored(registration, entry.revision)
    return [found[name] for name in sorted(found)]


async def decide(kv: KeyValue, stored: StoredGroup, **changes: object) -> bool:
    """For the projector: change what is decided; False if somebody has written meanwhile.

    Raises:
        BusError: it may not have been written.
    """
    first = stored.group.first
    wanted = msgspec.structs.replace(stored.decided, **changes)
    return await _write(kv, first, stored.group, wanted, stored.members[first].revision)


async def forget_group(kv: KeyValue, stored: StoredGroup) -> None:
    """For the projector: delete the registrations, unless somebody has registered again.

    Raises:
        BusError: not all were deleted.
    """
    for controller, one in stored.members.items():
        await kv.delete(kv_reader(controller, stored.group.id), one.revision)


async def registered_controllers(bus: Bus) -> list[str]:
    """The names of all controllers that are registered.

    Raises:
        BusError: nothing is known.
    """
    return sorted(await filters_of(bus))


async def filters_of(bus: Bus) -> dict[str, set[str]]:
    """The subjects of each registered controller, in all its groups.

    Raises:
        BusError: nothing is known.
    """
    filters: dict[str, set[str]] = {}
    for stored in await read_groups(bus):
        for name in stored.registered:
            filters.setdefault(name, set()).update(stored.group.controllers[name].filters)
    return filters


async def users_of_durables(bus: Bus) -> dict[str, list[str]]:
    """The registered controllers of each durable, in the order of their names.

    Raises:
        BusError: nothing is known.
    """
    groups = await read_groups(bus)
    users: dict[str, list[str]] = {}
    for name in sorted({name for stored in groups for name in stored.registered}):
        for stored in groups:
            if stored.is_complete and name in stored.members and stored.decided.durable:
                users.setdefault(stored.decided.durable, []).append(name)
    return users


async def durables_of(bus: Bus, controller: str, *, only_its_own: bool = False) -> list[str]:
    """The durables of a controller that exist.

    Args:
        bus: a connection.
        controller: its name.
        only_its_own: leave out those that other controllers use, too.

    Raises:
        BusError: nothing is known.
    """
    names = [
        stored.decided.durable
        for stored in await read_groups(bus)
        if stored.is_complete and controller in stored.members
        if stored.decided.durable and (stored.is_removed or not only_its_own)
    ]
    return [name for name in names if await consumer_info(bus, name) is not None]


async def is_running(bus: Bus, controller: str) -> bool:
    """Whether a process of a controller is running; a no takes half a second.

    Raises:
        BusError: nothing is known.
    """
    durables = await durables_of(bus, controller)
    return bool(durables) and await is_read(bus, durables)


async def mark_removed(bus: Bus, controller: str) -> bool:
    """Mark a controller as removed for good: the projector deletes its durables (rule B12).

    If it registers again later, it starts as a new one.

    Returns:
        Whether it was registered.

    Raises:
        ControllerRunning: a process of it is running; nothing was written.
        BusError: it may not have been written.
    """
    if await is_running(bus, controller):
        raise ControllerRunning(f"a process of controller {controller} is running: stop it first")
    kv = KeyValue(bus)
    was_registered = False
    for stored in await read_groups(bus):
        if (member := stored.registered.get(controller)) is None:
            continue
        was_registered = True
        removed = msgspec.structs.replace(member.registration, is_removed=True)
        if not await _write(kv, controller, stored.group, removed, member.revision):
            raise ControllerRunning(
                f"the registration of controller {controller} was changed concurrently"
            )
    return was_registered
