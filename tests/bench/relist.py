"""A watcher that lists: how long 50,000 pods take, what 100,000 cost, what a restart asks for.

    python tests/run.py bench.relist [--json]

The same canned API server as in watcher.py. The baselines of the same run are a watcher that knows
no atomic batches, the floor, which publishes as many messages of the same size, ready made and one
by one, through the same window, and kubernetes_asyncio, which lists the same pods with typed models
and does nothing with them. `in batches` says which share of the events the watcher sent so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from bench.rig.canned import (
    ALONE,
    canned_apiserver,
    nats_with_stream,
    watcher_command,
    watcher_words,
    write_kubeconfig,
)
from bench.rig.command import run_command
from bench.rig.processes import cpu_seconds, forget_peak, peak_mb, process, rss_mb
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.key_value import KeyValue
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.processes.programs import installed, module

PODS = parse_resource("v1/pods")
_ENDS = "fleetbus.epochs.eu1.core.pods"
_PATIENCE = timedelta(minutes=3)
_SAMPLES = 300
_SYNCS = {"sync_always": "<= 15", "default_sync": "<= 5"}
"""When NATS syncs to disk, and how many seconds a relist may take then."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the measurement."""

    objects: int = 50_000
    few: int = 1_000
    many: int = 100_000
    """The memory that `few` and `many` objects take; 0 leaves it out."""
    typed_objects: int = 5_000
    steady_after: float = 1.0
    """Seconds from the end of a relist until the memory that stays is measured."""
    syncs: int = len(_SYNCS)


TINY = Sizes(objects=600, few=0, many=0, typed_objects=600, steady_after=0.1, syncs=1)


# --- the watcher ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relist:
    """One relist of everything that there is."""

    objects: int
    seconds: float
    cpu_us: float
    """CPU of the watcher, per object."""
    peak_mb: float
    """The most resident memory while it lasted."""
    rss_mb: float
    """A second later."""
    nats_cpu_us: float
    """CPU of nats-server, per object."""
    batched: float
    """Which share of the events went in atomic batches, about."""


@asynccontextmanager
async def epoch_ends(nats_url: str) -> AsyncGenerator[asyncio.Queue[object]]:
    """The ends of epochs as they are published; a plain subscription, which costs nothing."""
    ends: asyncio.Queue[object] = asyncio.Queue()
    async with connected(nats_url, name="bench") as link:
        subscription = await link.nc.subscribe(_ENDS, cb=ends.put)
        await link.nc.flush()
        yield ends
        await subscription.unsubscribe()


async def next_end(ends: asyncio.Queue[object]) -> None:
    async with asyncio.timeout(_PATIENCE.total_seconds()):
        await ends.get()


async def measure_relist(
    folder: Path, objects: int, settles: float, *, sync_always: bool = False, singly: bool = False
) -> Relist:
    """List so many pods, then once more because somebody wants it; the second is measured."""
    words = watcher_words(folder / "kubeconfig")
    if singly:
        command = module("bench.programs.watcher_without_batches", *words)
    else:
        command = installed("fleetbus-watcher", *words)
    async with (
        canned_apiserver(folder, objects, 0) as url,
        nats_with_stream(folder, sync_always=sync_always) as nats,
        epoch_ends(nats.url) as ends,
        connected(nats.url, name="resync") as link,
    ):
        write_kubeconfig(folder, url)
        async with process(command, FLEETBUS_NATS_URL=nats.url, **ALONE) as child:
            await next_end(ends)
            forget_peak(child.pid)
            resync = ResyncRequest(min_epoch=time.time_ns() // 1_000_000 + 1, reason="bench")
            begun, cpu = time.perf_counter(), (cpu_seconds(child.pid), cpu_seconds(nats.pid))
            await request_resync(link, KeyValue(link), "eu1", PODS, resync)
            await next_end(ends)
            seconds = time.perf_counter() - begun
            spent = (cpu_seconds(child.pid) - cpu[0]) / objects * 1e6
            nats_spent = (cpu_seconds(nats.pid) - cpu[1]) / objects * 1e6
            peak = peak_mb(child.pid)
            await asyncio.sleep(settles)
            rss = rss_mb(child.pid)
        batched = await share_in_batches(link)
        return Relist(objects, seconds, spent, peak, rss, nats_spent, batched)


async def share_in_batches(link: Bus) -> float:
    """Looked up for a few hundred messages, evenly over the second half of the stream."""
    info = await stream_info(link)
    last = info["state"]["last_seq"] if info else 0
    looked = range(last // 2 + 1, last, max(last // 2 // _SAMPLES, 1))
    batched = 0
    for seq in looked:
        message = await link.request(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":%d}' % seq)
        batched += "Nats-Batch-Id" in (message.headers or {})
    return batched / max(len(looked), 1)


async def measure_restart(folder: Path, objects: int) -> dict[str, Any]:
    """Count the requests that a restarted watcher sends, as its API server counted them."""
    async with (
        canned_apiserver(folder, objects, 0) as url,
        nats_with_stream(folder) as nats,
        epoch_ends(nats.url) as ends,
    ):
        command = watcher_command(write_kubeconfig(folder, url))
        async with process(command, FLEETBUS_NATS_URL=nats.url, **ALONE):
            await next_end(ends)
        before = await asked(url)  # the stop has written the checkpoint
        async with process(command, FLEETBUS_NATS_URL=nats.url, **ALONE):
            begun = time.perf_counter()

            async def follows() -> dict[str, int]:
                now = await asked(url)
                new = {name: count - before[name] for name, count in now.items()}
                return new if new["watches"] else {}

            new = await eventually(follows, _PATIENCE)
            return {"objects": objects, **new, "seconds": time.perf_counter() - begun}


async def asked(url: str) -> dict[str, int]:
    async with aiohttp.ClientSession() as session, session.get(url + "/asked") as answer:
        return await answer.json()


# --- the baselines ----------------------------------------------------------------------------


async def measure_floor(folder: Path, objects: int, *, sync_always: bool) -> float:
    async with nats_with_stream(folder, sync_always=sync_always) as nats:
        words = (nats.url, str(objects))
        async with process(module("bench.programs.publish_floor", *words)) as child:
            out, _ = await child.communicate()
    return float(out)


async def measure_typed(folder: Path, objects: int) -> float:
    """CPU microseconds per pod."""
    async with canned_apiserver(folder, objects, 0) as url:
        kubeconfig = str(write_kubeconfig(folder, url))
        async with process(module("bench.programs.typed_list", kubeconfig)) as child:
            out, _ = await child.communicate()
    return float(out) / objects * 1e6


# --- the report -------------------------------------------------------------------------------


async def measure(sizes: Sizes) -> dict[str, Any]:
    report: dict[str, Any] = {"objects": sizes.objects}
    with scratch_folder("bench-relist") as folder:
        relist = partial(measure_relist, folder, settles=sizes.steady_after)
        for name in ("few", "many"):
            if count := getattr(sizes, name):
                report[name] = asdict(await relist(count))
        for name in list(_SYNCS)[: sizes.syncs]:
            always = name == "sync_always"
            batched = await relist(sizes.objects, sync_always=always)
            singly = await relist(sizes.objects, sync_always=always, singly=True)
            report[name], report[f"{name}_singly"] = asdict(batched), asdict(singly)
            report[f"{name}_floor_seconds"] = await measure_floor(
                folder, sizes.objects, sync_always=always
            )
        report["typed_list_cpu_us"] = await measure_typed(folder, sizes.typed_objects)
        report["restart"] = await measure_restart(folder, sizes.objects)
    return report


def show(report: dict[str, Any]) -> None:
    title = f"relist of {report['objects']:,} pods"
    print(f"{title:34}{'seconds':>10}{'singly':>10}{'floor':>10}{'in batches':>12}{'target':>8}")
    measured = [name for name in _SYNCS if name in report]
    for name in measured:
        figures, singly = report[name], report[f"{name}_singly"]
        times = f"{figures['seconds']:>10.2f}{singly['seconds']:>10.2f}"
        share = f"{figures['batched']:>12.0%}"
        print(f"{name:34}{times}{report[f'{name}_floor_seconds']:>10.2f}{share}{_SYNCS[name]:>8}")
        for key in ("cpu_us", "nats_cpu_us"):
            print(f"{f'{name}: {key} per pod':34}{figures[key]:>10.1f}{singly[key]:>10.1f}")
    figures, typed = report[measured[-1]]["cpu_us"], report["typed_list_cpu_us"]
    print(f"{'CPU us per pod; typed list':44}{figures:>10.1f}{typed:>10.1f}")
    if "few" in report and "many" in report:
        show_growth(report["few"], report["many"])
    restart = report["restart"]
    title = f"restart: lists of {restart['lists']} pages, probes {restart['probes']}"
    print(f"{title:44}{restart['seconds']:>10.2f}")


def show_growth(few: dict[str, Any], many: dict[str, Any]) -> None:
    for name in ("rss_mb", "peak_mb"):
        growth = many[name] - few[name]
        title = f"{name} of {few['objects']:,} and {many['objects']:,}, growth"
        print(f"{title:44}{few[name]:>10.1f}{many[name]:>10.1f}{growth:>10.1f}{'<= 5':>10}")


if __name__ == "__main__":
    run_command(measure, show, TINY)
