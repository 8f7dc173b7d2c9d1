"""The processes of a soak: the stack of `fleetbus dev up`, and a second one of what may be several.

The stack has a watcher of the pool, a watcher and an agent for each cluster behind an agent, the
reconciler with the projector, the distributor and the query API; beside it run another watcher of
the pool, another worker, and the archiver.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.stack.plan import (
    Layout,
    Part,
    StackPlan,
    clean_environment,
    fleet_of,
    services,
)
from fleetbus_devfleet.stack.stack import Stack
from fleetbus_emulator.apiserver.admin import AdminClient
from soak import controllers
from support.processes.programs import installed

AGENTS: Final = 3
GUEST: Final = -AGENTS - 1
"""The place of the cluster that leaves and joins: the last one that is not behind an agent."""
_START: Final = timedelta(seconds=60)
_POOL, _WORKER, _ARCHIVER = "watcher-pool-2", "reconciler-2", "archiver"
_MIB: Final = 1024**2
_LOOK: Final = 1.0
SPARED: Final = ("watcher-pool", "reconciler", "distributor", "query-api", _ARCHIVER)
"""Those that live through the part that is evaluated; with the first watcher and agent."""

SETTINGS: Final = {
    # What is kept for a day or an hour must have found its end while the run warms up.
    "FLEETBUS_RECONCILER_LAST_STATE_KEPT": "5m",
    "FLEETBUS_WATCHER_AUDIT_SHORTEST": "3m",
    # Sixty types that nobody changes would be most of the work.
    "FLEETBUS_WATCHER_RESOURCES": json.dumps(
        [
            *("v1/configmaps", "v1/serviceaccounts", "v1/namespaces", "v1/nodes"),
            *("fleetbus.dev/v1alpha1/multiclusterresources", "fleetbus.dev/v1alpha1/clusters"),
        ]
    ),
    "FLEETBUS_ARCHIVER_CHUNK_AGE": "30s",
    "FLEETBUS_RECONCILER_ARCHIVER": "true",
}


@dataclass
class SoakFleet:
    """Everything that runs.

    Attributes:
        stack: the processes of `fleetbus dev up`.
        extras: the others, by name.
        clients: of all clusters, past any agent.
        log: what was done to them, with the seconds since the begin.
        away: clusters that nobody writes to, because they do not answer or have left.
        down: processes that a fault has ended and not started again yet.
        deaths: processes that have ended by themselves, which none should.
    """

    folder: Path
    stack: Stack
    admin: AdminClient
    extras: dict[str, Child]
    clients: dict[str, KubeClient]
    began: float = field(default_factory=time.monotonic)
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    away: set[str] = field(default_factory=set[str])
    down: set[str] = field(default_factory=set[str])
    deaths: list[str] = field(default_factory=list[str])

    @property
    def clusters(self) -> list[str]:
        """The names of all clusters, the hub first."""
        return self.stack.plan.names

    @property
    def guest(self) -> str:
        """The cluster that leaves and joins."""
        return self.clusters[GUEST]

    @property
    def records(self) -> Path:
        """The folder of the recorders."""
        return self.folder / "records"

    @property
    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.began

    def note(self, kind: str, **more: Any) -> None:
        """Append a line to the log."""
        self.log.append({"at": round(self.now, 1), "kind": kind, **more})

    def processes(self) -> dict[str, int]:
        """All processes, by name."""
        parts = {part.name: part.pid for part in self.stack.state().parts}
        return parts | {name: child.pid for name, child in self.extras.items()}

    def health_file(self, name: str) -> Path:
        """The file with the port of a process for health and metrics."""
        return self.stack.plan.layout.run / f"{name}.health"

    def ended(self) -> list[str]:
        """The processes that are gone."""
        gone = [name for name, child in self.extras.items() if not child.is_running]
        return [*self.stack.ended(), *gone]

    def kill(self, name: str) -> None:
        """End a process as a crash would."""
        self.down.add(name)
        if name in self.extras:
            self.extras[name].kill()
        else:
            self.stack.kill(name)

    async def start(self, name: str) -> None:
        """Start one again; one of the stack is ready on return."""
        self.down.add(name)
        if name in self.extras:
            await self.extras[name].stop()
            self.extras[name].respawn()
        else:
            await self.stack.restart(name)
        self.down.discard(name)

    async def revive(self) -> None:
        """Note each process that ends by itself, and start it again, as Kubernetes would."""
        while True:
            for name in {*self.ended()} - self.down:
                self.note("ended", process=name)
                self.deaths.append(name)
                await self.start(name)
            await asyncio.sleep(_LOOK)


def plan_of(folder: Path, clusters: int, stream_mib: int) -> StackPlan:
    """The plan of the stack; the guest is no member, so that nothing is distributed to it."""
    fleet = list(fleet_of(clusters, agents=AGENTS))
    fleet[GUEST] = replace(fleet[GUEST], labels={"role": "guest"})
    return StackPlan(
        layout=Layout(root=folder / "stack"),
        clusters=tuple(fleet),
        modules=(Path(controllers.__file__),),
        instant=True,
        pool=True,
        settings=SETTINGS
        | {
            controllers.FOLDER: str(folder / "records"),
            "FLEETBUS_RECONCILER_STREAM_MAX_BYTES": str(stream_mib * _MIB),
        },
    )


def _extra_parts(stack: Stack) -> list[Part]:
    """The second watcher of the pool, the second worker, and the archiver."""
    parts = services(stack.plan, nats_url=stack.nats_url, redis_url=stack.redis_url, api_port=0)
    by_name = {part.name: part for part in parts}
    archive = (stack.plan.layout.root / "archive").as_uri()
    return [
        _renamed(by_name["watcher-pool"], _POOL, FLEETBUS_WATCHER_REPLICA="second"),
        _renamed(by_name["reconciler"], _WORKER, FLEETBUS_RECONCILER_PROJECTOR="false"),
        replace(
            _renamed(by_name["reconciler"], _ARCHIVER, FLEETBUS_ARCHIVER_URL=archive),
            command=tuple(installed("fleetbus-archiver")),
        ),
    ]


def _renamed(part: Part, name: str, **settings: str) -> Part:
    health = part.health_port_file.with_name(f"{name}.health")
    env = {**part.env, "FLEETBUS_HEALTH_PORT_FILE": str(health), **settings}
    return replace(part, name=name, env=env, health_port_file=health, port_files=(health,))


@asynccontextmanager
async def soak_fleet(folder: Path, clusters: int, *, stream_mib: int) -> AsyncGenerator[SoakFleet]:
    """Start everything; at the end no process is left. Call it from the main thread."""
    plan = plan_of(folder, clusters, stream_mib)
    (folder / "records").mkdir()
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(Stack(plan))
        extras: dict[str, Child] = {}
        parts = _extra_parts(stack)
        for part in parts:
            env = clean_environment() | dict(part.env)
            child = Child(part.name, part.command, log=plan.layout.log(part.name), env=env)
            extras[part.name] = child
            exits.push_async_callback(child.stop)
        for part in parts:
            await extras[part.name].wait_until(part.health_port_file.exists, within=_START)
        admin = await exits.enter_async_context(AdminClient(stack.admin_url))
        clients = {
            name: await exits.enter_async_context(
                KubeClient(read_kube_config(stack.kubeconfig, name))
            )
            for name in plan.names
        }
        yield SoakFleet(folder, stack, admin, extras, clients)
