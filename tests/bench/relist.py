"""A watcher that lists: how long 50,000 pods take, what 100,000 cost, what a restart asks for.

    python tests/run.py bench.relist [--json]

The same canned API server as in watcher.py. The baselines of the same run are a watcher that knows
no atomic batches, the floor, which publishes as many messages of the same size, ready made and one
by one, through the same window, and kubernetes_asyncio, which lists the same pods with typed models
and does nothing with them. `in batches` says which share of the events the watcher sent so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from eventually import eventually

from bench.watcher import (
    ALONE,
    PAGE,
    bus,
    cpu_seconds,
    nats_with_stream,
    pod,
    process,
    rss_mb,
    server,
    watcher_command,
    write_kubeconfig,
)
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.window import Ack, open_window
from fleetbus.process.logs import set_up_logs
from fleetbus.watchers.resync import Wanted, want_epoch
from fleetbus_emulator.scratch import scratch_folder
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import STREAM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

FEW, OBJECTS, MANY = 1_000, 50_000, 100_000
TYPED_OBJECTS = 5_000
PODS = parse_resource("v1/pods")
_ENDS = "fleetbus.epochs.eu1.core.pods"
_PATIENCE = timedelta(minutes=3)
_STEADY_AFTER = 1.0
_SAMPLES = 300
# For the baseline: to the watcher, no message is ever dear enough for batches.
_SINGLY = "import fleetbus.batch; fleetbus.batch._DEAR = float('inf')\n"


# --- the watcher ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relist:
    """One relist of everything that there is."""

    objects: int
    seconds: float
    cpu_us: float
    """Of the watcher, per object."""
    peak_mb: float
    """The most resident memory while it lasted."""
    rss_mb: float
    """A second later."""
    nats_cpu_us: float
    """Of nats-server, per object."""
    batched: float
    """Which share of the events went in atomic batches, about."""


@asynccontextmanager
async def heard_ends(nats_url: str) -> AsyncGenerator[asyncio.Queue[object]]:
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
    folder: Path, objects: int, *, sync_always: bool = False, singly: bool = False
) -> Relist:
    """List so many pods, then once more because somebody wants it; the second is measured."""
    name, code, *rest = watcher_command(folder / "kubeconfig")
    command = (name, (_SINGLY if singly else "") + code, *rest)
    async with (
        server(folder, objects, 0) as url,
        nats_with_stream(folder, sync_always=sync_always) as nats,
        heard_ends(nats.url) as ends,
        connected(nats.url, name="wish") as link,
    ):
        write_kubeconfig(folder, url)
        async with process(*command, FLEETBUS_NATS_URL=nats.url, **ALONE) as child:
            await next_end(ends)
            forget_peak(child.pid)
            wish = Wanted(min_epoch=time.time_ns() // 1_000_000 + 1, reason="bench")
            begun, cpu = time.perf_counter(), (cpu_seconds(child.pid), cpu_seconds(nats.pid))
            await want_epoch(link, KeyValue(link), "eu1", PODS, wish)
            await next_end(ends)
            seconds = time.perf_counter() - begun
            spent = (cpu_seconds(child.pid) - cpu[0]) / objects * 1e6
            nats_spent = (cpu_seconds(nats.pid) - cpu[1]) / objects * 1e6
            peak = peak_mb(child.pid)
            await asyncio.sleep(_STEADY_AFTER)
            rss = rss_mb(child.pid)
        batched = await share_in_batches(link)
        return Relist(objects, seconds, spent, peak, rss, nats_spent, batched)


async def share_in_batches(link: Bus) -> float:
    """Looked up for a few hundred messages, evenly over the second half of the stream."""
    info = await stream_info(link)
    last = info["state"]["last_seq"] if info else 0
    looked = range(last // 2 + 1, last, max(last // 2 // _SAMPLES, 1))
    found = 0
    for seq in looked:
        message = await link.request(f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":%d}' % seq)
        found += "Nats-Batch-Id" in (message.headers or {})
    return found / max(len(looked), 1)


def forget_peak(pid: int) -> None:
    """Let the kernel measure the peak of a process anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def measure_restart(folder: Path, objects: int) -> dict[str, Any]:
    """What a restarted watcher asks its API server for; the answer of the server itself."""
    async with (
        server(folder, objects, 0) as url,
        bus(folder) as nats_url,
        heard_ends(nats_url) as ends,
    ):
        command = watcher_command(write_kubeconfig(folder, url))
        async with process(*command, FLEETBUS_NATS_URL=nats_url, **ALONE):
            await next_end(ends)
        before = await asked(url)  # the stop has written the checkpoint
        async with process(*command, FLEETBUS_NATS_URL=nats_url, **ALONE):
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


async def run_floor(nats_url: str, objects: int) -> None:
    """Publish ready made messages through the window: what the bus takes."""
    body = pod(1, 1)

    def settle(_: Ack) -> None:
        pass

    async with connected(nats_url, name="floor") as link, open_window(link) as window:
        begun = time.perf_counter()
        for index in range(objects):
            name = f"pod-{index}"
            subject = f"fleetbus.events.eu1.core.pods.ns.{name}.listed"
            await window.publish(subject, body, {"Nats-Msg-Id": name}, settle)
        await window.drain(_PATIENCE)
        print(time.perf_counter() - begun)


async def run_typed(kubeconfig: str) -> None:
    """kubernetes_asyncio lists with typed models, page by page."""
    from kubernetes_asyncio import client as kube_client  # noqa: PLC0415
    from kubernetes_asyncio import config  # noqa: PLC0415

    client: Any = kube_client
    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        begun, token = time.process_time(), ""
        while True:
            page = await core.list_pod_for_all_namespaces(limit=PAGE, _continue=token)
            token = page.metadata._continue
            if not token:
                break
    print(time.process_time() - begun)


async def measure_floor(folder: Path, *, sync_always: bool) -> float:
    async with bus(folder, sync_always=sync_always) as nats_url:
        role = ("--role", "floor", "--nats", nats_url)
        async with process(__file__, *role) as child:
            out, _ = await child.communicate()
    return float(out)


async def measure_typed(folder: Path) -> float:
    """CPU microseconds per pod."""
    async with server(folder, TYPED_OBJECTS, 0) as url:
        role = ("--role", "typed", "--file", str(write_kubeconfig(folder, url)))
        async with process(__file__, *role) as child:
            out, _ = await child.communicate()
    return float(out) / TYPED_OBJECTS * 1e6


# --- the report -------------------------------------------------------------------------------


async def main(*, as_json: bool) -> None:
    set_up_logs("text", "warning")  # the report is what goes to stdout
    with scratch_folder("bench-relist") as folder:
        few, many = [await measure_relist(folder, count) for count in (FEW, MANY)]
        report: dict[str, Any] = {
            "default_sync": asdict(await measure_relist(folder, OBJECTS)),
            "default_sync_singly": asdict(await measure_relist(folder, OBJECTS, singly=True)),
            "default_sync_floor_seconds": await measure_floor(folder, sync_always=False),
            "sync_always": asdict(await measure_relist(folder, OBJECTS, sync_always=True)),
            "sync_always_singly": asdict(
                await measure_relist(folder, OBJECTS, sync_always=True, singly=True)
            ),
            "sync_always_floor_seconds": await measure_floor(folder, sync_always=True),
            "typed_list_cpu_us": await measure_typed(folder),
            "few": asdict(few),
            "many": asdict(many),
            "restart": await measure_restart(folder, OBJECTS),
        }
    print_report(report)
    if as_json:
        print(json.dumps(report))


def print_report(report: dict[str, Any]) -> None:
    what = f"relist of {OBJECTS:,} pods"
    print(f"{what:34}{'seconds':>10}{'singly':>10}{'floor':>10}{'in batches':>12}{'target':>8}")
    for name, target in (("default_sync", "<= 5"), ("sync_always", "<= 15")):
        ours, singly = report[name], report[f"{name}_singly"]
        times = f"{ours['seconds']:>10.2f}{singly['seconds']:>10.2f}"
        share = f"{ours['batched']:>12.0%}"
        print(f"{name:34}{times}{report[f'{name}_floor_seconds']:>10.2f}{share}{target:>8}")
        for key in ("cpu_us", "nats_cpu_us"):
            print(f"{f'{name}: {key} per pod':34}{ours[key]:>10.1f}{singly[key]:>10.1f}")
    ours, typed = report["default_sync"]["cpu_us"], report["typed_list_cpu_us"]
    print(f"{'CPU us per pod; typed list':44}{ours:>10.1f}{typed:>10.1f}")
    few, many = report["few"], report["many"]
    for name, target in (("rss_mb", "<= 5"), ("peak_mb", "<= 5")):
        growth = many[name] - few[name]
        what = f"{name} of {FEW:,} and {MANY:,}, growth"
        print(f"{what:44}{few[name]:>10.1f}{many[name]:>10.1f}{growth:>10.1f}{target:>10}")
    restart = report["restart"]
    what = f"restart: lists of {restart['lists']} pages, probes {restart['probes']}"
    print(f"{what:44}{restart['seconds']:>10.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    for hidden in ("--role", "--nats", "--file"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    roles = {
        "floor": lambda: run_floor(given.nats, OBJECTS),
        "typed": lambda: run_typed(given.file),
        "": lambda: main(as_json=given.json),
    }
    asyncio.run(roles[given.role]())
