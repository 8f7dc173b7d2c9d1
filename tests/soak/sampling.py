"""Samples of what must be bounded: processes, Valkey, NATS and the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import stream_info
from fleetbus.errors import BusError
from fleetbus_devfleet.stack.plan import APISERVER
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM
from soak.fleet import SoakFleet

_STREAMS: Final = {
    "nats/events": STREAM,
    "nats/bucket": f"KV_{KV_BUCKET}",
    "nats/distribution": DISTRIBUTION_STREAM,
    "nats/prior": PRIOR_STREAM,
}
_TASKS: Final = "fleetbus_event_loop_tasks"
_ANSWER: Final = aiohttp.ClientTimeout(total=5)
Row = tuple[str, float, int]
"""A series, its value, and the life that it is of."""


async def keep_sampling(fleet: SoakFleet, path: Path, interval: float) -> None:
    """Append samples to a file, until cancelled."""
    async with (
        connected(fleet.stack.nats_url, name="soak") as bus,
        Redis.from_url(fleet.stack.redis_url) as redis,
        aiohttp.ClientSession(timeout=_ANSWER) as session,
    ):
        with path.open("ab") as file:
            while True:
                rows = [
                    *_processes(fleet),
                    *await _tasks(fleet, session),
                    *await _valkey(redis),
                    *await _nats(bus),
                    *await asyncio.to_thread(_disk, fleet),
                ]
                at = round(fleet.now, 1)
                file.writelines(orjson.dumps([at, *row]) + b"\n" for row in rows)
                file.flush()
                await asyncio.sleep(interval)


def _processes(fleet: SoakFleet) -> Iterator[Row]:
    for name, pid in fleet.processes().items():
        process = Path(f"/proc/{pid}")
        with suppress(OSError):
            status = dict(
                line.split(":", 1) for line in (process / "status").read_text().splitlines()
            )
            if "VmRSS" not in status:  # it has ended, and nobody has looked at it yet
                continue
            if name == APISERVER:  # no part of the product
                yield "emulator/memory", int(status["VmRSS"].split()[0]) * 1024, pid
                continue
            yield f"memory/{name}", int(status["VmRSS"].split()[0]) * 1024, pid
            yield f"threads/{name}", int(status["Threads"]), pid
            yield f"descriptors/{name}", sum(1 for _ in (process / "fd").iterdir()), pid


async def _tasks(fleet: SoakFleet, session: aiohttp.ClientSession) -> list[Row]:
    pids = {name: pid for name, pid in fleet.processes().items() if _port(fleet, name)}
    counts = await asyncio.gather(
        *(metric(session, _port(fleet, name), _TASKS) for name in pids), return_exceptions=True
    )
    return [
        (f"tasks/{name}", count, pid)
        for (name, pid), count in zip(pids.items(), counts, strict=True)
        if isinstance(count, float)
    ]


def _port(fleet: SoakFleet, name: str) -> str:
    try:
        return fleet.health_file(name).read_text().strip()
    except OSError:  # a server, or a process that starts
        return ""


async def metric(session: aiohttp.ClientSession, port: str, name: str) -> float:
    """The sum of a metric of a process over its labels."""
    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
        samples = [s.value for family in families for s in family.samples if s.name == name]
    return float(sum(samples))


async def _valkey(redis: Redis) -> list[Row]:
    try:
        info = cast("dict[str, Any]", await cast("Any", redis.info()))
        keys = int(await cast("Any", redis.dbsize()))
    except (RedisError, OSError):
        return []
    life = int(info["process_id"])
    return [
        ("valkey/keys", keys, 0),  # they outlive the process
        ("valkey/bytes", info["used_memory"], life),
        ("valkey/clients", info["connected_clients"], life),
    ]


async def _nats(bus: Bus) -> list[Row]:
    rows: list[Row] = []
    consumers = 0
    try:
        for name, stream in _STREAMS.items():
            info = await stream_info(bus, stream)
            if info is None:
                continue
            state = info["state"]
            rows += [(f"{name}/{field}", state[field], 0) for field in ("messages", "bytes")]
            consumers += state["consumer_count"]
    except (BusError, OSError):
        return []
    return [*rows, ("nats/consumers", consumers, 0)]


def _disk(fleet: SoakFleet) -> Iterable[Row]:
    root = fleet.stack.plan.layout.root
    return [
        (f"disk/{name}", _size(root / name), 0) for name in ("nats", "valkey", "archive", "logs")
    ]


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # removed meanwhile
            size += path.stat().st_size
    return size
