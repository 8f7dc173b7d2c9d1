"""Durable consumers: created by their one owner, the projector; bound by everyone else (B12).

A controller writes what it watches into the key-value bucket; the projector creates its durable,
filtered by resource. A watch set that changed gets the other one of two fixed names, so that the
old durable keeps delivering until the controller has bound the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.jetstream import ApiError, call_jetstream, check_echo
from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET, kv_controller
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, events_filter

log = structlog.get_logger()

PROJECTOR: Final = "projector"
RESERVED_NAMES: Final = frozenset({PROJECTOR})
_NO_CONSUMER: Final = 10014
_LOOKS: Final = 5
_LOOK_EVERY: Final = timedelta(milliseconds=100)
_SECOND_NS: Final = 1_000_000_000
_ACK_WAIT: Final = timedelta(seconds=30)
_MAX_ACK_PENDING: Final = 5_000


class ControllerRuns(BusError):
    """What is only done to a controller that nobody runs."""


class Registration(msgspec.Struct, frozen=True, rename="camel"):
    """What a controller watches, and which of its durables is the one to use."""

    controller: str
    filters: list[str]
    """Subjects, sorted."""
    durable: str = ""
    """Written by the projector once the durable exists; empty before."""
    previous: str = ""
    """A durable of an older watch set; the projector removes it once `synced` is `durable`."""
    synced: str = ""
    """Written by the controller: it has bound this durable and enqueued what was known before."""
    is_gone: bool = False
    """Somebody said that the controller has gone for good; the projector removes all of it."""


def filters_for(resources: Iterable[Resource | None]) -> list[str]:
    """The subjects of a watch set; None stands for every resource."""
    found: set[str] = set()
    for resource in resources:
        if resource is None:
            return [EVENTS_ALL]
        found.add(events_filter(group=resource.group, resource=resource.plural))
    return sorted(found)


def durables_of(controller: str) -> tuple[str, str]:
    """The two names that a controller's durables have in turn."""
    return f"{controller}-a", f"{controller}-b"


async def read_registration(kv: KeyValue, controller: str) -> Registration | None:
    """A controller's registration; None if there is none, or nobody can read it.

    Raises:
        BusError: nothing is known.
    """
    found, _ = await _read(kv, controller)
    return None if found is None or found.is_gone else found


async def is_bindable(bus: Bus, durable: str, filters: Sequence[str]) -> bool:
    """Whether a durable exists and delivers just these subjects (rule B12).

    Raises:
        BusError: nothing is known.
    """
    return await _filters_of(bus, durable) == sorted(filters)


async def is_pulled_from(bus: Bus, durable: str) -> bool:
    """Whether some process waits for messages of a durable.

    Raises:
        BusError: nothing is known.
    """
    info = await consumer_info(bus, durable)
    return info is not None and int(info.get("num_waiting", 0)) > 0


async def register(kv: KeyValue, controller: str, filters: Sequence[str]) -> Registration:
    """Say what a controller watches; keeps what the projector wrote, if nothing changed.

    Raises:
        BusError: it may not have been written.
    """
    while True:
        found, revision = await _read(kv, controller)
        if found is not None and found.filters == list(filters) and not found.is_gone:
            return found
        # A change that came before the last one was served still has the older durable.
        previous = (found.durable or found.previous) if found else ""
        wanted = Registration(controller, list(filters), previous=previous)
        if await _write(kv, wanted, revision):
            return wanted


async def tell_gone(bus: Bus, kv: KeyValue, controller: str) -> bool:
    """Say that a controller has gone for good: the projector removes its durables (rule B12).

    One that registers again all the same is as new.

    Returns:
        Whether it was registered.

    Raises:
        ControllerRuns: a process of it waits for messages; nothing was said.
        BusError: it may not have been written.
    """
    for _ in range(_LOOKS):  # while messages flow there is not always a pull that waits
        for durable in durables_of(controller):
            if await is_pulled_from(bus, durable):
                raise ControllerRuns(f"a process of controller {controller} runs: stop it first")
        await asyncio.sleep(_LOOK_EVERY.total_seconds())
    found, revision = await _read(kv, controller)
    if found is None or found.is_gone:
        return found is not None
    if await _write(kv, Registration(controller, found.filters, is_gone=True), revision):
        return True
    raise ControllerRuns(f"somebody else changed the registration of controller {controller}")


async def report_synced(kv: KeyValue, controller: str, durable: str) -> None:
    """Say that the controller lives from this durable now; an older one may go (rule B12).

    Raises:
        BusError: it may not have been written.
    """
    found, revision = await _read(kv, controller)
    if found is not None and found.durable == durable != found.synced:
        # If someone wrote in between, the next look tells it again.
        await _write(kv, msgspec.structs.replace(found, synced=durable), revision)


async def serve_registration(bus: Bus, kv: KeyValue, controller: str) -> None:
    """The projector's part: create the durable that a registration asks for, name it in it.

    Raises:
        BusError: not done, or not wholly; to be repeated.
    """
    wanted, revision = await _read(kv, controller)
    if wanted is None:
        return
    if wanted.is_gone:
        for durable in durables_of(controller):
            await delete_consumer(bus, durable)
        await kv.delete(kv_controller(controller), revision)  # unless it came back meanwhile
    elif not wanted.durable:
        await _name_durable(bus, kv, wanted, revision)
    elif await consumer_info(bus, wanted.durable) is None:
        await ensure_consumer(bus, wanted.durable, wanted.filters, start=await _covered(bus) + 1)
    elif wanted.previous and wanted.synced == wanted.durable:
        await delete_consumer(bus, wanted.previous)
        await _write(kv, msgspec.structs.replace(wanted, previous=""), revision)


async def _name_durable(bus: Bus, kv: KeyValue, wanted: Registration, revision: int) -> None:
    first, second = durables_of(wanted.controller)
    held = {name: await _filters_of(bus, name) for name in (first, second)}
    fitting = [name for name, filters in held.items() if filters == wanted.filters]
    if fitting:
        # The registration was lost, or we stopped before it was written: nothing is made again.
        durable = fitting[0]
    else:
        durable = second if wanted.previous == first else first
        # A free name may still hold a durable of an older watch set.
        await delete_consumer(bus, durable)
        await ensure_consumer(bus, durable, wanted.filters, start=await _covered(bus) + 1)
    other = second if durable == first else first
    previous = other if held[other] is not None else ""
    await _write(kv, msgspec.structs.replace(wanted, durable=durable, previous=previous), revision)


async def _covered(bus: Bus) -> int:
    """Up to here the projector has applied everything, so a full enqueue finds it (rule P12).

    A durable that began at the stream's end would miss what the projector has not applied yet.
    """
    info = await consumer_info(bus, PROJECTOR)
    return int(info["ack_floor"]["stream_seq"]) if info is not None else 0


async def _filters_of(bus: Bus, durable: str) -> list[str] | None:
    info = await consumer_info(bus, durable)
    return None if info is None else _echoed_filters(info["config"])


def _echoed_filters(config: Mapping[str, Any]) -> list[str]:
    return sorted(config.get("filter_subjects") or [config.get("filter_subject", "")])


async def _read(kv: KeyValue, controller: str) -> tuple[Registration | None, int]:
    entry = await kv.get(kv_controller(controller))
    if entry is None:
        return None, 0
    try:
        found = msgspec.json.decode(entry.value, type=Registration)
        return _checked(controller, found), entry.revision
    except DECODE_ERRORS as e:
        # The controller writes it again; until then it is as good as none.
        log.warning("registration_unreadable", controller=controller, error=str(e))
        return None, entry.revision


def _checked(controller: str, found: Registration) -> Registration:
    """Refuse what names durables of others: whoever serves it may delete them (rule S4)."""
    own = {"", *durables_of(controller)}
    if found.controller != controller or not own.issuperset((found.durable, found.previous)):
        raise msgspec.ValidationError("it names another controller, or durables of another one")
    return found


async def _write(kv: KeyValue, registration: Registration, revision: int) -> bool:
    """Compare-and-set; `revision` is 0 if there was none."""
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


async def consumer_info(bus: Bus, durable: str) -> dict[str, Any] | None:
    """What the server says about a durable; None if there is none.

    Raises:
        NoStream: JetStream is not there.
    """
    try:
        return await call_jetstream(bus, f"CONSUMER.INFO.{STREAM}.{durable}")
    except ApiError as e:
        if e.code == _NO_CONSUMER:
            return None
        raise


async def ensure_consumer(
    bus: Bus, durable: str, filters: Sequence[str], *, start: int = 0
) -> None:
    """Create a durable, or check that it is as it must be; never change one that exists.

    Args:
        bus: a connection.
        durable: its name.
        filters: subjects, sorted.
        start: the first sequence to deliver; 0 for all that the stream still holds.

    Raises:
        BusError: it exists with another configuration.
    """
    wanted: dict[str, Any] = {
        "durable_name": durable,
        "ack_policy": "explicit",
        "ack_wait": round(_ACK_WAIT.total_seconds() * _SECOND_NS),
        "max_ack_pending": _MAX_ACK_PENDING,
        "max_deliver": -1,
        "filter_subjects": sorted(filters),
    }
    info = await consumer_info(bus, durable)
    if info is None:
        where: dict[str, Any] = {"deliver_policy": "all"}
        if start:
            where = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        info = await call_jetstream(
            bus,
            f"CONSUMER.CREATE.{STREAM}.{durable}",
            {"stream_name": STREAM, "config": {**wanted, **where}, "action": "create"},
        )
    config = cast("dict[str, Any]", info["config"])
    check_echo(
        f"consumer {durable}", wanted, {**config, "filter_subjects": _echoed_filters(config)}
    )


async def delete_consumer(bus: Bus, durable: str) -> None:
    """Delete a durable; it need not exist."""
    try:
        await call_jetstream(bus, f"CONSUMER.DELETE.{STREAM}.{durable}")
    except ApiError as e:
        if e.code != _NO_CONSUMER:
            raise
