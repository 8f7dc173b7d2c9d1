"""The archive: what an event costs, on the processor and on the disk, and one object's day.

    python tests/run.py bench.archive [--json]

The archiver, as a process, archives a stream of realistic pods into a folder. Then a day of small
events is archived by hand, and the history of one object is read from it. The baseline of the same
run are plain gzip files of JSON lines with the same events: their size, and how long it takes to
find the same object in them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds, peak_mb, process
from bench.rig.realistic_pods import make_pod
from fleetbus.archive import EventFilter, open_archive
from fleetbus.archive.chunk import Line, write_chunk
from fleetbus.archive.filter import key_of
from fleetbus.archive.lines import read_line, to_archive_line
from fleetbus.archive.names import ChunkName, stream_id
from fleetbus.bus.connection import connected
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import consumer_info, ensure_archiver
from fleetbus.bus.jetstream import StreamLimits, ensure_stream, stream_info
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.admission import subject_of
from fleetbus_proto.codec import encode
from fleetbus_proto.events import Event
from fleetbus_proto.headers import build
from support.eventually import eventually
from support.processes.programs import installed
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

_PATIENCE = timedelta(minutes=5)
_MIDNIGHT = datetime(2026, 11, 28, tzinfo=UTC)
_DAY = timedelta(days=1)
_CLUSTERS = 10
_LIMITS = {"resources": {"limits": {"cpu": "1", "memory": "512Mi"}}}
_READY = {"conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicas"}]}
_RESOURCES = ("deployments", "replicasets", "statefulsets", "daemonsets", "controllerrevisions")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    live: int = 40_000
    """Events that the archiver archives."""
    events: int = 1_000_000
    """Events of the day."""
    objects: int = 10_000
    """That change in it, equally often."""
    chunks: int = 288
    """Chunks of the day: one every five minutes."""


TINY = Sizes(live=300, events=2_000, objects=100, chunks=8)


@dataclass(frozen=True, slots=True)
class Archiving:
    """The cost of an event of the stream."""

    events_per_core: float
    """Per second of its processor time, its start included."""
    seconds: float
    line_bytes: float
    stored_bytes: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Day:
    """A day of events, in one form."""

    stored_bytes: float
    """Per event."""
    read_seconds: float
    """For the history of one object."""
    found: int
    write_seconds: float
    """To compress and write all of them."""


# --- the archiver -----------------------------------------------------------------------------


async def measure_archiver(folder: Path, count: int) -> Archiving:
    """Archive a stream that is there already."""
    archive = folder / "live"
    async with (
        nats_server(store_dir=folder / "nats") as nats,
        connected(nats.url, name="bench") as bus,
    ):
        await ensure_stream(bus, StreamLimits(max_bytes=8 * 1024**3))
        await ensure_archiver(bus)
        for number in range(count):
            event = _pod_event(number)
            await bus.nc.publish(
                subject_of(event), encode(event), headers=build(event, MESSAGE_KEY)
            )

        async def is_stored() -> bool:
            info = await stream_info(bus)
            return info is not None and info["state"]["last_seq"] == count

        async def is_archived() -> bool:
            await asyncio.sleep(0.1)
            info = await consumer_info(bus, ARCHIVER)
            return info is not None and not info["num_pending"] and not info["num_ack_pending"]

        await eventually(is_stored, _PATIENCE)
        began = time.perf_counter()
        where = {"FLEETBUS_ARCHIVER_URL": f"file://{archive}", "FLEETBUS_ARCHIVER_CHUNK_AGE": "1s"}
        async with process(
            installed("fleetbus-archiver"), FLEETBUS_NATS_URL=nats.url, **where
        ) as child:
            await eventually(is_archived, _PATIENCE)
            seconds, cpu, peak = (
                time.perf_counter() - began,
                cpu_seconds(child.pid),
                peak_mb(child.pid),
            )
    lines = sum(len(gzip.decompress(path.read_bytes())) for path in archive.rglob("*.gz"))
    stored = sum(path.stat().st_size for path in archive.rglob("*.gz"))
    return Archiving(count / cpu, seconds, lines / count, stored / count, peak)


def _pod_event(number: int) -> Event:
    pod = make_pod(number)
    body, metadata = json.dumps(pod, separators=(",", ":")).encode(), pod["metadata"]
    return Source().modified(
        metadata["name"],
        number + 1,
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        body=body,
    )


# --- a day ------------------------------------------------------------------------------------


def events_of_day(sizes: Sizes) -> Iterator[tuple[datetime, Event]]:
    """The events of a day, each object in its turn."""
    for number in range(sizes.events):
        at = _MIDNIGHT + _DAY * number / sizes.events
        index = number * 7919 % sizes.objects
        yield at, _small_event(index, number)


def _small_event(index: int, version: int) -> Event:
    source = Source(cluster=f"c{index % _CLUSTERS}", group="apps", resource=_RESOURCES[index % 5])
    template = {
        "containers": [{"name": "main", "image": f"registry/web:{version % 40}", **_LIMITS}]
    }
    body: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"web-{index}",
            "namespace": f"team-{index % 20}",
            "uid": f"uid-{index}",
            "resourceVersion": str(version),
            "generation": version // 7,
            "labels": {"app": f"web-{index}", "team": f"team-{index % 20}"},
        },
        "spec": {"replicas": version % 9, "template": {"spec": template}},
        "status": {"readyReplicas": version % 9, "observedGeneration": version // 7, **_READY},
    }
    return source.modified(
        f"web-{index}", version, namespace=f"team-{index % 20}", body=msgspec.json.encode(body)
    )


def _chunks(sizes: Sizes) -> Iterator[tuple[int, Sequence[Line], datetime, datetime]]:
    lines, first, start = list[Line](), 1, _MIDNIGHT
    share = sizes.events // sizes.chunks + 1
    for number, (at, event) in enumerate(events_of_day(sizes), start=1):
        lines.append(Line(key_of(event), number, to_archive_line(event, number, at)))
        if len(lines) == share or number == sizes.events:
            yield first, lines, start, at
            lines, first, start = [], number + 1, at


def write_day(folder: Path, sizes: Sizes) -> tuple[float, float]:
    """Write a day in both forms; returns the seconds for chunks and for plain files."""
    stream, spent = stream_id("2026-11-01T00:00:00Z"), [0.0, 0.0]
    (folder / "plain").mkdir(parents=True)
    for first, lines, start, end in _chunks(sizes):
        began = time.perf_counter()
        path = folder / "day" / ChunkName(stream, start, end, first, lines[-1].sequence).path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(write_chunk(lines))
        half = time.perf_counter()
        text = b"".join(line.text + b"\n" for line in lines)
        plain = folder / "plain" / f"{first:010}.jsonl.gz"
        plain.write_bytes(gzip.compress(text, compresslevel=6))
        spent = [spent[0] + half - began, spent[1] + time.perf_counter() - half]
    return spent[0], spent[1]


def read_plain(folder: Path, where: EventFilter) -> int:
    """Find an object in plain files, as quickly as that is possible without an index."""
    count, name = 0, msgspec.json.encode(where.name)
    for path in sorted((folder / "plain").iterdir()):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            count += name in line and where.matches(key_of(read_line(line)))
    return count


async def measure_day(folder: Path, sizes: Sizes) -> dict[str, Day]:
    """Write a day, and read one object of it."""
    seconds = await asyncio.to_thread(write_day, folder, sizes)
    index = sizes.objects // 3
    event = _small_event(index, 0)
    where = EventFilter(event.cluster, event.group, event.resource, event.namespace, event.name)
    began = time.perf_counter()
    archive = open_archive(f"file://{folder}/day")
    events = archive.events(where, start=_MIDNIGHT, end=_MIDNIGHT + _DAY)
    sequences = [stored_event.sequence async for stored_event in events]
    read = time.perf_counter() - began
    began = time.perf_counter()
    same = read_plain(folder, where)
    plain = time.perf_counter() - began
    assert len(sequences) == same
    return {
        "archive": Day(_size(folder / "day") / sizes.events, read, len(sequences), seconds[0]),
        "plain gzip": Day(_size(folder / "plain") / sizes.events, plain, same, seconds[1]),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.gz"))


async def measure(sizes: Sizes) -> dict[str, Any]:
    """Measure everything."""
    with scratch_folder("bench-archive") as folder:
        live = await measure_archiver(folder, sizes.live)
        day = await measure_day(folder, sizes)
    return {
        "events": sizes.events,
        "archiver": asdict(live),
        "day": {name: asdict(each_day) for name, each_day in day.items()},
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    live = figures["archiver"]
    print("the archiver, of pods          events/s per core  seconds  line B  stored B  peak MB")
    print(
        f"  from the stream to a folder  {live['events_per_core']:17,.0f}  {live['seconds']:7.1f}"
        f"  {live['line_bytes']:6,.0f}  {live['stored_bytes']:8,.0f}  {live['peak_mb']:7.0f}"
    )
    print(f"a day of {figures['events']:,} small events   B per event   one object, s   written, s")
    for name, cost in figures["day"].items():
        print(
            f"  {name:<34}  {cost['stored_bytes']:11,.0f}  {cost['read_seconds']:14.2f}"
            f"  {cost['write_seconds']:11.1f}"
        )


if __name__ == "__main__":
    run_command(measure, show, TINY)
