"""Watchers as processes of their own, to be killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.processes.programs import installed
from support.rigs.watcher import Rig


@asynccontextmanager
async def process(
    rig: Rig, folder: Path, nats_url: str, replica: str = "p1", **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A watcher as a process of its own."""
    kubeconfig = folder / "kubeconfig"
    await asyncio.to_thread(rig.servers.write_kubeconfig, kubeconfig)
    arguments = ("--cluster", "alpha", "--replica", replica, "--kubeconfig", str(kubeconfig))
    async with running(*arguments, nats_url=nats_url, **environment) as child:
        yield child


@asynccontextmanager
async def running(
    *arguments: str, nats_url: str, **environment: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The command with these arguments; it watches config maps."""
    child = await asyncio.create_subprocess_exec(
        *installed("fleetbus-watcher", *arguments),
        env=os.environ
        | {
            "FLEETBUS_NATS_URL": nats_url,
            "FLEETBUS_WATCHER_RESOURCES": '["configmaps"]',
            "FLEETBUS_WATCHER_HEARTBEAT_BUSY": "100ms",
            "FLEETBUS_WATCHER_BACKOFF_FIRST": "50ms",
            "FLEETBUS_WATCHER_GRANT_PATIENCE": "0s",  # there is no projector to ask
            "FLEETBUS_WATCHER_AUDIT_SHORTEST": "0s",  # they come by chance
            **environment,
        },
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGCONT)
            child.terminate()
        await child.wait()
