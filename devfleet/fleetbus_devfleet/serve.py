"""The emulated clusters as one process: API servers and the controllers of each cluster."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import uvloop

from fleetbus_devfleet.apiserver import ApiServers, Cluster, serve
from fleetbus_devfleet.sim import Timing, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from fleetbus_devfleet.plan import StackPlan

# Slow enough to watch, fast enough that nobody waits: a Deployment is ready in about a second.
_TIMING = Timing(
    schedule=timedelta(milliseconds=30),
    start=timedelta(milliseconds=400),
    ready=timedelta(milliseconds=300),
    stop=timedelta(milliseconds=300),
    run=timedelta(seconds=2),
    retry=timedelta(seconds=2),
    collect=timedelta(milliseconds=100),
    jitter=0.5,
)
# The delays of one run are those of the next.
_SEED = 1


def serve_clusters(plan: StackPlan) -> int:
    """Serve the clusters of a plan until SIGTERM; returns the exit status."""
    plan.layout.root.mkdir(parents=True, exist_ok=True)
    uvloop.run(_serve(plan))
    return 0


async def _serve(plan: StackPlan) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clusters = [Cluster(name) for name in plan.names]
    async with contextlib.AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve(clusters))
        await exits.enter_async_context(simulate(clusters, timing=_TIMING, seed=_SEED))
        # Whoever waits for the file may call the servers at once, so it comes last and whole.
        _write_kubeconfig(servers, plan.layout.kubeconfig)
        await stop.wait()


def _write_kubeconfig(servers: ApiServers, path: Path) -> None:
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    servers.write_kubeconfig(part)
    part.replace(path)
