"""Emulated clusters as a process of their own: API servers and the controllers of each cluster."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import resource
import secrets
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import serve_admin
from fleetbus_emulator.controllers import Timing, simulate
from fleetbus_emulator.files import (
    admin_port_file,
    ground_truth_folder,
    kubeconfig_file,
    lock_file,
)
from fleetbus_emulator.generate.endpoint import fill_routes
from fleetbus_emulator.loading import load_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

# Slow enough to watch, fast enough not to wait for: a Deployment is ready in about a second.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the process.

    Attributes:
        clusters: the names of the clusters.
        folder: where the kubeconfig and the port of the admin endpoint are written.
        admin_port: the port of the admin endpoint; 0 takes a free one.
        record: write the ground truth of each cluster to a file.
        instant: Pods start and stop at once.
        closed: those of them that serve HTTPS and admit only who has the token of the kubeconfig,
            which is a new one each time.
        progress_interval: how often the clusters' stores report progress, see `Cluster`.
    """

    clusters: Sequence[str]
    folder: Path
    admin_port: int = 0
    record: bool = False
    instant: bool = False
    closed: Sequence[str] = ()
    progress_interval: timedelta | None = None


def serve_clusters(options: Options) -> None:
    """Serve clusters until SIGTERM.

    Raises:
        OSError: the folder or the port cannot be used.
    """
    admin_port_file(options.folder).parent.mkdir(parents=True, exist_ok=True)
    _allow_many_connections()
    with _owned(options.folder):
        uvloop.run(_serve(options))


@contextlib.contextmanager
def _owned(folder: Path) -> Generator[None]:
    """Keep the folder from a second process, which would replace the first one's kubeconfig.

    Raises:
        OSError: another process owns it.
    """
    with lock_file(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"emulated clusters are already served from {folder}: stop them, or choose another"
                " --dir"
            ) from None
        yield


def _allow_many_connections() -> None:
    """Raise the limit of open files: each watch of each cluster holds a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the old limit serves some hundred watches
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(options: Options) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    progress = options.progress_interval
    tokens = {name: secrets.token_urlsafe() for name in options.closed}
    clusters = [
        Cluster(
            name,
            progress_interval=progress,
            tokens={tokens[name]: "admin"} if name in tokens else None,
        )
        for name in options.clusters
    ]
    async with contextlib.AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve(clusters, tls=tokens.keys()))
        if options.record:
            _record(clusters, ground_truth_folder(options.folder), exits)
        timing = Timing() if options.instant else _TIMING
        simulators = await exits.enter_async_context(simulate(clusters, timing=timing, seed=_SEED))
        more = [*fill_routes(servers), *load_routes(simulators)]
        admin = await exits.enter_async_context(
            serve_admin(servers, port=options.admin_port, more=more)
        )
        kubeconfig = kubeconfig_file(options.folder)
        port = admin.rpartition(":")[2]
        _write_whole(admin_port_file(options.folder), lambda temporary: temporary.write_text(port))
        # The file appears last: whoever waits for it may call the servers at once.
        _write_whole(kubeconfig, partial(servers.write_kubeconfig, token=tokens))
        sys.stdout.write(f"kubeconfig: {kubeconfig}\nadmin endpoint: {admin}\n")
        sys.stdout.flush()
        await stop.wait()


def _record(clusters: Iterable[Cluster], folder: Path, exits: contextlib.AsyncExitStack) -> None:
    folder.mkdir(exist_ok=True)
    for cluster in clusters:
        exits.enter_context(cluster.truth.recording(folder / f"{cluster.name}.jsonl"))


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically."""
    temporary = path.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    write(temporary)
    temporary.replace(path)
