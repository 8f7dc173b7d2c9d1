"""The process of the emulated clusters: their API servers, the load, and what checkers need.

    python tests/run.py faults.rig.world FOLDER SEED CLUSTER... [--only RESOURCE]
        [--target CLUSTER] [--labels]

The load changes all resources of `load`, or only one, whose objects may have labels. The target is
a cluster that the load leaves alone; for each config map of the others it has one,
`<cluster>.<name>`, for workers to write.
In the folder: `kubeconfig` and `admin` (the address of the admin endpoint, written last),
`truth/CLUSTER.jsonl` (every committed write) and `requests/CLUSTER.jsonl` (every request).
Besides the routes of the admin endpoint there are

    POST /load   {"rate": 1000}        writes per second from now on; 0 stops
    POST /dump   {"path": "final.json"}   what the clusters hold now; all requests are written
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import orjson
import uvloop
from aiohttp import web

from faults.rig.load import CONFIG_MAPS, RESOURCES, Writer, names_of
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.admin import serve_admin

_EVENTS = 30_000
"""Per type; only what is compacted on purpose is too old."""
_COMMITS = 200_000
_REQUEST_TICK = 0.1
_BOOKMARKS = timedelta(seconds=1)


class World:
    """The clusters and the writer.

    Args:
        folder: where the files go.
        clusters: those that the load changes.
        writer: the load.
        target: one that it does not.
    """

    def __init__(
        self, folder: Path, clusters: list[Cluster], writer: Writer, target: Cluster | None = None
    ) -> None:
        self._folder = folder
        self._loaded = clusters
        self._target = target
        self._clusters = [*clusters, *([target] if target else [])]
        self._writer = writer
        self._load: asyncio.Task[None] | None = None
        self._files: dict[str, IO[bytes]] = {}
        self._reported: dict[str, int] = {}

    def open(self, exits: contextlib.ExitStack) -> None:
        for kind in ("truth", "requests"):
            (self._folder / kind).mkdir()
        for cluster in self._clusters:
            path = self._folder / "truth" / f"{cluster.name}.jsonl"
            exits.enter_context(cluster.truth.recording(path))
            log = self._folder / "requests" / f"{cluster.name}.jsonl"
            self._files[cluster.name] = exits.enter_context(log.open("wb"))
        if self._target is not None:
            for name in target_names([cluster.name for cluster in self._loaded]):
                self._target.create(CONFIG_MAPS, {"metadata": {"name": name}}, "default")
        self._writer.fill()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/load", self._set_load), web.post("/dump", self._dump)]

    async def note_requests(self) -> None:
        while True:
            self._write_requests()
            await asyncio.sleep(_REQUEST_TICK)

    async def _set_load(self, request: web.Request) -> web.Response:
        rate = float((await request.json())["rate"])
        if self._load is not None:
            self._load.cancel()
            await asyncio.wait([self._load])
            if not self._load.cancelled():
                self._load.result()  # it broke by itself: tell
            self._load = None
        if rate:
            self._load = asyncio.create_task(self._writer.drive(rate), name="load")
        return web.json_response({"written": dict(self._writer.written)})

    async def _dump(self, request: web.Request) -> web.Response:
        path = Path((await request.json())["path"])
        path.write_bytes(orjson.dumps({c.name: _objects(c) for c in self._loaded}))
        self._write_requests()
        return web.json_response({"written": dict(self._writer.written)})

    def _write_requests(self) -> None:
        for cluster in self._clusters:
            last = self._reported.get(cluster.name, 0)
            fresh: list[dict[str, Any]] = []
            for request in reversed(cluster.requests):
                if request.number <= last:
                    break
                fresh.append(
                    {
                        "t": request.time.timestamp(),
                        "verb": request.verb,
                        "path": request.path,
                        "query": dict(request.query),
                        "agent": request.user_agent,
                        "status": request.status,
                        "rules": request.faults,
                    }
                )
                self._reported[cluster.name] = max(
                    self._reported.get(cluster.name, 0), request.number
                )
            file = self._files[cluster.name]
            file.writelines(orjson.dumps(line) + b"\n" for line in reversed(fresh))
            file.flush()


def _objects(cluster: Cluster) -> dict[str, dict[str, tuple[str, str]]]:
    """Resource key → object key → (uid, resourceVersion)."""
    objects: dict[str, dict[str, tuple[str, str]]] = {}
    for resource in RESOURCES:
        group, _, tail = resource.rpartition("/")[0].rpartition("/")
        del tail
        key = f"{group or 'core'}/{resource.rpartition('/')[2]}"
        objects[key] = {
            f"{o['metadata'].get('namespace', '')}/{o['metadata']['name']}": (
                o["metadata"]["uid"],
                o["metadata"]["resourceVersion"],
            )
            for o in cluster.shared(resource)
        }
    return objects


def target_names(clusters: Sequence[str]) -> list[str]:
    """The config maps of the target."""
    return [f"{cluster}.{name}" for cluster in clusters for name in names_of(CONFIG_MAPS)]


async def _serve(arguments: argparse.Namespace) -> None:
    folder, seed = arguments.folder, arguments.seed
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    clusters = [_cluster(name, seed) for name in arguments.clusters]
    target = _cluster(arguments.target, seed) if arguments.target else None
    resources = [arguments.only] if arguments.only else RESOURCES
    writer = Writer(clusters, seed, resources, labels=arguments.labels)
    world = World(folder, clusters, writer, target)
    with contextlib.ExitStack() as files:
        world.open(files)
        async with (
            serve([*clusters, target] if target else clusters) as servers,
            serve_admin(servers, more=world.routes()) as admin,
        ):
            servers.write_kubeconfig(folder / "kubeconfig")
            partial = folder / "admin.part"
            partial.write_text(admin)
            os.replace(partial, folder / "admin")  # noqa: PTH105 -- the atomic one
            noting = asyncio.create_task(world.note_requests(), name="requests")
            await stop.wait()
            noting.cancel()


def _cluster(name: str, seed: int) -> Cluster:
    return Cluster(
        name,
        seed=seed,
        bookmark_interval=_BOOKMARKS,
        event_capacity=_EVENTS,
        history_capacity=_COMMITS,
    )


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("clusters", nargs="+")
    parser.add_argument("--only", help="change this resource alone")
    parser.add_argument("--target", help="a cluster that is not changed")
    parser.add_argument("--labels", action="store_true", help="config maps have a label")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(_serve(_read_arguments()))
