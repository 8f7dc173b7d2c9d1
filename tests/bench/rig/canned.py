"""A watcher beside a canned API server and a NATS of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from bench.rig.processes import process
from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from support.eventually import eventually
from support.processes.programs import installed, module

# Without a projector there is nobody to ask for a grant.
ALONE: Final = {"FLEETBUS_WATCHER_RESOURCES": '["pods"]', "FLEETBUS_WATCHER_GRANT_PATIENCE": "0s"}


@asynccontextmanager
async def canned_apiserver(folder: Path, objects: int, events: int) -> AsyncGenerator[str]:
    """A server process; yields its URL."""
    port_file = folder / f"port-{time.monotonic_ns()}"
    words = (str(objects), str(events), str(port_file))
    async with process(module("bench.programs.canned_apiserver", *words)):
        port = await eventually(
            lambda: port_file.exists() and port_file.read_text(), timedelta(seconds=30)
        )
        yield f"http://127.0.0.1:{port}"


def write_kubeconfig(folder: Path, url: str) -> Path:
    """The kubeconfig of one cluster that lets everybody in."""
    document: dict[str, Any] = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def watcher_words(kubeconfig: Path, replica: str = "r1") -> tuple[str, ...]:
    """The arguments of a watcher of the cluster."""
    return ("--cluster", "eu1", "--replica", replica, "--kubeconfig", str(kubeconfig))


def watcher_command(kubeconfig: Path, replica: str = "r1") -> list[str]:
    """A watcher of the cluster."""
    return installed("fleetbus-watcher", *watcher_words(kubeconfig, replica))


@asynccontextmanager
async def nats_with_stream(
    folder: Path, *, sync_always: bool = False
) -> AsyncGenerator[NatsServer]:
    """A NATS that has what a projector would make."""
    store = folder / f"nats-{time.monotonic_ns()}"
    async with (
        nats_server(store_dir=store, sync_always=sync_always) as nats,
        connected(nats.url, name="own") as owner,
    ):
        await ensure_stream(owner)
        await ensure_bucket(owner)
        yield nats
