"""The load: objects that change, go and come, at a steady number, and their distribution.

Every name is new, because what is kept for each name of the past is what leaks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Final

from fleetbus.errors import AlreadyExists, FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from soak.controllers import ACCOUNTS, COPIES, LABEL, MAPS
from soak.fleet import SoakFleet

MAPS_EACH: Final = 20
ACCOUNTS_EACH: Final = 5
DISTRIBUTED: Final = 6
NAMESPACE: Final = "spread"
"""The namespace of what is distributed."""
REGIONS: Final = ("eu", "us", "ap")
_PATIENCE: Final = 20.0
_CREATE_SHARE: Final = 0.3


class Churn:
    """Writes to clusters and to MultiClusterResources of the hub.

    Args:
        fleet: whose clusters.
        random: the choices.

    Attributes:
        written: how many writes of each kind there were.
    """

    def __init__(self, fleet: SoakFleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self._numbers = itertools.count(1)
        self._journal = fleet.folder / "writes.jsonl"
        self.written: Counter[str] = Counter()

    async def fill(self) -> None:
        """Everything that there is all the time."""
        await asyncio.gather(*(self._fill(cluster) for cluster in self._fleet.clusters))
        for _ in range(DISTRIBUTED):
            await self._create_distributed()

    async def _fill(self, cluster: str) -> None:
        client = self._fleet.clients[cluster]
        with suppress(AlreadyExists):
            await client.create("v1/namespaces", {"metadata": {"name": COPIES}})
        for resource, count in ((MAPS, MAPS_EACH), (ACCOUNTS, ACCOUNTS_EACH)):
            for _ in range(count):
                await self._create(cluster, resource)

    async def drive(self, per_second: float) -> None:
        """Write at this rate until cancelled; what cannot be held is not made up for."""
        while True:
            cluster = self._random.choice(self._fleet.clusters)
            await self._try(self.step(cluster))
            await asyncio.sleep(1 / per_second)

    async def drive_distributed(self, seconds: float) -> None:
        """Edit a MultiClusterResource this often until cancelled."""
        while True:
            await self._try(self._edit_distributed())
            await asyncio.sleep(seconds)

    async def burst(self, cluster: str, count: int) -> None:
        """Many writes to one cluster at once."""
        await asyncio.gather(*(self._try(self.step(cluster)) for _ in range(count)))

    async def step(self, cluster: str) -> None:
        """One change of an object; one in three takes the place of another."""
        if cluster in self._fleet.away:
            return
        client = self._fleet.clients[cluster]
        resource = self._random.choices([MAPS, ACCOUNTS], [MAPS_EACH, ACCOUNTS_EACH])[0]
        objects = await client.list(resource, "default", label_selector=f"{LABEL}=source")
        if not objects:  # what a burst found, others of it have deleted
            await self._create(cluster, resource)
            return
        name = self._random.choice(objects)["metadata"]["name"]
        if self._random.random() < _CREATE_SHARE:
            # What failed in between, or was done twice in a burst, is made up for.
            usual = MAPS_EACH if resource == MAPS else ACCOUNTS_EACH
            if len(objects) >= usual:
                await client.delete(resource, "default", name)
                self._count("deleted", cluster, name)
            if len(objects) <= usual:
                await self._create(cluster, resource)
        else:
            value = str(next(self._numbers))
            change = {"data": {"value": value}} if resource == MAPS else _annotated(value)
            changed = await client.patch(resource, "default", name, change)
            self._count("changed", cluster, name, changed)

    async def _create(self, cluster: str, resource: str) -> None:
        number = next(self._numbers)
        name = f"n{number}"
        metadata = {"name": name, "namespace": "default", "labels": {LABEL: "source"}}
        content = {"data": {"value": str(number), "more": "x" * 200}} if resource == MAPS else {}
        client = self._fleet.clients[cluster]
        created = await client.create(resource, {"metadata": metadata, **content})
        self._count("created", cluster, name, created)

    def _count(self, verb: str, cluster: str, name: str, obj: dict[str, Any] | None = None) -> None:
        """Count a write, and write it down: what was not run for can be followed back to it."""
        self.written[verb] += 1
        version = obj["metadata"]["resourceVersion"] if obj else ""
        line = {"time": time.time(), "verb": verb, "cluster": cluster, "name": name}
        with self._journal.open("a") as journal:
            print(json.dumps(line | {"version": version}), file=journal)

    # --- MultiClusterResources ----------------------------------------------------------------

    async def _create_distributed(self) -> None:
        name = f"d{next(self._numbers)}"
        placement = {"clusterSelector": {"matchLabels": {"role": "member"}}}
        template = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {LABEL: "spread"}},
            "data": {"value": "0", "cluster": "${cluster.name}"},
        }
        spec = {
            "placement": placement,
            "policy": {"createNamespaces": True},
            "template": template,
        }
        metadata = {"name": name, "namespace": "default"}
        kind = {"apiVersion": "fleetbus.dev/v1alpha1", "kind": "MultiClusterResource"}
        await self._hub.create(
            MULTI_CLUSTER_RESOURCES, {**kind, "metadata": metadata, "spec": spec}
        )
        self.written["distributed created"] += 1

    async def _edit_distributed(self) -> None:
        existing = await self._hub.list(MULTI_CLUSTER_RESOURCES, "default")
        present = [obj for obj in existing if "deletionTimestamp" not in obj["metadata"]]
        chance = self._random.random()
        if len(present) < DISTRIBUTED:
            await self._create_distributed()
            return
        name = self._random.choice(present)["metadata"]["name"]
        if chance < 0.1:
            await self._hub.delete(MULTI_CLUSTER_RESOURCES, "default", name)
            await self._create_distributed()
            return
        await self._hub.patch(MULTI_CLUSTER_RESOURCES, "default", name, self._edit(chance))
        self.written["distributed changed"] += 1

    def _edit(self, chance: float) -> dict[str, Any]:
        if chance < 0.7:
            return {"spec": {"template": {"data": {"value": str(next(self._numbers))}}}}
        labels: list[dict[str, Any]] = [{"role": "member", "region": None}]
        labels += [{"role": "member", "region": region} for region in REGIONS]
        chosen = {"matchLabels": self._random.choice(labels)}
        return {"spec": {"placement": {"clusterSelector": chosen}}}

    @property
    def _hub(self) -> KubeClient:
        return self._fleet.clients[self._fleet.clusters[0]]

    async def _try(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step; one that a fault makes impossible is counted."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await step
        except (FleetbusError, TimeoutError):
            self.written["failed"] += 1


def _annotated(value: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {"soak.fleetbus.dev/value": value}}}
