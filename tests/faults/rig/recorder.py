"""Records the stream, the snapshot, memory and the bucket's writes for the checkers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import orjson
from nats.aio.msg import Msg
from redis.asyncio import Redis
from redis.exceptions import RedisError

from faults.rig.fleet import Fleet
from faults.rig.load import RESOURCES
from faults.rig.seeds import Planned
from fleetbus.bus.connection import Bus, connected
from fleetbus.errors import BusError
from fleetbus.snapshot.guard import read_guard
from fleetbus_proto import codec
from fleetbus_proto import keys as key_names
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.headers import MSG_ID
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import EPOCHS_ALL, STATUS_ALL, STREAM

_BATCH = 20_000
_SAMPLE = 1.0
_SUBJECTS = (STATUS_ALL, EPOCHS_ALL, f"$KV.{key_names.KV_BUCKET}.>")
KEYS = tuple(parse_resource(resource).key for resource in RESOURCES)

Json = dict[str, Any]


def checkpoints_of(cluster: str) -> str:
    """Return how the subjects of writes to the checkpoints of a cluster begin."""
    checkpoint = key_names.kv_checkpoint(cluster, "core", "pods", "")
    return f"$KV.{key_names.KV_BUCKET}.{checkpoint.partition('core')[0]}"


class Taps:
    """Receives markers, heartbeats and the bucket's writes while they happen.

    Args:
        bus: a connection of its own, not through any link.
        file: takes each write of the bucket as a line.
    """

    def __init__(self, bus: Bus, file: IO[bytes]) -> None:
        self._bus = bus
        self._file = file
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._checkpoints: dict[str, int] = {}

    async def start(self) -> None:
        for subject in _SUBJECTS:
            await self._bus.nc.subscribe(subject, cb=self._receive)

    async def wait(self, prefix: str, within: float) -> bool:
        """Wait for a message below a prefix; False if none came."""
        received: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((prefix, received))
        try:
            async with asyncio.timeout(within):
                await received
        except TimeoutError:
            return False
        finally:
            self._waiting = [w for w in self._waiting if w[1] is not received]
        return True

    def checkpointed(self, cluster: str, most: int) -> int:
        """The lowest version of the cluster's checkpoints; at most so much."""
        place = checkpoints_of(cluster)
        times = [at for key, at in self._checkpoints.items() if key.startswith(place)]
        return min(times, default=most)

    async def delete_stream(self, name: str) -> None:
        """As somebody does who should not."""
        await self._bus.request(f"$JS.API.STREAM.DELETE.{name}")

    async def _receive(self, message: Msg) -> None:
        if message.subject.startswith("$KV."):
            value = message.data.decode(errors="replace")
            line = {"t": time.time(), "key": message.subject.split(".", 2)[2], "value": value}
            self._file.write(orjson.dumps(line) + b"\n")
            self._file.flush()
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not a checkpoint
                self._checkpoints[message.subject] = int(orjson.loads(value)["resourceVersion"])
        for prefix, received in self._waiting:
            if message.subject.startswith(prefix) and not received.done():
                received.set_result(None)


@contextlib.asynccontextmanager
async def tapped(fleet: Fleet, folder: Path) -> AsyncGenerator[Taps]:
    """Taps of a fleet; the bucket's writes go to `kv.jsonl`."""
    with (folder / "kv.jsonl").open("wb") as file:
        async with connected(fleet.nats.url, name="campaign") as bus:
            taps = Taps(bus, file)
            await taps.start()
            yield taps


# --- while it runs ----------------------------------------------------------------------------


async def sample(fleet: Fleet, folder: Path) -> None:
    """Every second the memory of each service, and what changed in the snapshot, until cancelled.

    Raises:
        AssertionError: a service ended by itself.
    """
    redis = Redis.from_url(fleet.valkey.url)
    versions: dict[tuple[str, str], dict[str, str]] = {}
    with (folder / "memory.jsonl").open("wb") as memory, (folder / "rows.jsonl").open("wb") as rows:
        try:
            while True:
                for name, size in sizes(fleet):
                    memory.write(orjson.dumps([round(time.time(), 2), name, size]) + b"\n")
                with contextlib.suppress(RedisError):
                    rows.writelines([line async for line in _changed_rows(redis, fleet, versions)])
                memory.flush()
                rows.flush()
                await asyncio.sleep(_SAMPLE)
        finally:
            await redis.aclose()


def sizes(fleet: Fleet) -> Iterable[tuple[str, int]]:
    """Resident kilobytes of each service."""
    for name, child in fleet.services.items():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{child.pid}/status").read_text()
            for line in status.splitlines():
                if line.startswith("VmRSS:"):
                    yield f"{name}/{child.pid}", int(line.split()[1])


async def _changed_rows(
    redis: Redis, fleet: Fleet, versions: dict[tuple[str, str], dict[str, str]]
) -> AsyncGenerator[bytes]:
    for cluster in fleet.clusters:
        for resource in KEYS:
            versions_of = versions.setdefault((cluster, resource), {})
            for key, (uid, version, number, state) in (
                await read_rows(redis, cluster, resource)
            ).items():
                now = f"{number}|{uid}|{version}|{state}"
                if versions_of.get(key) != now:
                    versions_of[key] = now
                    row = [time.time(), cluster, resource, key, uid, version, number, state]
                    yield orjson.dumps(row) + b"\n"


async def read_rows(
    redis: Redis, cluster: str, resource: str
) -> dict[str, tuple[str, str, str, str]]:
    """Object key → uid, resourceVersion, incarnation number, state."""
    raw = await cast("Any", redis.hgetall(SnapshotKeys().guards(cluster, resource)))
    rows: dict[str, tuple[str, str, str, str]] = {}
    for key, value in raw.items():
        guard = read_guard(value)
        rows[key.decode()] = (guard.uid, guard.resource_version, guard.incarnation, guard.state)
    return rows


# --- at the end -------------------------------------------------------------------------------


async def read_snapshot(fleet: Fleet) -> dict[str, dict[str, dict[str, tuple[str, str]]]]:
    """Cluster → resource key → object key → (uid, resourceVersion) of what is alive."""
    async with Redis.from_url(fleet.valkey.url) as redis:
        return {
            cluster: {
                resource: {
                    key: (uid, version)
                    for key, (uid, version, _, state) in (
                        await read_rows(redis, cluster, resource)
                    ).items()
                    if state == "L"
                }
                for resource in KEYS
            }
            for cluster in fleet.clusters
        }


async def write_stream(fleet: Fleet, path: Path) -> int:
    """Write all messages of the stream to a file, in order; answers how many."""
    count = 0
    async with connected(fleet.nats.url, name="reader") as bus:
        reader = StreamReader(bus)
        with path.open("wb") as file:
            while messages := await reader.read():
                file.writelines(orjson.dumps(message) + b"\n" for message in messages)
                count += len(messages)
    return count


class StreamReader:
    """Reads the stream from its first message on, in batches.

    Args:
        bus: a connection of its own, not through any link.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last = 0

    async def read(self) -> Sequence[Json]:
        """The next messages, in order; none when nothing is new, or there is no stream.

        Raises:
            BusError: nobody answers.
        """
        lines = [_line(message) for message in await _read_batch(self._bus, self._last + 1)]
        self._last = lines[-1]["seq"] if lines else self._last
        return lines


async def _read_batch(bus: Bus, first: int) -> Sequence[Msg]:
    batch: list[Msg] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_message(message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Sequence" in headers:
            batch.append(message)
        if headers.get("Status") and not done.done():  # 204: the end; 404: nothing at all
            done.set_result(None)

    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(
        inbox, cb=on_message, pending_msgs_limit=0, pending_bytes_limit=0
    )
    request = {"seq": first, "batch": _BATCH, "next_by_subj": "fleetbus.>"}
    subject = f"$JS.API.DIRECT.GET.{STREAM}"
    await bus.nc.publish(subject, json.dumps(request).encode(), reply=inbox)
    try:
        async with asyncio.timeout(30):
            await done
    except TimeoutError as e:
        raise BusError("the stream cannot be read") from e
    finally:
        await subscription.unsubscribe()
    return batch


def _line(message: Msg) -> Json:
    headers = message.headers or {}
    record = {"seq": int(headers["Nats-Sequence"]), "at": headers["Nats-Time-Stamp"]}
    return record | {"id": headers.get(MSG_ID, "")} | _content(message.data)


def _content(data: bytes) -> Json:
    message = codec.decode(data)
    common: Json = {"cluster": message.cluster, "number": message.incarnation.number}
    if isinstance(message, Event):
        return common | {
            "type": message.verb.value,
            "resource": f"{message.group}/{message.resource}",
            "key": f"{message.namespace}/{message.name}",
            "uid": message.uid,
            "rv": message.resource_version,
            "rank": [message.epoch.resource_version, message.epoch.id],
            "swept": message.final_state_unknown,
            "degraded": message.degraded,
        }
    if isinstance(message, EpochEnd):
        return common | {
            "type": "end",
            "resource": f"{message.group}/{message.resource}",
            "rank": [message.epoch.resource_version, message.epoch.id],
            "count": message.count,
        }
    return common | {"type": "other"}


def write_meta(
    folder: Path,
    plan: Planned,
    *,
    began: float,
    stopped: float,
    writes: int,
    settled: float,
    **more: Any,
) -> None:
    """Write down what a phase was that ends now; `more` is what one campaign alone tells.

    Args:
        folder: of the phase; its name is the phase's.
        plan: of the seed.
        began: when the load began.
        stopped: when it stopped.
        writes: how many there were.
        settled: seconds until everybody agreed.
    """
    seconds = stopped - began
    meta = {
        "seed": plan.seed,
        "phase": folder.name,
        "mutation": plan.mutation,
        "began": began,
        "stopped": stopped,
        "ended": time.time(),
        "seconds": seconds,
        "writes": writes,
        "rate": writes / seconds,
        "settled_seconds": settled,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
        **more,
    }
    (folder / "meta.json").write_bytes(orjson.dumps(meta, option=orjson.OPT_INDENT_2))


def write_log(fleet: Fleet, path: Path) -> None:
    """Write down what was done so far."""
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in fleet.log))
