"""Filling a cluster."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.generate.objects.databases import DEFINITIONS
from fleetbus_emulator.generate.objects.infrastructure import NAMESPACES, SEED_LABEL, seed_value
from fleetbus_emulator.generate.objects.population import Population

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

    from fleetbus_emulator.apiserver import Cluster
    from fleetbus_emulator.generate.objects.workloads import Made

JsonObject = dict[str, Any]
# Everything else is in namespaces of its own.
SHARED_TYPES = (
    NAMESPACES,
    "v1/nodes",
    "apps/v1/daemonsets",
    DEFINITIONS,
    "rbac.authorization.k8s.io/v1/clusterroles",
)


def fill(
    cluster: Cluster,
    *,
    objects: int,
    seed: int = 0,
    only: Collection[str] = (),
    canary: str = "",
    hostile: bool = False,
    now: datetime | None = None,
) -> Counter[str]:
    """Put so many objects into a cluster, at once; returns how many of each type came.

    The same seed gives an empty cluster of the same name the same objects. Another call adds
    others, in other namespaces.

    Args:
        cluster: The cluster.
        objects: How many; with `only`, how many of these types.
        seed: Chooses them.
        only: The types to keep, with the namespaces and definitions that they need; empty for
            all. Without its owner an object stands alone.
        canary: A string in every Secret, for tests that look for leaks.
        hostile: Mix in objects that are valid and hard to handle.
        now: Ages are counted from here back; by default from the present.
    """
    population = population_for(
        cluster,
        objects=objects,
        seed=seed,
        only=only,
        canary=canary,
        hostile=hostile,
        now=now,
    )
    counts: Counter[str] = Counter()
    with uncollected():
        cluster.restore(_counted(population, counts))
    return counts


def population_for(
    cluster: Cluster,
    *,
    objects: int,
    seed: int = 0,
    only: Collection[str] = (),
    canary: str = "",
    hostile: bool = False,
    now: datetime | None = None,
) -> Population:
    """The objects that `fill` would put into a cluster; nothing else may fill it meanwhile."""
    taken = {name for gvr in SHARED_TYPES for _, name in cluster.names(gvr)}
    return Population(
        objects=objects,
        seed=seed,
        cluster=cluster.name,
        only=only,
        canary=canary,
        hostile=hostile,
        taken=taken,
        turn=len(cluster.list(NAMESPACES, labels=f"{SEED_LABEL}={seed_value(seed)}")),
        now=now or datetime.now(UTC),
    )


def _counted(pairs: Iterable[Made], counts: Counter[str]) -> Iterator[Made]:
    for pair in pairs:
        counts[pair[0]] += 1
        yield pair


@contextmanager
def uncollected() -> Generator[None]:
    """Pause the garbage collector, as long as objects come by the thousand."""
    # Nothing is garbage, and looking through it all again and again takes most of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
