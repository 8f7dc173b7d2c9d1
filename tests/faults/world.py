"""The process of the emulated clusters: their API servers, the load, and what checkers need.

    python tests/faults/world.py FOLDER SEED CLUSTER...

In the folder: `kubeconfig` and `admin` (the address of the admin endpoint, written last),
`truth/CLUSTER.jsonl` (every committed write) and `requests/CLUSTER.jsonl` (every request).
Besides the routes of the admin endpoint there are

    POST /load   {"rate": 1000}        writes per second from now on; 0 stops
    POST /dump   {"path": "final.json"}   what the clusters hold now; all requests are written
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import orjson
import uvloop
from aiohttp import web
from load import RESOURCES, Writer

from fleetbus_devfleet.apiserver import Cluster, serve
from fleetbus_devfleet.apiserver.admin import serve_admin

_EVENTS = 30_000
"""Per type; only what is compacted on purpose is too old."""
_COMMITS = 200_000
_REQUEST_TICK = 0.1
_BOOKMARKS = timedelta(seconds=1)


class World:
    """The clusters and the writer.

    Args:
        folder: where the files go.
        clusters: the clusters.
        seed: of the load.
    """

    def __init__(self, folder: Path, clusters: list[Cluster], seed: int) -> None:
        self._folder = folder
        self._clusters = clusters
        self._writer = Writer(clusters, seed)
        self._load: asyncio.Task[None] | None = None
        self._files: dict[str, IO[bytes]] = {}
        self._told: dict[str, int] = {}

    def open(self, exits: contextlib.ExitStack) -> None:
        for kind in ("truth", "requests"):
            (self._folder / kind).mkdir()
        for cluster in self._clusters:
            path = self._folder / "truth" / f"{cluster.name}.jsonl"
            exits.enter_context(cluster.truth.recording(path))
            log = self._folder / "requests" / f"{cluster.name}.jsonl"
            self._files[cluster.name] = exits.enter_context(log.open("wb"))
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
        path.write_bytes(orjson.dumps({c.name: _objects(c) for c in self._clusters}))
        self._write_requests()
        return web.json_response({"written": dict(self._writer.written)})

    def _write_requests(self) -> None:
        for cluster in self._clusters:
            last = self._told.get(cluster.name, 0)
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
                self._told[cluster.name] = max(self._told.get(cluster.name, 0), request.number)
            file = self._files[cluster.name]
            file.writelines(orjson.dumps(line) + b"\n" for line in reversed(fresh))
            file.flush()


def _objects(cluster: Cluster) -> dict[str, dict[str, tuple[str, str]]]:
    """Resource key → object key → (uid, resourceVersion)."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for resource in RESOURCES:
        group, _, rest = resource.rpartition("/")[0].rpartition("/")
        del rest
        key = f"{group or 'core'}/{resource.rpartition('/')[2]}"
        found[key] = {
            f"{o['metadata'].get('namespace', '')}/{o['metadata']['name']}": (
                o["metadata"]["uid"],
                o["metadata"]["resourceVersion"],
            )
            for o in cluster.shared(resource)
        }
    return found


async def _serve(folder: Path, seed: int, names: list[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    clusters = [
        Cluster(
            name,
            seed=seed,
            bookmark_interval=_BOOKMARKS,
            event_capacity=_EVENTS,
            history_capacity=_COMMITS,
        )
        for name in names
    ]
    world = World(folder, clusters, seed)
    with contextlib.ExitStack() as files:
        world.open(files)
        async with (
            serve(clusters) as servers,
            serve_admin(servers, more=world.routes()) as admin,
        ):
            servers.write_kubeconfig(folder / "kubeconfig")
            part = folder / "admin.part"
            part.write_text(admin)
            os.replace(part, folder / "admin")  # noqa: PTH105 -- the atomic one
            noting = asyncio.create_task(world.note_requests(), name="requests")
            await stop.wait()
            noting.cancel()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
