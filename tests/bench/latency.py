"""From a change at the API server to the start of its reconcile, at a steady rate.

    python tests/run.py bench.latency [--rate 1000] [--seconds 20] [--json]

All parts run on this machine: emulated API server with the load generator, NATS, Valkey, one
watcher, one projector, two workers. Baseline of the same run: one process with kubernetes_asyncio's
Watch and a queue in memory, which keeps nothing when it dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.scratch import scratch_folder

HERE = pathlib.Path(__file__).parent
PODS = "v1/pods"
AT = "bench.fleetbus.dev/at"
OBJECTS = 5_000
TICK = 0.01
WARM_UP = 3.0
_HZ = os.sysconf("SC_CLK_TCK")


def pod(number: int) -> dict[str, Any]:
    """About 1.5 KB, as most objects of Kubernetes have."""
    filler = {f"bench.fleetbus.dev/filler-{i}": "x" * 80 for i in range(10)}
    return {
        "metadata": {"name": f"pod-{number}", "labels": {"app": "bench"}, "annotations": filler},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }


async def load(cluster: Cluster, rate: int, seconds: float) -> int:
    """Change objects in turn at a steady rate; answers how many changes were made."""
    loop = asyncio.get_running_loop()
    start, done = loop.time(), 0
    while (passed := loop.time() - start) < seconds:
        while done < passed * rate:
            at = {"metadata": {"annotations": {AT: repr(time.time())}}}
            cluster.patch(PODS, "default", f"pod-{done % OBJECTS}", at)
            done += 1
        await asyncio.sleep(TICK)
    return done


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HZ


class Process:
    """A subprocess of the benchmark and the CPU time it took during the load."""

    def __init__(
        self, name: str, command: list[str], env: dict[str, str], log: pathlib.Path
    ) -> None:
        self.name = name
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=os.environ | env, stdout=out, stderr=subprocess.STDOUT
            )
        self.before = 0.0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


async def ready(port_file: pathlib.Path, process: Process) -> None:
    import aiohttp  # noqa: PLC0415

    deadline = time.monotonic() + 30
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.process.poll() is not None:
                raise RuntimeError(f"{process.name} ended early")
            if port_file.exists():
                port = port_file.read_text().strip()
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"{process.name} does not get ready")


async def through_fleetbus(
    cluster: Cluster, folder: pathlib.Path, kubeconfig: pathlib.Path, rate: int, seconds: float
) -> dict[str, Any]:
    out = folder / "latencies"
    out.mkdir()
    scripts = pathlib.Path(sys.executable).parent
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await stack.enter_async_context(valkey_server(dir=folder / "valkey"))
        shared = {
            "FLEETBUS_NATS_URL": nats.url,
            "FLEETBUS_REDIS_URL": valkey.url,
            "FLEETBUS_PROVIDERS": json.dumps([{"type": "kubeconfig", "paths": [str(kubeconfig)]}]),
            "BENCH_OUT": str(out),
            "BENCH_START": repr(time.time() + 1e9),
        }
        processes: list[Process] = []

        async def start(name: str, command: list[str], **env: str) -> None:
            port_file = folder / f"{name}.port"
            one = Process(
                name,
                [str(scripts / command[0]), *command[1:]],
                shared | env | {"FLEETBUS_HEALTH_PORT_FILE": str(port_file)},
                folder / f"{name}.log",
            )
            stack.callback(one.stop)
            processes.append(one)
            await ready(port_file, one)

        await start("projector", ["fleetbus-reconciler"])
        await start(
            "watcher",
            ["fleetbus-watcher", "--cluster", "bench", "--kubeconfig", str(kubeconfig)],
            FLEETBUS_WATCHER_RESOURCES=json.dumps([PODS]),
        )
        begin = time.time() + WARM_UP + 6
        for number in (1, 2):
            await start(
                f"worker-{number}",
                ["fleetbus-reconciler", str(HERE / "latency_controller.py")],
                FLEETBUS_RECONCILER_PROJECTOR="false",
                BENCH_START=repr(begin),
            )
        await load(cluster, rate, begin - time.time())
        pids = {one.name: one.process.pid for one in processes}
        pids |= {"nats": nats.pid, "valkey": valkey.pid, "apiserver": os.getpid()}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        changes = await load(cluster, rate, seconds)
        cpu = {
            name: round((cpu_seconds(pid) - before[name]) / changes * 1e6)
            for name, pid in pids.items()
        }
        await asyncio.sleep(1)
    found = [value for path in out.glob("*.json") for value in json.loads(path.read_text())]
    return summary(found) | {"changes": changes, "cpu_us_per_change": cpu}


async def through_a_watch_in_memory(
    cluster: Cluster, kubeconfig: pathlib.Path, rate: int, seconds: float
) -> dict[str, Any]:
    """The baseline, in a process of its own: typed Watch → queue → handler."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "latency_baseline.py"),
        str(kubeconfig),
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it is watching
    await load(cluster, rate, WARM_UP)
    await load(cluster, rate, seconds)
    await asyncio.sleep(1)
    process.terminate()
    answer, _ = await process.communicate()
    return summary(json.loads(answer)[round(rate * WARM_UP) :])


def summary(latencies: list[float]) -> dict[str, Any]:
    if len(latencies) < 100:
        return {"runs": len(latencies), "error": "too few reconciles were seen"}
    cuts = statistics.quantiles(latencies, n=1000)
    milliseconds = {"p50": cuts[499], "p90": cuts[899], "p99": cuts[989], "max": max(latencies)}
    rounded = {name: round(value * 1000, 2) for name, value in milliseconds.items()}
    return {"runs": len(latencies)} | rounded


async def run(rate: int, seconds: float) -> dict[str, Any]:
    cluster = Cluster("bench")
    for number in range(OBJECTS):
        cluster.create(PODS, pod(number), "default")
    with scratch_folder("bench") as folder:
        async with serve([cluster]) as servers:
            kubeconfig = folder / "kubeconfig"
            servers.write_kubeconfig(kubeconfig)
            baseline = await through_a_watch_in_memory(cluster, kubeconfig, rate, seconds)
            ours = await through_fleetbus(cluster, folder, kubeconfig, rate, seconds)
    return {
        "benchmark": "change to reconcile started",
        "changes_per_second": rate,
        "seconds": seconds,
        "unit": "ms",
        "fleetbus": ours,
        "baseline: kubernetes_asyncio Watch in one process": baseline,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = asyncio.run(run(arguments.rate, arguments.seconds))
    print(f"{report['benchmark']}, {report['changes_per_second']}/s for {report['seconds']} s, ms")
    for name, row in report.items():
        if isinstance(row, dict):
            print(f"  {name}: {row}")
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
