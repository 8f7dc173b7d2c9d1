"""Config maps that change, come and go in one cluster, to be copied by a careless controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetbus_emulator.apiserver import Cluster

MAPS, KEY = "v1/configmaps", "core/configmaps"
OBJECTS = 30
COPIER = str(Path(__file__).parents[2] / "scripts" / "careless_copier.py")
"""The file to load as a controller's module."""


@dataclass
class Load:
    """Changes, creations and deletions in A, all the time."""

    cluster: Cluster
    deleted: set[str] = field(default_factory=set[str])
    number: int = 0

    async def run(self) -> None:
        while True:
            self.write(f"m{self.number % OBJECTS}")
            if self.number % 5 == 0:
                self.write(f"new{self.number}")
            if self.number % 10 == 5:
                self.delete(f"new{self.number - 5}")
            self.number += 1
            await asyncio.sleep(0.02)  # the pace of the load

    def write(self, name: str) -> None:
        data = {"k": f"{self.number}"}
        if self.cluster.get(MAPS, "default", name) is None:
            self.cluster.create(MAPS, {"metadata": {"name": name}, "data": data}, "default")
        else:
            self.cluster.patch(MAPS, "default", name, {"data": data})

    def delete(self, name: str) -> None:
        self.deleted.add(name)
        self.cluster.delete(MAPS, "default", name)


def data(cluster: Cluster) -> dict[str, Mapping[str, str]]:
    return {o["metadata"]["name"]: o["data"] for o in cluster.list(MAPS)}


def versions(cluster: Cluster) -> dict[str, str]:
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in cluster.list(MAPS)}
