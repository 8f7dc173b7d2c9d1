"""The processes of a campaign: clusters, NATS, Valkey, projector, watchers, and their links.

A further service is one more entry of `_start_services`; whoever breaks it finds it in `services`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from faults.rig.load import MAX_PAYLOAD
from faults.rig.settings import CLUSTERS, PROJECTOR, WATCHER, WATCHERS
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from fleetbus_emulator.apiserver.admin import AdminClient
from support.hostile.chaos_proxy import Link, chaos_link
from support.processes.programs import installed, module
from support.servers.nats_cluster import NatsCluster, nats_cluster

_READY = timedelta(seconds=30)


@dataclass
class Fleet:
    """Everything that runs.

    Attributes:
        folder: where its files are.
        watchers: the watchers by replica.
        links: their ways to NATS.
        projector: the reconciler service, with nothing but the projector.
        admin: breaks the clusters.
    """

    folder: Path
    nats: NatsServer | NatsCluster
    valkey: ValkeyServer
    world: Child
    admin: AdminClient
    admin_url: str
    links: dict[str, Link]
    mutation: str = ""
    watchers: dict[str, Child] = field(default_factory=dict[str, Child])
    projector: Child | None = None
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    clusters: tuple[str, ...] = CLUSTERS

    def note(self, kind: str, **more: Any) -> None:
        """Append a line to the log of what was done."""
        self.log.append({"t": time.time(), "kind": kind, **more})

    # --- services -----------------------------------------------------------------------------

    @property
    def services(self) -> dict[str, Child]:
        """Everything that is ours, by name."""
        assert self.projector is not None
        return {**self.watchers, "projector": self.projector}

    def start_services(self) -> None:
        environment = os.environ | {
            "FLEETBUS_REDIS_URL": self.valkey.url,
            "FLEETBUS_LOG_LEVEL": "info",
        }
        providers = [{"type": "kubeconfig", "paths": [str(self.folder / "kubeconfig")]}]
        self.projector = Child(
            "projector",
            installed("fleetbus-reconciler"),
            log=self.folder / "projector.log",
            env=environment
            | PROJECTOR
            | {
                "FLEETBUS_NATS_URL": self.nats.url,
                "FLEETBUS_RECONCILER_BUS_REPLICAS": str(self.nats_replicas),
                "FLEETBUS_PROVIDERS": json.dumps(providers),
            },
        )
        for replica, cluster in WATCHERS.items():
            self.watchers[replica] = Child(
                replica,
                self._watcher_program(*self._arguments(replica, cluster)),
                log=self.folder / f"{replica}.log",
                env=environment | WATCHER | {"FLEETBUS_NATS_URL": self._nats_url_of(replica)},
            )

    def _nats_url_of(self, replica: str) -> str:
        """Its link; of a cluster the other servers, too, or a link that breaks would be the end."""
        link = self.links[replica]
        if isinstance(self.nats, NatsServer):
            return link.url
        others = [m.name for m in self.nats.members.values() if m.port != link.target]
        return f"{link.url},{self.nats.url_of(*others)}"

    def _watcher_program(self, *arguments: str) -> list[str]:
        if self.mutation:
            return module("faults.watchers.mutants", self.mutation, *arguments)
        return installed("fleetbus-watcher", *arguments)

    def _arguments(self, replica: str, cluster: str) -> list[str]:
        kubeconfig = str(self.folder / "kubeconfig")
        return [
            *("--cluster", cluster, "--replica", replica),
            *("--kubeconfig", kubeconfig, "--context", cluster),
        ]

    def kill(self, name: str, why: str) -> None:
        """SIGKILL one of our services; one that is dead already does not count."""
        if self.services[name].is_running:
            self.note("kill", process=name, why=why)
            self.services[name].kill()

    def start(self, name: str) -> None:
        """Start one again that was killed."""
        child = self.services[name]
        if not child.is_running:
            self.note("start", process=name)
            child.respawn()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal; a process that is gone gets none."""
        child = self.services[name]
        if child.is_running:
            self.note(number.name, process=name)
            child.process.send_signal(number)

    def replicas_of(self, cluster: str) -> list[str]:
        return [replica for replica, name in WATCHERS.items() if name == cluster]

    # --- NATS ---------------------------------------------------------------------------------

    @property
    def nats_replicas(self) -> int:
        """On how many servers everything is stored."""
        return 1 if isinstance(self.nats, NatsServer) else len(self.nats.members)

    @property
    def nats_server(self) -> NatsServer:
        """The one server of NATS."""
        assert isinstance(self.nats, NatsServer)
        return self.nats

    @property
    def nats_cluster(self) -> NatsCluster:
        """The servers of NATS."""
        assert isinstance(self.nats, NatsCluster)
        return self.nats

    def revive_nats(self) -> None:
        """Start or wake every server of a cluster that a fault has left dead or stopped."""
        for member in self.nats_cluster.members.values():
            if member.child.is_running:
                member.child.process.send_signal(signal.SIGCONT)
            else:
                member.start()

    @property
    def _store(self) -> Path:
        return self.nats_server.store_dir / "jetstream"

    def copy_store(self) -> Path:
        """A copy of the store as a power failure at this moment would have left it."""
        copy = self.folder / "nats-copy"
        shutil.rmtree(copy, ignore_errors=True)
        self.nats_server.process.send_signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._store, copy)
        finally:
            self.nats_server.process.send_signal(signal.SIGCONT)
        return copy

    def replace_store(self, copy: Path | None) -> None:
        """While NATS is down: an older copy of its store, or nothing."""
        shutil.rmtree(self._store)
        if copy is not None:
            shutil.move(copy, self._store)

    # --- the load -----------------------------------------------------------------------------

    async def load(self, rate: float) -> dict[str, int]:
        """Write at this rate from now on; answers how many writes of each kind there were."""
        return (await self._ask_world("load", {"rate": rate}))["written"]

    async def dump(self, path: Path) -> None:
        """Write down what the clusters hold."""
        await self._ask_world("dump", {"path": str(path)})

    async def _ask_world(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.admin_url}/{verb}", json=body) as answer,
        ):
            answer.raise_for_status()
            return await answer.json()

    async def aclose(self) -> None:
        """Stop the services."""
        children = [*self.watchers.values(), *([self.projector] if self.projector else [])]
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGCONT)
            child.terminate()
        await asyncio.gather(*(child.stop() for child in children))


def _nats(folder: Path, servers: int) -> AbstractAsyncContextManager[NatsServer | NatsCluster]:
    if servers == 1:
        return nats_server(store_dir=folder, max_payload=MAX_PAYLOAD)
    names = [f"n{number}" for number in range(1, servers + 1)]
    return nats_cluster(folder, names, more=f"max_payload: {MAX_PAYLOAD}")


def _nats_ports(nats: NatsServer | NatsCluster) -> Iterator[int]:
    """The ports of its servers, in turns."""
    if isinstance(nats, NatsServer):
        return itertools.repeat(int(nats.url.rpartition(":")[2]))
    return itertools.cycle([member.port for member in nats.members.values()])


@contextlib.asynccontextmanager
async def running_fleet(
    folder: Path, seed: int, *, mutation: str = "", servers: int = 1
) -> AsyncGenerator[Fleet]:
    """All processes; at the end none is left. Call it from the main thread.

    Args:
        folder: where their files go.
        seed: of the load.
        mutation: a rule that the watchers are without.
        servers: of NATS; more than one are a cluster that stores everything on each.
    """
    async with contextlib.AsyncExitStack() as exits:
        nats = await exits.enter_async_context(_nats(folder / "nats", servers))
        valkey = await exits.enter_async_context(valkey_server(dir=folder / "valkey"))
        world = Child(
            "world",
            module("faults.rig.world", str(folder), str(seed), *CLUSTERS),
            log=folder / "world.log",
        )
        exits.callback(world.stop_blocking)
        admin_file = folder / "admin"
        await world.wait_until(admin_file.exists, within=_READY)
        admin = await exits.enter_async_context(AdminClient(admin_file.read_text()))
        links = {
            name: await exits.enter_async_context(chaos_link(port))
            for name, port in zip(WATCHERS, _nats_ports(nats), strict=False)
        }
        fleet = Fleet(
            folder=folder,
            nats=nats,
            valkey=valkey,
            world=world,
            admin=admin,
            admin_url=admin_file.read_text(),
            links=links,
            mutation=mutation,
        )
        exits.push_async_callback(fleet.aclose)
        fleet.start_services()
        yield fleet
