"""The controller of the latency benchmarks: notes when each reconcile started, and what it cost."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import pathlib
import selectors
import socket
import sys
import time
from typing import Any

import fleetbus

PODS = "v1/pods"
AT = "bench.fleetbus.dev/at"
_NOTE_EVERY = 0.1

latencies: list[tuple[float, float]] = []
"""When the object was changed, and the seconds until its reconcile started."""
counts: list[tuple[float, int, int, int, int, int]] = []
"""The time, and until then: runs, turns of the event loop, sends, calls, callbacks of the loop."""

bench = fleetbus.Controller("bench", concurrency=32)
bench.watch(PODS)


class Counters:
    """Counts what event loops, sockets and, if it is asked for, the interpreter do here."""

    def __init__(self) -> None:
        self.runs = self.turns = self.sends = self.calls = self.callbacks = 0

    def install(self) -> None:
        """From now on."""
        select, send = selectors.EpollSelector.select, socket.socket.send

        def counted_select(selector: Any, timeout: Any = None) -> Any:
            self.turns += 1
            return select(selector, timeout)

        def counted_send(connection: Any, *arguments: Any) -> int:
            self.sends += 1
            return send(connection, *arguments)

        selectors.EpollSelector.select = counted_select  # type: ignore[method-assign]
        socket.socket.send = counted_send  # type: ignore[method-assign]

    def install_profile(self) -> None:
        """Count calls of functions, also of those in C, and callbacks: this slows the process."""
        run = asyncio.Handle._run

        def counted_run(handle: Any) -> Any:
            self.callbacks += 1
            return run(handle)

        def count_call(_frame: Any, event: str, _function: Any) -> None:
            if event in ("call", "c_call"):
                self.calls += 1

        asyncio.Handle._run = counted_run  # type: ignore[method-assign]
        sys.setprofile(count_call)


counters = Counters()
if os.environ.get("BENCH_COUNT"):
    counters.install()
if os.environ.get("BENCH_COUNT") == "calls":
    counters.install_profile()


@bench.reconcile
async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    started = time.time()
    pod = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
    annotations: dict[str, str] = pod["metadata"].get("annotations", {}) if pod else {}
    changed = float(annotations.get(AT, 0))
    # A change that came after the start belongs to the next run.
    if 0 < changed <= started:
        latencies.append((changed, started - changed))
    counters.runs += 1
    if not counts or started - counts[-1][0] > _NOTE_EVERY:
        of_loop = (counters.turns, counters.sends, counters.calls, counters.callbacks)
        counts.append((started, counters.runs, *of_loop))


def add_further(kind: str, number: int) -> None:
    """Controllers beside that of the benchmark, which change nothing."""
    for each in range(number):
        further = fleetbus.Controller(f"further-{each}", concurrency=32)
        if kind == "elsewhere":
            further.watch("v1/configmaps")
        else:
            further.watch(PODS, selector="" if kind == "runs" else "app=other")
        further.reconcile(read)
        globals()[f"further_{each}"] = further


async def read(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)


if chosen := os.environ.get("BENCH_FURTHER"):
    add_further(chosen, int(os.environ["BENCH_FURTHER_NUMBER"]))


@atexit.register
def write() -> None:
    path = pathlib.Path(os.environ["BENCH_OUT"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"latencies": latencies, "counts": counts}))
