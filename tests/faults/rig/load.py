"""The load: a seeded writer of the emulated clusters.

Few keys change often and most seldom (Zipf). Half of the creates take the name of something that
was deleted, and some deletes are followed by a create under the same name at once: another object,
which is what careless caches mistake. Some names are hostile, some objects too large for the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_emulator.apiserver import Cluster

CONFIG_MAPS = "v1/configmaps"
ACCOUNTS = "v1/serviceaccounts"
ROLES = "rbac.authorization.k8s.io/v1/clusterroles"
RESOURCES = (CONFIG_MAPS, ACCOUNTS, ROLES)
KEYS = 400
"""Names per cluster and resource; a list of them has several pages."""
PAGE_SIZE = 100
LARGE = 300_000
"""Bytes: more than the NATS of the campaign takes in one message."""
MAX_PAYLOAD = 256 * 1024
_LARGE_NAMES = 3
_LARGE_SHARE = 0.0005
_HOSTILE = ("a b", "*", ">", "fleetbus.events.>", "a,b;c=d", "x:y:z", "über", "🚢", "\x7f", "a_b.c")
_TURN_SECONDS = 0.02


def names_of(resource: str) -> list[str]:
    """The names that objects of a resource take; the first are used most."""
    if resource != ROLES:
        return [f"{'a.b-' if n % 7 == 0 else 'n'}{n}" for n in range(KEYS)]
    return [f"{_HOSTILE[n % len(_HOSTILE)]}-{n}" for n in range(KEYS)]


class Writer:
    """Changes some clusters.

    Args:
        clusters: which.
        seed: the same seed makes the same choices.
        resources: of which; config maps are among them.
        labels: whether config maps have a label `app`, whose value changes.

    Attributes:
        written: how many writes of each kind there were.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        seed: int,
        resources: Sequence[str] = RESOURCES,
        *,
        labels: bool = False,
    ) -> None:
        self._clusters = clusters
        self._has_labels = labels
        self._resources = resources
        self._weights = [2 if resource == CONFIG_MAPS else 1 for resource in resources]
        self._random = Random(f"load/{seed}")
        self._names = {resource: names_of(resource) for resource in resources}
        self._large = [f"large-{n}" for n in range(_LARGE_NAMES)]
        self._count = 0
        self.written: Counter[str] = Counter()

    def fill(self) -> None:
        """Half of all objects, before anybody watches."""
        for cluster in self._clusters:
            for resource, names in self._names.items():
                for name in names[::2]:
                    self._create(cluster, resource, name)

    async def drive(self, per_second: float) -> None:
        """Write at this rate until cancelled; what cannot be held is not made up for."""
        clock = asyncio.get_running_loop().time
        begun, count = clock(), 0
        while True:
            turn_ends = clock() + _TURN_SECONDS
            while count < (clock() - begun) * per_second and clock() < turn_ends:
                self.step()
                count += 1
            behind = (clock() - begun) - count / per_second
            if behind > 1.0:  # the machine is too slow: go on from here
                begun, count = clock(), 0
            await asyncio.sleep(max(0.001, min(_TURN_SECONDS, -behind)))

    def step(self) -> None:
        """One write; what a restored etcd has made impossible is passed over."""
        cluster = self._random.choice(self._clusters)
        with contextlib.suppress(ApiError):
            if self._random.random() < _LARGE_SHARE:
                name = self._random.choice(self._large)
                self._put(cluster, CONFIG_MAPS, name, LARGE)
                self.written["large"] += 1
                return
            resource = self._random.choices(self._resources, self._weights)[0]
            self._change(cluster, resource, self._pick(self._names[resource]))

    def _pick(self, names: Sequence[str]) -> str:
        return names[int(len(names) ** self._random.random()) - 1]

    def _change(self, cluster: Cluster, resource: str, name: str) -> None:
        place = _place(resource)
        if cluster.get(resource, place, name) is None:
            self._create(cluster, resource, name)
            self.written["create"] += 1
            return
        chance = self._random.random()
        if chance < 0.85:
            self._update(cluster, resource, name)
            self.written["update"] += 1
            return
        cluster.delete(resource, place, name)
        self.written["delete"] += 1
        if chance > 0.95:
            self._create(cluster, resource, name)
            self.written["recreate"] += 1

    def _put(self, cluster: Cluster, resource: str, name: str, size: int) -> None:
        if cluster.get(resource, _place(resource), name) is None:
            self._create(cluster, resource, name, size)
        else:
            self._update(cluster, resource, name, size)

    def _create(self, cluster: Cluster, resource: str, name: str, size: int = 0) -> None:
        body = self._content(resource, size)
        body.setdefault("metadata", {})["name"] = name
        cluster.create(resource, body, _place(resource))

    def _update(self, cluster: Cluster, resource: str, name: str, size: int = 0) -> None:
        cluster.patch(resource, _place(resource), name, self._content(resource, size))

    def _content(self, resource: str, size: int) -> dict[str, Any]:
        self._count += 1
        if resource == CONFIG_MAPS:
            content: dict[str, Any] = {"data": {"n": str(self._count), "filler": "x" * size}}
            if self._has_labels:
                content["metadata"] = {"labels": {"app": "db" if self._count % 3 else "web"}}
            return content
        return {"metadata": {"annotations": {"n": str(self._count)}}}


def _place(resource: str) -> str | None:
    return None if resource == ROLES else "default"
