"""Measures how much one flooding and one dead cluster move the latency of a third one.

    python tests/run.py bench.fairness [--flood 5000] [--seconds 35] [--json]

Pre-encoded events go straight into NATS: neither API servers nor watchers run. A projector and one
worker process do the rest. First `calm` changes alone, which is the baseline; then `flood` sends
its events beside it as fast as was asked, or as the machine goes, and each reconcile of `dead`
takes its whole timeout of 30 s. The latency is from the planned time of an event to the start of
its reconcile.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml

from bench.rig.command import run_command
from fleetbus.bus.connection import Bus, connected
from fleetbus.process.clock import rfc3339
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto import codec, headers
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb, event_subject
from support.processes.services import Processes
from support.wire.samples import MESSAGE_KEY

CONTROLLER: Final = str(pathlib.Path(__file__).parent / "programs" / "fairness_controller.py")
TICK = 0.005
VERSION = "0" * 16
"""Stands for the version in an encoded event; microseconds since 1970 have as many digits."""
CALM, DEAD, OBJECTS = 100, 20, 500
_STOP_PATIENCE = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    flood: int = 5_000
    """Events per second."""
    seconds: float = 35
    settle: float = 3
    """Seconds that are not measured before either part."""
    timeout: float = 30
    """Seconds until a reconcile that gets no answer ends."""


TINY = Sizes(flood=100, seconds=1.5, settle=0.5, timeout=1)


class Source:
    """One cluster: its events, encoded once, sent at a steady rate."""

    def __init__(self, cluster: str, rate: int) -> None:
        self.cluster = cluster
        self.rate = rate
        self.sent = 0
        self._templates = [self._encode(number) for number in range(OBJECTS)]

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
            verb=Verb.MODIFIED,
            epoch=Rank("1", 1),
            observed_at=rfc3339(datetime.now(UTC)),
            object=json.dumps({"metadata": {**metadata, "annotations": filler}}).encode(),
        )
        subject = event_subject(self.cluster, "core", "pods", "default", name, Verb.MODIFIED)
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
        subject, body, head = self._templates[index % OBJECTS]
        version = str(int(planned * 1e6))
        own = head | {"Nats-Msg-Id": f"{self.cluster}-{index % OBJECTS}-{version}"}
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
    with scratch_folder("bench") as folder:
        (out := folder / "waits").mkdir()
        async with AsyncExitStack() as stack:
            nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
            valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
            write_kubeconfig(folder / "kubeconfig", ["calm", "flood", "dead"])
            services = Processes(folder, folder / "kubeconfig", nats.url, valkey.url, [])
            await start(services, stack, BENCH_OUT=str(out), BENCH_TIMEOUT=str(sizes.timeout))
            async with connected(nats.url, name="bench") as bus:
                await calm.send(bus, time.time() + sizes.settle)
                alone = (time.time(), time.time() + sizes.seconds)
                await calm.send(bus, alone[1])
                settled = time.time() + sizes.settle
                beside = (settled, settled + sizes.seconds)
                async with asyncio.TaskGroup() as group:
                    for source in (calm, flooding, dead):
                        group.create_task(source.send(bus, beside[1]), name=source.cluster)
                await asyncio.sleep(1)
        [notes] = [json.loads(path.read_text()) for path in out.glob("*.json")]
    waits: list[tuple[float, float]] = notes["waits"]
    before, after = summary(waits, alone), summary(waits, beside)
    report: dict[str, Any] = {
        "alone": before,
        "beside a flood and a dead cluster": after,
        "flood: events sent per second": round(flooding.sent / (sizes.seconds + sizes.settle)),
        "started": notes["started"],
    }
    if "p99" in before and "p99" in after:
        report["p99 moved by, %"] = round((after["p99"] / before["p99"] - 1) * 100, 1)
    return report


async def start(services: Processes, stack: AsyncExitStack, **environment: str) -> None:
    """The projector and a worker, one after the other."""
    for name, modules in (("projector", []), ("worker", [CONTROLLER])):
        child = services.reconciler(name, *modules, projector=not modules, **environment)
        stack.push_async_callback(child.stop, patience=_STOP_PATIENCE)
        await services.ready(child)


def summary(waits: list[tuple[float, float]], span: tuple[float, float]) -> dict[str, Any]:
    """Summarize the changes planned in a span of time; milliseconds."""
    latencies = [wait * 1000 for planned, wait in waits if span[0] <= planned < span[1]]
    if len(latencies) < 100:
        return {"runs": len(latencies), "error": "too few reconciles were seen"}
    cuts = statistics.quantiles(latencies, n=100)
    figures = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(latencies)}
    return {"runs": len(latencies)} | {name: round(value, 1) for name, value in figures.items()}


def show(report: dict[str, Any]) -> None:
    print(f"calm: {CALM} changes/s, from the event to its reconcile, ms; default sync of NATS")
    for name, row in report.items():
        print(f"  {name}: {row}")
    print("target: p99 beside them is at most twice that alone")


if __name__ == "__main__":
    run_command(measure, show, TINY)
