"""Changes the pods of a seeded store, as a projector that follows a busy fleet does."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from bench.rig.query_fleet import SeededStore, place_of
from bench.rig.realistic_pods import make_pod
from fleetbus.snapshot import SnapshotWriter
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import Verb

_TICK: Final = 0.005
_BATCH: Final = 50


class PodChanges:
    """Changes pods, one after another, at a rate; an annotation says which change, and when.

    Args:
        store: where they are.
        pods: how many there are.
        clusters: how many clusters have them.
        rate: changes per second.

    Attributes:
        last: by the index of a pod, the number of its last change.
    """

    def __init__(self, store: SeededStore, *, pods: int, clusters: int, rate: int) -> None:
        self._writer = SnapshotWriter(store.redis, SnapshotKeys())
        self._pods = pods
        self._clusters = clusters
        self._rate = rate
        self._number = 0
        self.last: dict[int, int] = {}

    async def run(self, seconds: float) -> None:
        """Change pods for so long."""
        start, done = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds:
            count = min(int(passed * self._rate) - done, _BATCH)
            if count > 0:
                await self._writer.apply([self._event() for _ in range(count)])
                done += count
            await asyncio.sleep(_TICK)

    def _event(self) -> Event:
        self._number += 1
        index = self._number * 7919 % self._pods
        self.last[index] = self._number
        pod = make_pod(index)
        version = str(3_000_000 + self._number)
        metadata = pod["metadata"]
        metadata["resourceVersion"] = version
        metadata["annotations"] = {"bench": f"{index} {self._number} {time.time():.6f}"}
        return Event(
            cluster=place_of(index, self._clusters).cluster,
            incarnation=Incarnation(1, "kube-system"),
            group="core",
            version="v1",
            resource="pods",
            kind="Pod",
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=version,
            verb=Verb.MODIFIED,
            epoch=Rank("2000000", 1),
            observed_at="2026-01-01T00:00:00.000000Z",
            object=msgspec.json.encode(pod),
        )
