"""The controller of the latency benchmarks: notes when each reconcile started, and what it cost."""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import selectors
import socket
import time
from typing import Any

import fleetbus

PODS = "v1/pods"
AT = "bench.fleetbus.dev/at"
_NOTE_EVERY = 0.1

latencies: list[tuple[float, float]] = []
"""When the object was changed, and the seconds until its reconcile started."""
counts: list[tuple[float, int, int, int]] = []
"""The time, and until then: runs, turns of the event loop, sends."""

bench = fleetbus.Controller("bench", concurrency=32)
bench.watch(PODS)


class Counters:
    """Counts turns of event loops and sends in this process."""

    def __init__(self) -> None:
        self.runs = self.turns = self.sends = 0

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


counters = Counters()
if os.environ.get("BENCH_COUNT"):
    counters.install()


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
        counts.append((started, counters.runs, counters.turns, counters.sends))


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
