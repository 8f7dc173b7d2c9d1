"""Durable consumers: created by the projector, their only owner; others just bind them (B12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.jetstream import ApiError, call_jetstream, check_echo
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


def filters_for(resources: Iterable[Resource | None]) -> list[str]:
    """The subjects of a watch set; None stands for every resource."""
    found: set[str] = set()
    for resource in resources:
        if resource is None:
            return [EVENTS_ALL]
        found.add(events_filter(group=resource.group, resource=resource.plural))
    return sorted(found)


async def is_pulled_from(bus: Bus, durable: str) -> bool:
    """Whether a process is pulling from a durable.

    Raises:
        BusError: nothing is known.
    """
    info = await consumer_info(bus, durable)
    return info is not None and int(info.get("num_waiting", 0)) > 0


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


def _echoed_filters(config: Mapping[str, Any]) -> list[str]:
    one = config.get("filter_subject", "")
    return sorted(config.get("filter_subjects") or ([one] if one else []))


def _as_filters(subjects: Iterable[str]) -> list[str]:
    """The filters for these subjects; none for all of the stream.

    With several filters, nats-server looks through all subjects of a block of the stream for each
    message of a backlog: 0.9 ms of CPU, where a consumer without a filter takes 0.01 ms.
    """
    found = sorted(subjects)
    return [] if found == sorted(STREAM_SUBJECTS) else found


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
    description: str = "",
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
        description: whose it is.

    Raises:
        BusError: it exists with another configuration.
    """
    wanted: dict[str, Any] = {
        "durable_name": durable,
        "ack_policy": "explicit",
        "ack_wait": round((ack_wait or ACK_WAIT).total_seconds() * _SECOND_NS),
        "max_ack_pending": max_ack_pending * shards,
        "max_deliver": -1,
        "filter_subjects": _as_filters(filters),
        "description": description,
    }
    info = await consumer_info(bus, durable, stream)
    if info is None:
        where: dict[str, Any] = {"deliver_policy": "all"}
        if start:
            where = {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        info = await _put_consumer(bus, stream, {**wanted, **where}, "create")
    config = cast("dict[str, Any]", info["config"])
    limit = {"max_ack_pending": wanted.pop("max_ack_pending")}
    echoed = {**config, "filter_subjects": _as_filters(_echoed_filters(config))}
    check_echo(f"consumer {durable}", wanted, echoed)
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
