"""The durables of reader groups without processes: tests register, serve and read themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import (
    ReaderGroup,
    Registration,
    Selection,
    read_registration,
    register,
    report_synced,
)
from fleetbus_proto import codec, headers
from fleetbus_proto.subjects import STREAM, STREAM_SUBJECTS, event_subject
from fleetbus_reconciler.projector.reader_groups import ReaderGroups
from support.eventually import eventually
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

PODS = ["fleetbus.events.*.core.pods.>"]
DEPLOYMENTS = ["fleetbus.events.*.apps.deployments.>"]


def group_of(digest: str = "", **controllers: list[str]) -> ReaderGroup:
    return ReaderGroup({name: Selection(each, digest) for name, each in controllers.items()})


@asynccontextmanager
async def open_bus(nats_url: str) -> AsyncGenerator[Bus]:
    """A connection to a bus with stream, bucket and the projector's durable."""
    async with connected(nats_url, name="test") as bus:
        await ensure_stream(bus)
        await ensure_bucket(bus)
        await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))
        yield bus


async def serve(bus: Bus, **times: timedelta) -> None:
    """As a projector for which whoever does not pull now has gone."""
    await ReaderGroups(bus, KeyValue(bus), quiet=timedelta(0), **times).serve()


async def served(
    bus: Bus, group: ReaderGroup, *, synced: bool = False, **times: timedelta
) -> Registration:
    """As a process of it would: registered, served, and perhaps caught up."""
    kv = KeyValue(bus)
    await register(kv, group)
    await serve(bus, **times)
    found = await read_registration(kv, group)
    assert found is not None
    assert found.is_created
    if synced:
        for name in group.controllers:
            await report_synced(kv, group, name, await created(bus, found.durable))
    return found


async def created(bus: Bus, durable: str) -> str:
    info = await consumer_info(bus, durable)
    return str(info["created"]) if info is not None else ""


async def filters_of(bus: Bus, durable: str) -> list[str] | None:
    info = await consumer_info(bus, durable)
    if info is None:
        return None
    one = info["config"].get("filter_subject")
    return sorted(info["config"].get("filter_subjects") or [one])


async def pending(bus: Bus, durable: str) -> int:
    info = await consumer_info(bus, durable)
    assert info is not None
    return int(info["num_pending"])


async def publish(bus: Bus, *names: str) -> None:
    for version, name in enumerate(names, 1):
        event = Source().added(name, version)
        subject = event_subject("eu1", "core", "pods", "prod", name, event.verb)
        await bus.request(subject, codec.encode(event), headers=headers.build(event, MESSAGE_KEY))


async def ignore(_deliveries: Sequence[Delivery]) -> None:
    return


@asynccontextmanager
async def reading(bus: Bus, durable: str, handle: Any = ignore) -> AsyncGenerator[None]:
    """A process that pulls from a durable."""
    task = asyncio.create_task(Consumer(bus, stream=STREAM, durable=durable, handle=handle).run())

    async def is_pulled() -> bool:
        info = await consumer_info(bus, durable)
        return info is not None and info["num_waiting"] > 0

    try:
        await eventually(is_pulled)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def read_all(bus: Bus, durable: str) -> None:
    async def is_through() -> bool:
        info = await consumer_info(bus, durable)
        return info is not None and (info["num_pending"], info["num_ack_pending"]) == (0, 0)

    async with reading(bus, durable):
        await eventually(is_through)
