"""Measures how much joining, flooding and dead clusters move the latency of another one.

    python tests/run.py bench.fairness [--flood 2000] [--joining 2000] [--seconds 35] [--json]

Pre-encoded events go straight into NATS: neither API servers nor watchers run. A projector and one
worker process do the rest. First `calm` changes alone, which is the baseline; then clusters join
beside it, one after the other, each with a list of many objects; then `flood` sends its events as
fast as was asked, or as the machine goes, and each reconcile of `dead` takes its whole timeout of
30 s. The latency is from the planned time of an event to the start of its reconcile, and as a
baseline to an ordered consumer that receives the events of `calm` only and does nothing.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import yaml
from nats.aio.msg import Msg

from bench.rig.command import run_command
from fleetbus.bus.connection import Bus, connected
from fleetbus.process.clock import rfc3339
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import STREAM, Verb, event_subject, events_filter
from support.processes.services import Processes
from support.wire.samples import MESSAGE_KEY

CONTROLLER: Final = str(pathlib.Path(__file__).parent / "programs" / "fairness_controller.py")
TICK = 0.005
ALONE = "alone"
VERSION = "0" * 16
"""Stands for the version in an encoded event; microseconds since 1970 have as many digits."""
CALM, DEAD, OBJECTS = 100, 20, 500
LISTS_PER_SECOND = 2_000
"""Objects that a watcher lists in a second: about what one process publishes."""
_STOP_PATIENCE = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    flood: int = 2_000
    """Events per second."""
    joins: int = 6
    """Clusters that join, one after the other."""
    joining: int = 2_000
    """Objects of each of them."""
    after_join: float = 2
    """Seconds after the end of a list that are measured too: until then it is worked through."""
    seconds: float = 35
    settle: float = 3
    """Seconds that are not measured before either part."""
    timeout: float = 30
    """Seconds until a reconcile that gets no answer ends."""


TINY = Sizes(flood=100, joins=2, joining=20, after_join=0.6, seconds=1.5, settle=0.5, timeout=1)

Waits: TypeAlias = list[tuple[float, float]]
"""When a change was planned, and how long after that it arrived; in seconds."""
Span: TypeAlias = tuple[float, float]


class Source:
    """One cluster: its events, encoded once, sent at a steady rate."""

    def __init__(
        self, cluster: str, rate: int, *, objects: int = OBJECTS, verb: Verb = Verb.MODIFIED
    ) -> None:
        self.cluster = cluster
        self.rate = rate
        self.sent = 0
        self._verb = verb
        self._templates = [self._encode(number) for number in range(objects)]

    def _encode(self, number: int) -> tuple[str, bytes, dict[str, str]]:
        name = f"pod-{number}"
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": VERSION}
        filler = {f"bench.fleetbus.dev/filler-{i}": "x" * 80 for i in range(10)}
        event = Event(
            cluster=self.cluster,
            incarnation=Incarnation(1, f"uid-of-{self.cluster}"),
            group="core",
            version="v1",
            resource="pods",
            kind="Pod",
            namespace="default",
            name=name,
            uid=name,
            resource_version=VERSION,
            verb=self._verb,
            epoch=Rank("1", 1),
            observed_at=rfc3339(datetime.now(UTC)),
            object=json.dumps({"metadata": {**metadata, "annotations": filler}}).encode(),
        )
        subject = event_subject(self.cluster, "core", "pods", "default", name, self._verb)
        return subject, codec.encode(event), headers.build(event, MESSAGE_KEY)

    async def send(self, bus: Bus, until: float) -> None:
        """Publish until then; what is late is sent at once, with the time it was planned for."""
        begin, done = time.time(), 0
        while (now := time.time()) < until:
            due = min(int((now - begin) * self.rate), done + 1000)
            for index in range(done, due):
                await self._publish(bus, index, begin + (index + 1) / self.rate)
            done = due
            await asyncio.sleep(TICK)
        self.sent += done

    async def _publish(self, bus: Bus, index: int, planned: float) -> None:
        subject, body, head = self._templates[index % len(self._templates)]
        version = str(int(planned * 1e6))
        own = head | {"Nats-Msg-Id": f"{self.cluster}-{index}-{version}"}
        await bus.nc.publish(subject, body.replace(VERSION.encode(), version.encode()), headers=own)


def write_kubeconfig(path: pathlib.Path, names: list[str]) -> None:
    """Clusters that nobody can reach: nothing here asks an API server."""
    server = {"server": "https://127.0.0.1:1"}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in names],
                "clusters": [{"name": n, "cluster": server} for n in names],
                "users": [{"name": n, "user": {"token": "t"}} for n in names],
            }
        )
    )


async def measure(sizes: Sizes) -> dict[str, Any]:
    calm, flooding, dead = (
        Source(name, rate)
        for name, rate in (("calm", CALM), ("flood", sizes.flood), ("dead", DEAD))
    )
    joining = [
        Source(f"join-{n}", LISTS_PER_SECOND, objects=sizes.joining, verb=Verb.LISTED)
        for n in range(sizes.joins)
    ]
    received: Waits = []
    with scratch_folder("bench") as folder:
        (out := folder / "waits").mkdir()
        async with AsyncExitStack() as stack:
            nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
            valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
            names = [source.cluster for source in (calm, flooding, dead, *joining)]
            write_kubeconfig(folder / "kubeconfig", names)
            services = Processes(folder, folder / "kubeconfig", nats.url, valkey.url, [])
            await start(services, stack, BENCH_OUT=str(out), BENCH_TIMEOUT=str(sizes.timeout))
            bus = await stack.enter_async_context(connected(nats.url, name="bench"))
            await stack.enter_async_context(receiving(bus, received))
            await calm.send(bus, time.time() + sizes.settle)
            alone = (time.time(), time.time() + sizes.seconds)
            await calm.send(bus, alone[1])
            joins = await join(bus, calm, joining, sizes)
            settled = time.time() + sizes.settle
            beside = (settled, settled + sizes.seconds)
            await send_together(bus, [calm, flooding, dead], beside[1])
            await asyncio.sleep(1)
        [notes] = [json.loads(path.read_text()) for path in out.glob("*.json")]
    spans = {
        ALONE: [alone],
        "while clusters join": joins,
        "beside a flood and a dead cluster": [beside],
    }
    rows = {
        name: {"bare subscriber": summary(received, each), "reconcile": summary(waits, each)}
        for waits in [notes["waits"]]
        for name, each in spans.items()
    }
    return {
        **rows,
        "p99, times that alone": {
            name: {stage: ratio(row[stage], rows[ALONE][stage]) for stage in row}
            for name, row in rows.items()
            if name != ALONE
        },
        "flood: events sent per second": round(flooding.sent / (sizes.seconds + sizes.settle)),
        "started": notes["started"],
    }


async def join(bus: Bus, calm: Source, joining: Sequence[Source], sizes: Sizes) -> list[Span]:
    """Let clusters list all of their objects, one after the other; when each was worked through."""
    spans: list[Span] = []
    for source in joining:
        begin = time.time()
        end = begin + sizes.joining / source.rate
        spans.append((begin, end + sizes.after_join))
        async with asyncio.TaskGroup() as group:
            group.create_task(calm.send(bus, spans[-1][1]), name=calm.cluster)
            group.create_task(source.send(bus, end), name=source.cluster)
        await calm.send(bus, time.time() + sizes.after_join)
    return spans


async def send_together(bus: Bus, sources: Sequence[Source], until: float) -> None:
    async with asyncio.TaskGroup() as group:
        for source in sources:
            group.create_task(source.send(bus, until), name=source.cluster)


@asynccontextmanager
async def receiving(bus: Bus, received: Waits) -> AsyncGenerator[None]:
    """Note until the end of the block when each change of `calm` arrived at a bare subscriber."""

    async def note(message: Msg) -> None:
        version = (message.headers or {})["Nats-Msg-Id"].rpartition("-")[2]
        received.append((int(version) / 1e6, time.time() - int(version) / 1e6))

    subscription = await bus.nc.jetstream().subscribe(
        events_filter(cluster="calm"), stream=STREAM, cb=note, ordered_consumer=True
    )
    try:
        yield
    finally:
        await subscription.unsubscribe()


async def start(services: Processes, stack: AsyncExitStack, **environment: str) -> None:
    """The projector and a worker, one after the other."""
    for name, modules in (("projector", []), ("worker", [CONTROLLER])):
        child = services.reconciler(name, *modules, projector=not modules, **environment)
        stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
        await services.ready(child)


def summary(waits: Waits, spans: Sequence[Span]) -> dict[str, Any]:
    """Summarize the changes planned in these times; milliseconds."""
    latencies = [wait * 1000 for planned, wait in waits if any(a <= planned < b for a, b in spans)]
    if len(latencies) < 100:
        return {"runs": len(latencies), "error": "too few were seen"}
    cuts = statistics.quantiles(latencies, n=100)
    figures = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(latencies)}
    return {"runs": len(latencies)} | {name: round(value, 1) for name, value in figures.items()}


def ratio(row: dict[str, Any], baseline: dict[str, Any]) -> float | None:
    has_both = "p99" in row and "p99" in baseline
    return round(row["p99"] / baseline["p99"], 1) if has_both else None


def show(report: dict[str, Any]) -> None:
    print(f"calm: {CALM} changes/s, ms from the event on; default sync of NATS")
    for name, row in report.items():
        print(f"  {name}: {row}")
    print("targets: p99 to the reconcile at most 2 times that alone while clusters join,")
    print("  and 3 times beside a flood of 2,000/s")


if __name__ == "__main__":
    run_command(measure, show, TINY)
