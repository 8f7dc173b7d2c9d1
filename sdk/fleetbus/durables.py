"""Durable consumers: created by their one owner, the projector; bound by everyone else (B12).

A controller writes what it watches into the key-value bucket; the projector creates its durable,
filtered by resource. A watch set that changed gets the other one of two fixed names, so that the
old durable keeps delivering until the controller has bound the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from fleetbus.bus import ApiError, Bus, KeyValue, call_jetstream, check_echo, stream_info
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET, kv_controller
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, events_filter

PROJECTOR: Final = "projector"
RESERVED_NAMES: Final = frozenset({PROJECTOR})
_NO_CONSUMER: Final = 10014
_SECOND_NS: Final = 1_000_000_000
_ACK_WAIT: Final = timedelta(seconds=30)
_MAX_ACK_PENDING: Final = 5_000


class Registration(msgspec.Struct, frozen=True, rename="camel"):
    """What a controller watches, and which of its durables is the one to use."""

    controller: str
    filters: list[str]
    """Subjects, sorted."""
    durable: str = ""
    """Written by the projector once the durable exists; empty before."""
    previous: str = ""
    """A durable to be removed once no process of the controller uses it."""


def filters_for(resources: Iterable[Resource | None]) -> list[str]:
    """The subjects of a watch set; None stands for every resource."""
    found: set[str] = set()
    for resource in resources:
        if resource is None:
            return [EVENTS_ALL]
        found.add(events_filter(group=resource.group, resource=resource.plural))
    return sorted(found)


async def read_registration(kv: KeyValue, controller: str) -> Registration | None:
    """A controller's registration; None if there is none."""
    entry = await kv.get(kv_controller(controller))
    return msgspec.json.decode(entry.value, type=Registration) if entry else None


async def register(kv: KeyValue, controller: str, filters: Sequence[str]) -> Registration:
    """Say what a controller watches; keeps what the projector wrote, if nothing changed."""
    while True:
        entry = await kv.get(kv_controller(controller))
        found = msgspec.json.decode(entry.value, type=Registration) if entry else None
        if found is not None and found.filters == list(filters):
            return found
        wanted = Registration(controller, list(filters), previous=found.durable if found else "")
        body = msgspec.json.encode(wanted)
        key = kv_controller(controller)
        written = (
            await kv.update(key, body, entry.revision) if entry else await kv.create(key, body)
        )
        if written is not None:
            return wanted


async def serve_registration(bus: Bus, kv: KeyValue, controller: str) -> None:
    """The projector's part: create the durable that a registration asks for, name it in it."""
    entry = await kv.get(kv_controller(controller))
    if entry is None:
        return
    wanted = msgspec.json.decode(entry.value, type=Registration)
    if wanted.durable:
        if await consumer_info(bus, wanted.durable) is None:
            await ensure_consumer(bus, wanted.durable, wanted.filters, from_now=True)
        return
    first, second = f"{controller}-a", f"{controller}-b"
    durable = second if wanted.previous == first else first
    # A free name may still hold a durable of an older watch set.
    await delete_consumer(bus, durable)
    await ensure_consumer(bus, durable, wanted.filters, from_now=True)
    named = msgspec.structs.replace(wanted, durable=durable, previous="")
    body = msgspec.json.encode(named)
    written = await kv.update(kv_controller(controller), body, entry.revision)
    if written is not None and wanted.previous:
        await delete_consumer(bus, wanted.previous)


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
    bus: Bus, durable: str, filters: Sequence[str], *, from_now: bool = False
) -> None:
    """Create a durable, or check that it is as it must be; never change one that exists.

    Args:
        bus: a connection.
        durable: its name.
        filters: subjects, sorted.
        from_now: deliver only what is published later; else all that the stream still holds.

    Raises:
        BusError: it exists with another configuration.
    """
    wanted: dict[str, Any] = {
        "durable_name": durable,
        "deliver_policy": "new" if from_now else "all",
        "ack_policy": "explicit",
        "ack_wait": round(_ACK_WAIT.total_seconds() * _SECOND_NS),
        "max_ack_pending": _MAX_ACK_PENDING,
        "max_deliver": -1,
        "filter_subjects": sorted(filters),
    }
    info = await consumer_info(bus, durable)
    if info is None:
        info = await call_jetstream(
            bus,
            f"CONSUMER.CREATE.{STREAM}.{durable}",
            {"stream_name": STREAM, "config": wanted, "action": "create"},
        )
    echoed = dict(cast("dict[str, Any]", info["config"]))
    echoed["filter_subjects"] = sorted(
        echoed.get("filter_subjects") or [echoed.get("filter_subject", "")]
    )
    del wanted["deliver_policy"]  # it only says where a new durable starts
    check_echo(f"consumer {durable}", wanted, echoed)


async def delete_consumer(bus: Bus, durable: str) -> None:
    """Delete a durable; it need not exist."""
    try:
        await call_jetstream(bus, f"CONSUMER.DELETE.{STREAM}.{durable}")
    except ApiError as e:
        if e.code != _NO_CONSUMER:
            raise


async def require_stream(bus: Bus) -> None:
    """Check that the stream exists.

    Raises:
        BusError: it does not; the projector has not started yet.
    """
    if await stream_info(bus) is None:
        raise BusError(f"stream {STREAM} does not exist; is the reconciler service running?")
