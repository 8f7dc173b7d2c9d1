"""Gathers the parts of a bundle; what cannot be read is noted in it, and the rest goes on."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.jetstream import call_jetstream, stream_info
from fleetbus.errors import BusError, StoreError
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.findings import Finding
from fleetbus.process.release import PARTS, release
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus.store.cluster import ClusterRedis
from fleetbus.workqueue.controllers import list_controllers
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.bundle.file import Bundle, clean_lines
from fleetbus_cli.bundle.hub_parts import add_hub
from fleetbus_cli.hub import Hub
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import Target
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, PRIOR_STREAM, STREAM

_STREAMS: Final = (STREAM, PRIOR_STREAM, DISTRIBUTION_STREAM, f"KV_{KV_BUCKET}")
_LINES: Final = 1000
_TAIL_BYTES: Final = 512 * 1024


async def gather(
    findings: Sequence[Finding], target: Target, nats: NatsAccess, store: StoreAccess, hub: Hub
) -> Bundle:
    """Gather everything.

    Args:
        findings: of the doctor.
        target: the fleet.
        nats: its NATS.
        store: its Redis or Valkey.
        hub: the flags that name the hub.
    """
    bundle = Bundle()
    bundle.add("versions.json", "the release, and where the command ran", _versions())
    shown = [asdict(finding) for finding in findings]
    bundle.add("findings.json", "what the doctor found", shown)
    try:
        async with connect_nats(nats, name="fleetbus-bundle") as bus:
            await _add_bus(bundle, bus)
    except BusError as e:
        bundle.lack("NATS", e)
    try:
        await _add_store(bundle, store)
    except (StoreError, RedisError, QueueUnavailableError) as e:
        bundle.lack("the store", e)
    await add_hub(bundle, hub)
    _add_dev_logs(bundle, target)
    return bundle


def _versions() -> dict[str, Any]:
    parts: dict[str, str] = {}
    for part in PARTS:
        try:
            parts[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            continue
    return {
        "release": release()._asdict(),
        "parts": parts,
        "python": sys.version,
        "platform": platform.platform(),
    }


async def _add_bus(bundle: Bundle, bus: Bus) -> None:
    state: dict[str, Any] = {"server": str(bus.nc.connected_server_version)}
    for name in _STREAMS:
        try:
            stream = await stream_info(bus, name)
            answer = await call_jetstream(bus, f"CONSUMER.LIST.{name}", {"offset": 0})
        except BusError as e:
            bundle.lack(f"stream {name}", e)
            continue
        state[name] = {"stream": stream, "consumers": answer.get("consumers")}
    bundle.add("nats.json", "configuration and state of streams and consumers", state)


async def _add_store(bundle: Bundle, access: StoreAccess) -> None:
    redis = await connect_store(access)
    async with redis:
        servers = list(redis.masters) if isinstance(redis, ClusterRedis) else [redis]
        state = [await cast("Any", server).info("all") for server in servers]
        bundle.add("store.json", "INFO of each server", state)
        queues = {
            name: await RedisQueue(redis, name).stats() for name in await list_controllers(redis)
        }
        shown = {name: _plain(stats) for name, stats in queues.items()}
        bundle.add("queues.json", "size of each queue, and its open breakers", shown)
        reader = SnapshotReader(redis, await find_shards(redis))
        clusters = await reader.available_clusters()
        records = {
            record.name: {
                "cluster": record,
                "resources": await reader.resources(record.name),
            }
            for record in clusters.records
        }
        about = "what the watchers report of each cluster"
        bundle.add("clusters.json", about, json.loads(msgspec.json.encode(records)))


def _plain(stats: Any) -> dict[str, Any]:
    fields = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
    depth = {f"{cluster} {priority.name}": n for (cluster, priority), n in stats.depth.items()}
    return {**fields, "depth": depth, "breakers": [asdict(one) for one in stats.breakers]}


def _add_dev_logs(bundle: Bundle, target: Target) -> None:
    """Add the log files of a dev fleet."""
    if not target.state_file:
        return
    try:
        parts = json.loads(Path(target.state_file).read_text(encoding="utf-8"))["parts"]
        for part in parts:
            lines = _tail(Path(part["log"]))
            about = f"the last {_LINES} lines of a process"
            bundle.add(f"logs/{part['name']}.log", about, clean_lines(lines))
    except (OSError, ValueError, KeyError, TypeError) as e:
        bundle.lack("logs of the dev fleet", e)


def _tail(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "replace").splitlines()[-_LINES:]
