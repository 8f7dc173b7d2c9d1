"""The stage of the directed steps: what each of them does to the fleet, and waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final

from faults.distributors.settings import DISTRIBUTORS, MAPS, NAMESPACE
from faults.distributors.users import Users
from faults.distributors.world import World
from faults.rig.records import Violation
from fleetbus_emulator.apiserver import ApiError

Json = dict[str, Any]
WITHIN: Final = 40.0
"""Seconds for what has to happen."""
_CACHED: Final = 1.2
"""Longer than a distributor keeps the records of clusters."""
ENOUGH: Final = 4.0
"""Seconds in which a distributor would have done what it must not."""


class Stage:
    """Tools of a step."""

    def __init__(self, world: World, users: Users) -> None:
        self.world = world
        self.users = users
        self.processes = world.processes

    def template(self, name: str, **data: str) -> Json:
        metadata = {"name": name, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def put(self, name: str, placement: Json, *templates: Json, **spec: Any) -> None:
        """Create or replace a MultiClusterResource; by default it has one object of its name."""
        all_templates = [*templates] or [self.template(name, k="v")]
        self.users.replace(name, {"templates": all_templates, "placement": placement, **spec})

    def copy(self, server: str, name: str) -> Json | None:
        return self.world.rig.clusters[server].get(MAPS, NAMESPACE, name)

    def uid(self, server: str, name: str) -> str:
        return str((self.copy(server, name) or {"metadata": {"uid": ""}})["metadata"]["uid"])

    def take_place(self, server: str, name: str, **metadata: Any) -> str:
        """Put another object in the place of a copy; its UID."""
        cluster = self.world.rig.clusters[server]
        with suppress(ApiError):
            cluster.delete(MAPS, NAMESPACE, name)
        body = {"metadata": {"name": name, **metadata}, "data": {"stranger": "yes"}}
        return str(cluster.create(MAPS, body, NAMESPACE)["metadata"]["uid"])

    def remove(self, server: str, name: str) -> None:
        """Delete an object by hand."""
        with suppress(ApiError):
            self.world.rig.clusters[server].delete(MAPS, NAMESPACE, name)

    async def until(self, holds: Callable[[], object], within: float = WITHIN) -> bool:
        """Wait until something holds; whether it does."""
        deadline = time.monotonic() + within
        while not holds():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def placed(self, name: str, *servers: str) -> bool:
        """Wait until the copies of one of `put` are there and on record."""
        there = await self.until(lambda: all(self.copy(server, name) for server in servers))
        return there and await self.until(lambda: self.ready(name))

    def ready(self, name: str) -> bool:
        """Whether everything of the latest spec is applied."""
        resource: Json = self.users.read(name) or {}
        status: Json = resource.get("status") or {}
        conditions: list[Json] = status.get("conditions") or []
        if not any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        ):
            return False
        return bool(status["observedGeneration"] == resource["metadata"]["generation"])

    async def acted(self, name: str) -> None:
        """Wait until the latest spec was looked at, and then for what should not follow."""

        def is_observed() -> bool:
            resource: Json = self.users.read(name) or {"metadata": {}}
            status: Json = resource.get("status") or {}
            return bool(status.get("observedGeneration") == resource["metadata"].get("generation"))

        await self.until(is_observed)
        await asyncio.sleep(ENOUGH)

    def state(self, name: str, cluster: str) -> str:
        """The state of a cluster in the status; "" for none."""
        status: Json = (self.users.read(name) or {}).get("status") or {}
        clusters: list[Json] = status.get("clusters") or []
        return next((str(each["state"]) for each in clusters if each["name"] == cluster), "")

    async def hub_knows(self, name: str) -> None:
        """Wait until the hub has read which cluster a new name leads to."""
        reader = self.world.rig.reader
        deadline = time.monotonic() + WITHIN
        while time.monotonic() < deadline:
            record = await reader.cluster(name)
            await asyncio.sleep(_CACHED)
            if record is not None and record.uid:
                return

    async def stop_all(self) -> None:
        """No distributor runs until `start_all`."""
        self.processes.kept_down.update(DISTRIBUTORS)
        await self.processes.kill(*DISTRIBUTORS, why="step")

    async def start_all(self) -> None:
        self.processes.kept_down.clear()
        await self.processes.start()

    async def drop(self, *names: str) -> None:
        """Delete MultiClusterResources, and wait until they are gone."""
        for name in names:
            with suppress(ApiError):
                self.users.delete(name)
        await self.until(lambda: not any(self.users.read(name) for name in names))


Step = Callable[[Stage], AsyncGenerator[Violation]]


def at(*names: str) -> Json:
    """A placement by names."""
    return {"clusters": [{"name": name} for name in names]}
