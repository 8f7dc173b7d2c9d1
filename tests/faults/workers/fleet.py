"""The processes of the campaign of workers: as `fleet`, with workers, and a Valkey that lasts."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from faults.rig.fleet import Fleet
from faults.rig.load import CONFIG_MAPS, MAX_PAYLOAD
from faults.rig.settings import PROJECTOR, WATCHER
from faults.workers.settings import (
    LONGEST_RUN,
    SOURCE_WATCHER,
    SOURCE_WATCHERS,
    SOURCES,
    TARGET,
    WORKER,
    WORKERS,
)
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.apiserver.admin import AdminClient
from support.processes.programs import installed, module

_READY = timedelta(seconds=30)


@dataclass
class WorkerFleet(Fleet):
    """Everything that runs.

    Attributes:
        seed: of the choices that workers make.
        longest: how many leases a run takes at most.
        workers: the workers by name.
        gone: those that were killed for good, as by somebody who wants fewer of them.
    """

    seed: int = 0
    longest: float = LONGEST_RUN
    workers: dict[str, Child] = field(default_factory=dict[str, Child])
    clusters: tuple[str, ...] = SOURCES
    gone: set[str] = field(default_factory=set[str])

    @property
    def services(self) -> dict[str, Child]:
        return {**super().services, **self.workers}

    def start_services(self) -> None:
        providers = [{"type": "kubeconfig", "paths": [str(self.folder / "kubeconfig")]}]
        environment = os.environ | {
            "FLEETBUS_REDIS_URL": self.valkey.url,
            "FLEETBUS_NATS_URL": self.nats.url,
            "FLEETBUS_LOG_LEVEL": "info",
        }
        serving = environment | {"FLEETBUS_PROVIDERS": json.dumps(providers)}
        self.projector = Child(
            "projector",
            module("faults.workers.projector"),
            log=self.folder / "projector.log",
            env=serving | PROJECTOR,
        )
        for replica, cluster in SOURCE_WATCHERS.items():
            self.watchers[replica] = Child(
                replica,
                installed("fleetbus-watcher", *self._arguments(replica, cluster)),
                log=self.folder / f"{replica}.log",
                env=environment | WATCHER | SOURCE_WATCHER,
            )
        for name in WORKERS:
            words = [str(self.folder), name, str(self.seed), str(self.longest)]
            words += [self.mutation] if self.mutation else []
            self.workers[name] = Child(
                name,
                module("faults.workers.worker", *words),
                log=self.folder / f"{name}.log",
                env=serving | WORKER,
            )

    async def aclose(self) -> None:
        """Stop the services."""
        for child in self.workers.values():
            child.kill()
        await super().aclose()


@contextlib.asynccontextmanager
async def running_worker_fleet(
    folder: Path, seed: int, *, longest: float, mutation: str = ""
) -> AsyncGenerator[WorkerFleet]:
    """All processes; at the end none is left. Call it from the main thread."""
    async with contextlib.AsyncExitStack() as exits:
        nats = await exits.enter_async_context(
            nats_server(store_dir=folder / "nats", max_payload=MAX_PAYLOAD)
        )
        valkey = await exits.enter_async_context(
            valkey_server(dir=folder / "valkey", appendonly=True)
        )
        words = [str(folder), str(seed), *SOURCES, "--only", CONFIG_MAPS, "--target", TARGET]
        world = Child("world", module("faults.rig.world", *words), log=folder / "world.log")
        exits.callback(world.stop_blocking)
        admin_file = folder / "admin"
        await world.wait_until(admin_file.exists, within=_READY)
        fleet = WorkerFleet(
            folder=folder,
            nats=nats,
            valkey=valkey,
            world=world,
            admin=await exits.enter_async_context(AdminClient(admin_file.read_text())),
            admin_url=admin_file.read_text(),
            links={},
            mutation=mutation,
            seed=seed,
            longest=longest,
        )
        exits.push_async_callback(fleet.aclose)
        fleet.start_services()
        yield fleet
