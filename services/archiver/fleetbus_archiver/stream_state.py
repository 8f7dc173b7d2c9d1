"""Reads the state of the stream and of the archiver's durable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from fleetbus.bus.connection import Bus
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus.errors import BusError
from fleetbus_proto.subjects import STREAM


@dataclass(frozen=True, slots=True)
class StreamState:
    """The stream, at one time."""

    created: str
    """RFC 3339: the identity of the stream."""
    first: int
    """The first sequence that it still has."""
    last: int
    """The last one that it ever had."""
    now: datetime
    """The server's time."""


@dataclass(frozen=True, slots=True)
class DurableState:
    """The durable, at one time."""

    pending: int
    """Messages that were not delivered yet."""
    unacked: int
    """Messages that were delivered, to whomever, and not acknowledged."""
    floor: int
    """Everything up to this sequence is acknowledged."""
    ack_wait: timedelta
    """When a message that was not acknowledged is delivered again."""


async def read_stream(bus: Bus) -> StreamState:
    """Read the state of the stream.

    Raises:
        BusError: there is no stream yet, or nothing is known.
    """
    info = await stream_info(bus)
    if info is None:
        raise BusError(f"there is no stream {STREAM} yet: the projector creates it")
    state = info["state"]
    return StreamState(
        str(info["created"]), int(state["first_seq"]), int(state["last_seq"]), _time(info["ts"])
    )


async def read_durable(bus: Bus) -> DurableState:
    """Read the state of the durable.

    Raises:
        BusError: there is none yet, or nothing is known.
    """
    info = await consumer_info(bus, ARCHIVER)
    if info is None:
        raise BusError(
            f"there is no consumer {ARCHIVER} yet: the projector creates it"
            " if FLEETBUS_RECONCILER_ARCHIVER is set"
        )
    return DurableState(
        pending=int(info["num_pending"]),
        unacked=int(info["num_ack_pending"]),
        floor=int(info["ack_floor"]["stream_seq"]),
        ack_wait=timedelta(microseconds=int(info["config"]["ack_wait"]) // 1000),
    )


def _time(text: str) -> datetime:
    """Parse the time of Go, whose nanoseconds Python does not know."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:0<6}+00:00")
