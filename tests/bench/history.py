"""Questions about the past: timelines, lists as of a time, what changed, what was deleted.

    python tests/run.py bench.history [--json]

A real NATS has a million events of 60,000 objects in 10 clusters, which a real Valkey has applied:
Deployments and ConfigMaps, and pods of ReplicaSets. One query API answers over HTTP. The period of
`changes` has 600,000 events, as ten minutes at 1,000 a second have. Beside it in the same run: what
it takes just to read the events of that period from the stream, without decoding them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds, rss_mb
from bench.rig.query_client import Client
from bench.rig.query_fleet import query_api
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import StreamLimits, ensure_prior_states, ensure_stream
from fleetbus.bus.stream_reads import read_messages
from fleetbus.bus.window import Window, open_window
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot import ClusterRecord, ResourceRecord, ResourceState, SnapshotWriter
from fleetbus.snapshot.prior_states import PriorStates
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, Verb, event_subject
from support.eventually import eventually

_KEY: Final = b"bench"
_NEVER_SILENT: Final = "2099-01-01T00:00:00Z"
_KINDS: Final = (
    ("apps", "deployments", "Deployment"),
    ("core", "configmaps", "ConfigMap"),
    ("core", "pods", "Pod"),
)
_BATCH: Final = 500
_BUSY: Final = 0.5
_DAYS: Final = timedelta(days=2)
_DRAINED: Final = timedelta(minutes=1)
_TEXT: Final = "x" * 700


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    events: int = 1_000_000
    objects: int = 60_000
    clusters: int = 10
    period: int = 600_000
    """Events in the period of `changes`."""
    questions: int = 20
    """Questions of each kind."""


TINY = Sizes(events=400, objects=60, clusters=2, period=200, questions=2)


@dataclass(slots=True)
class Load:
    """Writes events to the stream and to the snapshot, of a fleet that changes at random."""

    sizes: Sizes
    dice: random.Random
    version: int = 0
    alive: set[int] = field(default_factory=set[int])

    def place_of(self, index: int) -> tuple[str, str, str, str, str, str]:
        """Cluster, group, plural, kind, namespace and name of an object."""
        # One in six is a Deployment, one a ConfigMap; the others are pods.
        group, plural, kind = _KINDS[min(index % 6, 2)]
        cluster = f"cluster-{index // 6 % self.sizes.clusters:03d}"
        return cluster, group, plural, kind, f"team-{index // 60 % 20}", f"web-{index // 60}"

    def events(self, count: int) -> Iterator[Event]:
        """Each object once, then changes; one in ten deletes."""
        for _ in range(count):
            self.version += 1
            index = self.version - 1
            if index >= self.sizes.objects:
                index = self._next()
            verb = Verb.MODIFIED if index in self.alive else Verb.ADDED
            if verb is Verb.MODIFIED and self.dice.random() < 0.1:
                verb = Verb.DELETED
                self.alive.discard(index)
            else:
                self.alive.add(index)
            yield self._event(index, verb)

    def _next(self) -> int:
        """Half of the changes are of few objects: the busiest has one in ten."""
        if self.dice.random() < _BUSY:
            return int(self.dice.paretovariate(0.3)) % self.sizes.objects
        return self.dice.randrange(self.sizes.objects)

    def _event(self, index: int, verb: Verb) -> Event:
        cluster, group, plural, kind, namespace, name = self.place_of(index)
        tree: dict[str, Any] = {
            "apiVersion": "v1" if group == "core" else "apps/v1",
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{index}",
                "resourceVersion": str(self.version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app": f"app-{index % 50}"},
            },
            "spec": {"image": f"v{self.version % 7}", "text": _TEXT},
            "status": {"seen": self.version},
        }
        if kind == "Pod":
            owner = {"kind": "ReplicaSet", "name": name, "uid": f"rs-{index}", "controller": True}
            tree["metadata"]["ownerReferences"] = [owner]
        return Event(
            cluster=cluster,
            incarnation=Incarnation(1, "kube-system"),
            group=group,
            version="v1",
            resource=plural,
            kind=kind,
            namespace=namespace,
            name=name,
            uid=f"uid-{index}",
            resource_version=str(self.version),
            verb=verb,
            epoch=Rank("1", 1),
            observed_at="2026-01-01T00:00:00.000000Z",
            object=msgspec.json.encode(tree),
        )


async def _write(load: Load, count: int, writer: SnapshotWriter, window: Window) -> None:
    batch: list[Event] = []
    for event in load.events(count):
        subject = event_subject(
            event.cluster,
            event.group,
            event.resource,
            event.namespace,
            event.name,
            event.verb.value,
        )
        head = headers.build(event, _KEY)
        await window.publish(subject, codec.encode(event), head, lambda _ack: None)
        batch.append(event)
        if len(batch) == _BATCH:
            await writer.apply(batch)
            batch = []
    if batch:
        await writer.apply(batch)
    await window.drain(_DRAINED)


async def _put_records(writer: SnapshotWriter, sizes: Sizes) -> None:
    await writer.ensure_generation()
    for number in range(sizes.clusters):
        name = f"cluster-{number:03d}"
        reported: dict[str, Any] = {"last_answer": _NEVER_SILENT, "reported_at": _NEVER_SILENT}
        await writer.put_cluster(name, ClusterRecord(name=name, connected=True, **reported))
        for group, plural, kind in _KINDS:
            record = ResourceRecord(
                group=group,
                version="v1",
                plural=plural,
                kind=kind,
                state=ResourceState.SYNCED,
                last_received=_NEVER_SILENT,
            )
            await writer.put_resource_state(name, record)


@dataclass(frozen=True, slots=True)
class Past:
    """A fleet with a past.

    Attributes:
        middle: when the period of `changes` begins.
    """

    nats_url: str
    redis_url: str
    bus: Bus
    load: Load
    middle: datetime
    seconds: float
    """That it took to write."""


@asynccontextmanager
async def recorded(folder: Path, sizes: Sizes) -> AsyncGenerator[Past]:
    """A NATS and a Valkey with the events."""
    limits = StreamLimits(max_bytes=6 * 1024**3)
    async with (
        nats_server(store_dir=folder / "nats") as nats,
        valkey_server(dir=folder / "valkey") as valkey,
        connected(nats.url, name="bench") as bus,
    ):
        await ensure_stream(bus, limits)
        await ensure_prior_states(bus, limits)
        redis = await connect(valkey.url)
        try:
            keys = SnapshotKeys()
            writer, states = SnapshotWriter(redis, keys), PriorStates(redis, keys)
            await _put_records(writer, sizes)
            load = Load(sizes, random.Random(7))
            began = time.perf_counter()
            async with open_window(bus) as window:
                await _write(load, sizes.events - sizes.period, writer, window)
                middle = datetime.now(UTC)
                await states.note_clock(0, middle, kept=_DAYS)
                await _write(load, sizes.period, writer, window)
            seconds = time.perf_counter() - began
            yield Past(nats.url, valkey.url, bus, load, middle, seconds)
        finally:
            await redis.aclose()


async def measure(sizes: Sizes) -> dict[str, Any]:
    """The figures."""
    with scratch_folder("bench") as folder:
        async with recorded(folder, sizes) as past:
            figures: dict[str, Any] = {"events": sizes.events, "written_s": round(past.seconds, 1)}
            figures["stream_read"] = await _read_stream(past)
            async with query_api(folder, past.redis_url, nats_url=past.nats_url) as api:
                with Client(api.url) as client:
                    await eventually(lambda: client.ask("/fleet/v1/history")[0] == HTTPStatus.OK)
                    for name, paths in _questions(past, sizes).items():
                        figures[name] = _ask(client, api.pid, paths)
                figures["rss_mb"] = round(rss_mb(api.pid))
            return figures


async def _read_stream(past: Past) -> dict[str, Any]:
    """Read all events of the period, and do nothing with them."""
    began, count = time.perf_counter(), 0
    async for page in read_messages(past.bus, STREAM, EVENTS_ALL, start=past.middle):
        count += len(page)
    return {"events": count, "s": round(time.perf_counter() - began, 2)}


def _questions(past: Past, sizes: Sizes) -> dict[str, list[str]]:
    dice = random.Random(8)
    at = quote(rfc3339(past.middle))

    def timeline(index: int) -> str:
        cluster, group, plural, _, namespace, name = past.load.place_of(index)
        resource = plural if group == "core" else f"{plural}.{group}"
        return f"/fleet/v1/timeline/{cluster}/{resource}/{namespace}/{name}"

    some = [
        timeline(dice.randrange(sizes.objects // 2, sizes.objects)) for _ in range(sizes.questions)
    ]
    few = max(1, sizes.questions // 6)
    pods = "/fleet/v1/resources/pods?limit=100"
    return {
        "timeline": some,
        "timeline_busy": [timeline(index) for index in range(1, 1 + few)],
        "as_of": [f"{pods}&asOf={at}&namespace=team-{n % 20}" for n in range(sizes.questions)],
        "as_of_fleet": [f"{pods}&asOf={at}"] * few,
        "as_of_label": [f"{pods}&asOf={at}&labelSelector=app%3Dapp-2"] * few,
        "deleted": [f"/fleet/v1/deleted/configmaps?since={at}&limit=100"] * few,
        "changes": [f"/fleet/v1/changes?since={at}"] * few,
        "changes_deploy": [f"/fleet/v1/changes?since={at}&resource=deployments"] * few,
    }


def _ask(client: Client, pid: int, paths: list[str]) -> dict[str, Any]:
    times: list[float] = []
    cpu = cpu_seconds(pid)
    size = 0
    for path in paths:
        began = time.perf_counter()
        size = len(client.get(path))
        times.append(time.perf_counter() - began)
    ms: Callable[[float], float] = lambda seconds: round(seconds * 1e3, 1)  # noqa: E731
    return {
        "p50_ms": ms(statistics.median(times)),
        "worst_ms": ms(max(times)),
        "api_cpu_ms": ms((cpu_seconds(pid) - cpu) / len(paths)),
        "bytes": size,
    }


_KINDS_OF_QUESTIONS: Final = (
    *("timeline", "timeline_busy", "as_of", "as_of_fleet", "as_of_label", "deleted"),
    *("changes", "changes_deploy"),
)
_TARGETS: Final = {"timeline": 300, "as_of": 2000, "as_of_fleet": 2000, "changes": 5000}


def show(figures: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{figures['events']:,} events, written in {figures['written_s']} s")
    read = figures["stream_read"]
    print(f"  baseline: reading the {read['events']:,} events of the period: {read['s']} s")
    for name, timing in figures.items():
        if name not in _KINDS_OF_QUESTIONS:
            continue
        target = f" (<= {_TARGETS[name]})" if name in _TARGETS else ""
        print(
            f"  {name:15} p50 {timing['p50_ms']:8} ms{target}, worst {timing['worst_ms']} ms,"
            f" API CPU {timing['api_cpu_ms']} ms, {timing['bytes']:,} bytes"
        )
    print(f"  query API: {figures['rss_mb']} MB")


if __name__ == "__main__":
    run_command(measure, show, TINY)
