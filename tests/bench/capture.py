"""A capture of a large fleet: how long it takes, how large it is, and how soon it is open again.

    python tests/run.py bench.capture [--objects 20000] [--json]

The snapshot is in a real Valkey and holds realistic objects with their status. Baselines of the
same run: for the capture, gzip of the same bodies without reading them from anywhere; for its
memory, the peak of a `fleetbus capture` of definitions and namespaces only; for opening, the same
objects created one after the other through the API of the emulated server, scaled up from some
hundred.
"""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench.rig.command import run_command
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.access.store import StoreAccess
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import connect
from fleetbus_cli.capture.capture import CaptureOptions, capture
from fleetbus_cli.capture.reading import Capture
from fleetbus_devfleet.captures.opening import open_capture
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.files import admin_port_file, kubeconfig_file
from fleetbus_emulator.generate import fill
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import Verb
from support.eventually import eventually
from support.processes.programs import installed, module

CLUSTER, MAPS, TARGET_SECONDS = "hub", "v1/configmaps", 15
_BATCH = 500
_AT = "2026-01-02T03:04:05.000000Z"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    objects: int = 20_000
    created: int = 500
    """One after the other, for the baseline."""


TINY = Sizes(objects=60, created=3)


def generated(objects: int) -> Iterator[tuple[str, dict[str, Any]]]:
    cluster = Cluster(CLUSTER)
    kinds = list(fill(cluster, objects=objects))
    for gvr in kinds:
        for obj in cluster.shared(gvr):
            yield gvr, {**obj, "metadata": {**obj["metadata"], "managedFields": []}}


async def store_objects(url: str, objects: list[tuple[str, dict[str, Any]]]) -> None:
    async with await connect(url) as redis:
        writer = SnapshotWriter(redis, SnapshotKeys())
        await writer.ensure_generation()
        await writer.put_cluster(CLUSTER, ClusterRecord(name=CLUSTER, hub=True, connected=True))
        for gvr in {gvr for gvr, _ in objects}:
            resource = parse_resource(gvr)
            kind = next(str(obj["kind"]) for name, obj in objects if name == gvr)
            await writer.put_resource_state(
                CLUSTER,
                ResourceRecord(
                    group=resource.group,
                    version=resource.version,
                    plural=resource.plural,
                    kind=kind,
                ),
            )
        events = [_event(gvr, obj) for gvr, obj in objects]
        for start in range(0, len(events), _BATCH):
            await writer.apply(events[start : start + _BATCH])


def _event(gvr: str, obj: dict[str, Any]) -> Event:
    resource, meta = parse_resource(gvr), obj["metadata"]
    return Event(
        cluster=CLUSTER,
        incarnation=Incarnation(1, "uid"),
        group=resource.group,
        version=resource.version,
        resource=resource.plural,
        kind=str(obj["kind"]),
        namespace=str(meta.get("namespace", "")),
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        resource_version=str(meta["resourceVersion"]),
        verb=Verb.LISTED,
        epoch=Rank("1", 1),
        observed_at=_AT,
        object=orjson.dumps(obj),
    )


def peak_mib(url: str, path: Path, *words: str) -> float:
    """The peak memory of a command that captures.

    A small process starts it: the figure would include what this one had before.
    """
    command = installed("fleetbus", "capture", "-o", str(path), "--since", "0s", *words)
    program = module("bench.programs.peak_memory", *command, "--redis-url", url)
    return int(subprocess.run(program, capture_output=True, check=True).stdout) / 1024


def no_progress(objects: int, events: int) -> None:
    del objects, events


async def measure(sizes: Sizes) -> dict[str, Any]:
    with scratch_folder("bench") as folder:
        objects = list(generated(sizes.objects))
        bodies = [orjson.dumps(obj) for _, obj in objects]
        began = time.perf_counter()
        (folder / "plain.gz").write_bytes(gzip.compress(b"\n".join(bodies), 4))
        plain = time.perf_counter() - began
        async with valkey_server(dir=folder / "valkey") as server:
            await store_objects(server.url, objects)
            path = folder / "fleet.gz"
            options = CaptureOptions.read(
                out=path,
                since="0s",
                clusters=[],
                resources=[],
                redact=[],
                redact_values=False,
                keep_values=False,
                force=False,
            )
            began = time.perf_counter()
            await capture(options, store=StoreAccess(url=server.url), nats=None, report=no_progress)
            captured = time.perf_counter() - began
            small = peak_mib(server.url, folder / "small.gz", "-r", "namespaces")
            peak = peak_mib(server.url, folder / "whole.gz")
        opened = await _open(path, folder / "clusters", sizes)
        return {
            "objects": len(objects),
            "rawMiB": sum(map(len, bodies)) / 2**20,
            "captureSeconds": captured,
            "plainGzipSeconds": plain,
            "captureMiB": path.stat().st_size / 2**20,
            "plainGzipMiB": (folder / "plain.gz").stat().st_size / 2**20,
            "captureMemoryMiB": peak,
            "smallCaptureMemoryMiB": small,
            **opened,
        }


@contextmanager
def _emulator(folder: Path) -> Generator[None]:
    command = [sys.executable, "-m", "fleetbus_emulator", "--clusters", CLUSTER]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def _open(path: Path, folder: Path, sizes: Sizes) -> dict[str, Any]:
    with _emulator(folder):
        await eventually(kubeconfig_file(folder).exists)
        kubeconfig = kubeconfig_file(folder)
        url = f"http://127.0.0.1:{admin_port_file(folder).read_text()}"
        async with KubeClient(read_kube_config(kubeconfig, CLUSTER)) as client:
            began = time.perf_counter()
            for number in range(sizes.created):
                metadata = {"name": f"one-{number}", "namespace": "default"}
                await client.create(MAPS, {"metadata": metadata, "data": {"k": "x" * 1000}})
            each = (time.perf_counter() - began) / sizes.created
        began = time.perf_counter()
        opened = await open_capture(Capture.open(path), admin_url=url, kubeconfig=kubeconfig)
        seconds = time.perf_counter() - began
    return {
        "opened": opened.total,
        "openSeconds": seconds,
        "createdSeconds": each * opened.total,
    }


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['objects']} objects, {figures['rawMiB']:.0f} MiB as JSON")
    rows = (
        ("capture", "captureSeconds", "s", "plainGzipSeconds", "gzip of the bodies"),
        ("size of the file", "captureMiB", "MiB", "plainGzipMiB", "gzip of the bodies"),
        (
            "memory of capture",
            "captureMemoryMiB",
            "MiB",
            "smallCaptureMemoryMiB",
            "namespaces only",
        ),
        ("open", "openSeconds", "s", "createdSeconds", "created one by one"),
    )
    for title, name, unit, baseline, relation in rows:
        print(
            f"{title:<20}{figures[name]:>9.1f} {unit:<4} {relation} {figures[baseline]:.1f} {unit}"
        )
    print(f"target: {figures['opened']} objects opened in at most {TARGET_SECONDS} s")


if __name__ == "__main__":
    run_command(measure, show, TINY, asyncio.run)
