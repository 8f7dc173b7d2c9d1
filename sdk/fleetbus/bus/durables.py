"""Durable consumers: created by the projector, their only owner; others just bind them (B12).

A controller writes what it watches into the key-value bucket; the projector creates its durable,
filtered by resource. When the watch set changes, the new durable gets the other one of two fixed
names, so that the old one keeps delivering until the controller has bound the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import ARCHIVER, PROJECTOR
from fleetbus.bus.jetstream import ApiError, call_jetstream, check_echo
from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET, kv_controller
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, STREAM_SUBJECTS, events_filter

log = structlog.get_logger()

_NO_CONSUMER: Final = 10014
_CHECKS: Final = 5
CHECK_EVERY: Final = timedelta(milliseconds=100)
"""Between two looks whether somebody pulls from a durable."""
_SECOND_NS: Final = 1_000_000_000
ACK_WAIT: Final = timedelta(seconds=10)
"""When others get the messages of a process that was killed: sooner than its leases end. A process
that lives tells the server of those that it has not handled yet."""
_MAX_ACK_PENDING: Final = 5_000
ARCHIVER_ACK_WAIT: Final = timedelta(seconds=30)
"""The archiver acknowledges once a whole chunk is stored. If it was killed, the next one waits for
this long, and then gets the messages in order."""
ARCHIVER_MAX_ACK_PENDING: Final = 100_000
"""Two full chunks: one of a process that was killed, and one of the next."""


class ControllerRunning(BusError):
    """A process of the controller is running, so it cannot be removed."""


class Registration(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a controller: its watch set, and which of its durables to use."""

    controller: str
    filters: list[str]
    """Subjects, sorted."""
    durable: str = ""
    """Written by the projector once the durable exists; empty before."""
    previous: str = ""
    """A durable of an older watch set; the projector removes it once `synced` is `durable`."""
    synced: str = ""
    """Written by the controller: it has bound this durable and enqueued what was known before."""
    is_removed: bool = False
    """The controller was removed for good; the projector deletes all of it."""


class BoundDurable:
    """The durable that this process consumes from; it changes when another takes over (rule B12).

    Args:
        filters: its subjects.
        name: empty while this process is not bound.
    """

    def __init__(self, filters: Sequence[str], name: str = "") -> None:
        self.filters = filters
        self.name = name
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time this process is bound, or is not any more."""
        self._listeners.append(listener)

    def bind(self, name: str) -> None:
        """Consume from this one from now on; from none if the name is empty."""
        self.name = name
        for listener in self._listeners:
            listener()


def filters_for(resources: Iterable[Resource | None]) -> list[str]:
    """The subjects of a watch set; None stands for every resource."""
    subjects: set[str] = set()
    for resource in resources:
        if resource is None:
            return [EVENTS_ALL]
        subjects.add(events_filter(group=resource.group, resource=resource.plural))
    return sorted(subjects)


def durables_of(controller: str) -> tuple[str, str]:
    """The two names that a controller's durables alternate between."""
    return f"{controller}-a", f"{controller}-b"


async def read_registration(kv: KeyValue, controller: str) -> Registration | None:
    """Read a controller's registration; None if there is none, or it is malformed.

    Raises:
        BusError: nothing is known.
    """
    registration, _ = await _read(kv, controller)
    return None if registration is None or registration.is_removed else registration


async def is_bindable(bus: Bus, durable: str, filters: Sequence[str]) -> bool:
    """Whether a durable exists and delivers exactly these subjects (rule B12).

    Raises:
        BusError: nothing is known.
    """
    return await _filters_of(bus, durable) == sorted(filters)


async def is_pulled_from(bus: Bus, durable: str) -> bool:
    """Whether a process is pulling from a durable.

    Raises:
        BusError: nothing is known.
    """
    info = await consumer_info(bus, durable)
    return info is not None and int(info.get("num_waiting", 0)) > 0


async def is_running(bus: Bus, controller: str) -> bool:
    """Whether a process of a controller is running; a no takes half a second.

    Raises:
        BusError: nothing is known.
    """
    return await is_read(bus, durables_of(controller))


async def is_read(bus: Bus, durables: Sequence[str]) -> bool:
    """Whether a process reads one of these durables; a no takes half a second.

    Raises:
        BusError: nothing is known.
    """
    for _ in range(_CHECKS):  # while messages flow there is not always a waiting pull
        for durable in durables:
            if await is_pulled_from(bus, durable):
                return True
        await asyncio.sleep(CHECK_EVERY.total_seconds())
    return False


async def register(kv: KeyValue, controller: str, filters: Sequence[str]) -> Registration:
    """Write what a controller watches; keeps what the projector wrote if nothing changed.

    Raises:
        BusError: it may not have been written.
    """
    while True:
        current, revision = await _read(kv, controller)
        if current is not None and current.filters == list(filters) and not current.is_removed:
            return current
        # If the last change was not served yet, the durable before it is still in use.
        previous = (current.durable or current.previous) if current else ""
        registration = Registration(controller, list(filters), previous=previous)
        if await _write(kv, registration, revision):
            return registration


async def mark_removed(bus: Bus, kv: KeyValue, controller: str) -> bool:
    """Mark a controller as removed for good: the projector deletes its durables (rule B12).

    If it registers again later, it starts as a new one.

    Returns:
        Whether it was registered.

    Raises:
        ControllerRuns: a process of it is running; nothing was written.
        BusError: it may not have been written.
    """
    if await is_running(bus, controller):
        raise ControllerRunning(f"a process of controller {controller} is running: stop it first")
    registration, revision = await _read(kv, controller)
    if registration is None or registration.is_removed:
        return registration is not None
    if await _write(kv, Registration(controller, registration.filters, is_removed=True), revision):
        return True
    raise ControllerRunning(f"the registration of controller {controller} was changed concurrently")


async def report_synced(kv: KeyValue, controller: str, durable: str) -> None:
    """Report that the controller uses this durable now; an older one may be deleted (rule B12).

    Raises:
        BusError: it may not have been written.
    """
    registration, revision = await _read(kv, controller)
    if registration is not None and registration.durable == durable != registration.synced:
        # If it was changed concurrently, the next check reports it again.
        await _write(kv, msgspec.structs.replace(registration, synced=durable), revision)


async def apply_registration(bus: Bus, kv: KeyValue, controller: str) -> None:
    """For the projector: create the durable that a registration asks for, and write its name there.

    Raises:
        BusError: not done, or only in part; to be repeated.
    """
    registration, revision = await _read(kv, controller)
    if registration is None:
        return
    if registration.is_removed:
        for durable in durables_of(controller):
            await delete_consumer(bus, durable)
        await kv.delete(kv_controller(controller), revision)  # unless it has registered again
    elif not registration.durable:
        await _name_durable(bus, kv, registration, revision)
    elif await consumer_info(bus, registration.durable) is None:
        await ensure_consumer(
            bus, registration.durable, registration.filters, start=await _applied_sequence(bus) + 1
        )
    elif registration.previous and registration.synced == registration.durable:
        await delete_consumer(bus, registration.previous)
        await _write(kv, msgspec.structs.replace(registration, previous=""), revision)


async def _name_durable(bus: Bus, kv: KeyValue, registration: Registration, revision: int) -> None:
    first, second = durables_of(registration.controller)
    filters_by_name = {name: await _filters_of(bus, name) for name in (first, second)}
    fitting = [name for name, filters in filters_by_name.items() if filters == registration.filters]
    if fitting:
        # The registration was lost, or we stopped before writing it: use the durable that exists.
        durable = fitting[0]
    else:
        durable = second if registration.previous == first else first
        # The unused name may still belong to a durable of an older watch set.
        await delete_consumer(bus, durable)
        await ensure_consumer(
            bus, durable, registration.filters, start=await _applied_sequence(bus) + 1
        )
    other = second if durable == first else first
    previous = other if filters_by_name[other] is not None else ""
    await _write(
        kv, msgspec.structs.replace(registration, durable=durable, previous=previous), revision
    )


async def _applied_sequence(bus: Bus) -> int:
    """The sequence up to which the projector has applied everything (rule P12).

    A full enqueue finds what is before it. A durable that began at the end of the stream would miss
    what the projector has not applied yet.
    """
    info = await consumer_info(bus, PROJECTOR)
    return int(info["ack_floor"]["stream_seq"]) if info is not None else 0


async def _filters_of(bus: Bus, durable: str) -> list[str] | None:
    info = await consumer_info(bus, durable)
    return None if info is None else _echoed_filters(info["config"])


def _echoed_filters(config: Mapping[str, Any]) -> list[str]:
    subject = config.get("filter_subject", "")
    return sorted(config.get("filter_subjects") or ([subject] if subject else []))


def _as_filters(subjects: Iterable[str]) -> list[str]:
    """The filters for these subjects; none for all of the stream.

    With several filters, nats-server looks through all subjects of a block of the stream for each
    message of a backlog: 0.9 ms of CPU, where a consumer without a filter takes 0.01 ms.
    """
    filters = sorted(subjects)
    return [] if filters == sorted(STREAM_SUBJECTS) else filters


async def _read(kv: KeyValue, controller: str) -> tuple[Registration | None, int]:
    entry = await kv.get(kv_controller(controller))
    if entry is None:
        return None, 0
    try:
        registration = msgspec.json.decode(entry.value, type=Registration)
        return _checked(controller, registration), entry.revision
    except DECODE_ERRORS as e:
        # The controller writes it again; until then it counts as absent.
        log.warning("registration_unreadable", controller=controller, error=str(e))
        return None, entry.revision


def _checked(controller: str, registration: Registration) -> Registration:
    """Refuse a registration that names durables of others: serving it could delete them (S4)."""
    durables = {"", *durables_of(controller)}
    if registration.controller != controller or not durables.issuperset(
        (registration.durable, registration.previous)
    ):
        raise msgspec.ValidationError(
            "it names another controller, or durables of another controller"
        )
    return registration


async def _write(kv: KeyValue, registration: Registration, revision: int) -> bool:
    """Compare-and-set; `revision` is 0 if the key did not exist."""
    key, body = kv_controller(registration.controller), msgspec.json.encode(registration)
    return await kv.update(key, body, revision) is not None


async def registered_controllers(bus: Bus) -> list[str]:
    """The names of all controllers that ever registered."""
    prefix = f"$KV.{KV_BUCKET}.{kv_controller('')}"
    info = await call_jetstream(
        bus, f"STREAM.INFO.KV_{KV_BUCKET}", {"subjects_filter": f"{prefix}>"}
    )
    subjects = cast("dict[str, int]", info["state"].get("subjects") or {})
    return sorted(subject.removeprefix(prefix) for subject in subjects)


async def consumer_info(bus: Bus, durable: str, stream: str = STREAM) -> dict[str, Any] | None:
    """The server's description of a durable; None if there is none.

    Raises:
        NoStream: JetStream is not available.
    """
    try:
        return await call_jetstream(bus, f"CONSUMER.INFO.{stream}.{durable}")
    except ApiError as e:
        if e.code == _NO_CONSUMER:
            return None
        raise


async def ensure_consumer(
    bus: Bus,
    durable: str,
    filters: Sequence[str],
    *,
    start: int = 0,
    shards: int = 1,
    stream: str = STREAM,
    ack_wait: timedelta | None = None,
    max_ack_pending: int = _MAX_ACK_PENDING,
) -> None:
    """Create a durable, or check the configuration of the one that exists (rule B12).

    Of that only the limit of messages without an acknowledgement is changed: the server does it in
    place, and the number of shards may be another one than when the durable was created.

    Args:
        bus: a connection.
        durable: its name.
        filters: subjects; those of the stream stand for no filter.
        start: the first sequence to deliver; 0 for everything in the stream.
        shards: of the snapshot: the messages of one that is away wait, and may not keep those of
            the others from being delivered.
        stream: that of events, or of distribution.
        ack_wait: when a message that was not acknowledged is delivered again; None for `ACK_WAIT`.
        max_ack_pending: how many may be without an acknowledgement, for each shard.

    Raises:
        BusError: it exists with another configuration.
    """
    settings: dict[str, Any] = {
        "durable_name": durable,
        "ack_policy": "explicit",
        "ack_wait": round((ack_wait or ACK_WAIT).total_seconds() * _SECOND_NS),
        "max_ack_pending": max_ack_pending * shards,
        "max_deliver": -1,
        "filter_subjects": _as_filters(filters),
    }
    info = await consumer_info(bus, durable, stream)
    if info is None:
        where: dict[str, Any] = {"deliver_policy": "all"}
        if start:
            where = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        info = await _put_consumer(bus, stream, {**settings, **where}, "create")
    config = cast("dict[str, Any]", info["config"])
    limit = {"max_ack_pending": settings.pop("max_ack_pending")}
    echoed = {**config, "filter_subjects": _as_filters(_echoed_filters(config))}
    check_echo(f"consumer {durable}", settings, echoed)
    if config["max_ack_pending"] != limit["max_ack_pending"]:
        await _put_consumer(bus, stream, {**config, **limit}, "update")
        log.info("consumer_limit_changed", durable=durable, **limit)


async def ensure_archiver(bus: Bus) -> None:
    """Create the durable of the archiver, or check the one that exists (rule B12).

    Raises:
        BusError: it exists with another configuration.
    """
    await ensure_consumer(
        bus,
        ARCHIVER,
        [EVENTS_ALL],
        ack_wait=ARCHIVER_ACK_WAIT,
        max_ack_pending=ARCHIVER_MAX_ACK_PENDING,
    )


async def _put_consumer(
    bus: Bus, stream: str, config: Mapping[str, Any], action: str
) -> dict[str, Any]:
    where = f"CONSUMER.CREATE.{stream}.{config['durable_name']}"
    body = {"stream_name": stream, "config": config, "action": action}
    return await call_jetstream(bus, where, body)


async def delete_consumer(bus: Bus, durable: str) -> None:
    """Delete a durable; it need not exist."""
    try:
        await call_jetstream(bus, f"CONSUMER.DELETE.{STREAM}.{durable}")
    except ApiError as e:
        if e.code != _NO_CONSUMER:
            raise
