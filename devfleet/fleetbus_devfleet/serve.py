"""The emulated clusters as one process: API servers and the controllers of each cluster."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import uvloop

from fleetbus_devfleet.stack.plan import admin_port_file
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import serve_admin
from fleetbus_emulator.controllers import Timing, simulate
from fleetbus_emulator.generate.endpoint import fill_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from fleetbus_devfleet.stack.plan import StackPlan

# Slow enough to watch, fast enough that nobody waits: a Deployment is ready in about a second.
_TIMING = Timing(
    schedule=timedelta(milliseconds=30),
    start=timedelta(milliseconds=400),
    ready=timedelta(milliseconds=300),
    stop=timedelta(milliseconds=300),
    run=timedelta(seconds=2),
    retry=timedelta(seconds=2),
    collect=timedelta(milliseconds=100),
    notice=timedelta(milliseconds=10),
    jitter=0.5,
)
# The delays of one run are those of the next.
_SEED = 1


def serve_clusters(plan: StackPlan, *, admin_port: int = 0) -> int:
    """Serve the clusters of a plan until SIGTERM; returns the exit status.

    Args:
        plan: which clusters, and where the kubeconfig and the port of the admin endpoint go.
        admin_port: the port of the admin endpoint; 0 takes a free one.
    """
    plan.layout.run.mkdir(parents=True, exist_ok=True)
    _allow_many_connections()
    uvloop.run(_serve(plan, admin_port))
    return 0


def _allow_many_connections() -> None:
    """As many files as the kernel lets us: each watch of each cluster holds a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the old limit serves some hundred watches
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(plan: StackPlan, admin_port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clusters = [Cluster(name, progress_interval=plan.progress_interval) for name in plan.names]
    async with contextlib.AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve(clusters))
        if plan.record:
            _record(clusters, plan.layout.truth, exits)
        timing = Timing() if plan.instant else _TIMING
        await exits.enter_async_context(simulate(clusters, timing=timing, seed=_SEED))
        admin = await exits.enter_async_context(
            serve_admin(servers, port=admin_port, more=fill_routes(servers))
        )
        sys.stdout.write(f"admin endpoint: {admin}\n")
        sys.stdout.flush()
        port = admin.rpartition(":")[2]
        _write_whole(admin_port_file(plan.layout), lambda part: part.write_text(port))
        # Whoever waits for the file may call the servers at once, so it comes last.
        _write_whole(plan.layout.kubeconfig, servers.write_kubeconfig)
        await stop.wait()


def _record(clusters: Iterable[Cluster], folder: Path, exits: contextlib.AsyncExitStack) -> None:
    folder.mkdir(exist_ok=True)
    for cluster in clusters:
        exits.enter_context(cluster.truth.recording(folder / f"{cluster.name}.jsonl"))


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that nobody sees a part of it."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    write(part)
    part.replace(path)
