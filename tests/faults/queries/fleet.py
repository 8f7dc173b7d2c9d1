"""The processes of the campaign of the query API: as `rig.fleet`, with two query APIs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import aiohttp

from faults.queries.settings import APIS, QUERY_API, WATCHES
from faults.rig.fleet import Fleet
from faults.rig.load import CONFIG_MAPS
from faults.rig.settings import CLUSTERS, PROJECTOR, WATCHER, WATCHERS
from fleetbus_devfleet.processes.children import Child, ChildError
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver.admin import AdminClient
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.hostile.chaos_proxy import chaos_link
from support.processes.programs import installed, module

_READY: Final = timedelta(seconds=30)
_POLL_SECONDS: Final = 0.1


@dataclass
class QueryFleet(Fleet):
    """Everything that runs.

    Attributes:
        ports: of the query APIs, by name; they keep them.
        apis: the query APIs by name.
    """

    ports: dict[str, int] = field(default_factory=dict[str, int])
    apis: dict[str, Child] = field(default_factory=dict[str, Child])

    @property
    def services(self) -> dict[str, Child]:
        return {**super().services, **self.apis}

    @property
    def urls(self) -> list[str]:
        """The addresses of the query APIs."""
        return [f"http://{LOOPBACK}:{port}" for port in self.ports.values()]

    def start_services(self) -> None:
        environment = os.environ | {
            "FLEETBUS_REDIS_URL": self.valkey.url,
            "FLEETBUS_LOG_LEVEL": "info",
        }
        providers = [{"type": "kubeconfig", "paths": [str(self.folder / "kubeconfig")]}]
        self.projector = Child(
            "projector",
            module("faults.workers.projector"),
            log=self.folder / "projector.log",
            env=environment
            | PROJECTOR
            | {"FLEETBUS_NATS_URL": self.nats.url, "FLEETBUS_PROVIDERS": json.dumps(providers)},
        )
        for replica, cluster in WATCHERS.items():
            self.watchers[replica] = Child(
                replica,
                installed("fleetbus-watcher", *self._arguments(replica, cluster)),
                log=self.folder / f"{replica}.log",
                env=environment
                | WATCHER
                | WATCHES
                | {"FLEETBUS_NATS_URL": self.links[replica].url},
            )
        for name, port in self.ports.items():
            self.apis[name] = Child(
                name,
                self._api_program(),
                log=self.folder / f"{name}.log",
                env=environment | QUERY_API | {"FLEETBUS_QUERY_API_PORT": str(port)},
            )

    def _api_program(self) -> list[str]:
        if self.mutation:
            return module("faults.queries.mutants", self.mutation)
        return installed("fleetbus-query-api")

    async def wait_until_served(self) -> None:
        """Wait until both query APIs answer.

        Raises:
            ChildError: one does not.
        """
        deadline = asyncio.get_running_loop().time() + _READY.total_seconds()
        async with aiohttp.ClientSession() as http:
            for url in self.urls:
                while not await _answers(http, url):
                    if asyncio.get_running_loop().time() > deadline:
                        raise ChildError(f"{url} does not answer; the logs are in {self.folder}")
                    await asyncio.sleep(_POLL_SECONDS)

    async def aclose(self) -> None:
        """Stop the services."""
        for child in self.apis.values():
            child.kill()
        await super().aclose()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with http.get(f"{url}/kube/-/api") as answer:
            return answer.ok
    return False


@contextlib.asynccontextmanager
async def running_query_fleet(
    folder: Path, seed: int, *, mutation: str = ""
) -> AsyncGenerator[QueryFleet]:
    """All processes; at the end none is left. Call it from the main thread.

    Args:
        folder: where their files go.
        seed: of the load.
        mutation: a rule that the query APIs are without.
    """
    async with contextlib.AsyncExitStack() as exits:
        # No object is too large for the bus: all of them are watched with their content.
        nats = await exits.enter_async_context(nats_server(store_dir=folder / "nats"))
        valkey = await exits.enter_async_context(
            valkey_server(dir=folder / "valkey", appendonly=True)
        )
        words = [str(folder), str(seed), *CLUSTERS, "--only", CONFIG_MAPS, "--labels"]
        world = Child("world", module("faults.rig.world", *words), log=folder / "world.log")
        exits.callback(world.stop_blocking)
        admin_file = folder / "admin"
        await world.wait_until(admin_file.exists, within=_READY)
        ports = {name: HeldPort(LOOPBACK) for name in APIS}
        for port in ports.values():
            exits.callback(port.release)
        nats_port = int(nats.url.rpartition(":")[2])
        fleet = QueryFleet(
            folder=folder,
            nats=nats,
            valkey=valkey,
            world=world,
            admin=await exits.enter_async_context(AdminClient(admin_file.read_text())),
            admin_url=admin_file.read_text(),
            links={
                name: await exits.enter_async_context(chaos_link(nats_port)) for name in WATCHERS
            },
            mutation=mutation,
            ports={name: port.number for name, port in ports.items()},
        )
        exits.push_async_callback(fleet.aclose)
        fleet.start_services()
        yield fleet
