"""Finds of all resources in all clusters those that a user may read (rules A1, A2)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fleetbus.snapshot import Freshness, SnapshotReader
from fleetbus_proto.resources import CORE
from fleetbus_query_api.access.authorise import (
    Access,
    Granted,
    Right,
    UndecidedProblem,
    authorise_where_decided,
)
from fleetbus_query_api.catalog.catalog import Catalog, KnownFleet, KnownResource
from fleetbus_query_api.catalog.cluster_listing import cluster_freshness
from fleetbus_query_api.catalog.readable import UNDECIDED, UNREADABLE, Selection, no_resource
from fleetbus_query_api.requests.user import User

_AT_A_TIME: Final = 100
"""Types that are reviewed before others run: a cluster may have thousands."""


@dataclass(frozen=True, slots=True)
class ReadableTypes:
    """The resources that a user may list, of those that were asked for.

    Attributes:
        clusters: by resource key.
        candidates: the clusters.
        undecided: those that did not decide about some resource.
    """

    fleet: KnownFleet
    clusters: Mapping[str, Collection[str]]
    candidates: Sequence[str]
    undecided: Collection[str] = ()

    @property
    def places(self) -> list[tuple[str, str]]:
        """Cluster and resource key of everything that is watched."""
        return [
            (cluster, key)
            for key, clusters in self.clusters.items()
            for cluster in sorted(clusters)
            if cluster in self.fleet.clusters and not self.fleet.lacks(cluster, key)
        ]

    def known(self, key: str) -> KnownResource:
        """The resource of a key, as the clusters have it in which the user may list it (A2)."""
        resource = self.fleet.get(key)
        return self.fleet.within(resource, self.clusters.get(key, ())) or resource


class TypeReader:
    """Finds what a user may list.

    Args:
        reader: the snapshot.
        catalog: the clusters and their resources.
        access: decides.
    """

    def __init__(self, *, reader: SnapshotReader, catalog: Catalog, access: Access) -> None:
        self._reader = reader
        self._catalog = catalog
        self._access = access

    async def find(
        self, user: User, namespace: str, *, kind: str = "", clusters: Collection[str] = ()
    ) -> ReadableTypes:
        """Find the resources that a user may list, and in which clusters.

        As many reviews are made whatever there is: the time must not tell (rule A2).

        Args:
            user: who asks.
            namespace: the only one; empty for a right in all namespaces.
            kind: only resources of this kind or name, `deploy` or `apps/v1/deployments` too.
            clusters: only these.

        Raises:
            InvalidName: `kind` is not a resource name.
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
            TooManyRequestsProblem: it takes too many reviews.
        """
        fleet = await self._catalog.fleet()
        candidates = sorted(set(clusters)) or sorted(fleet.clusters)
        resources = fleet.resources.named(kind) if kind else [*fleet.resources]
        if not resources:  # the time of a review must not be missing
            await self._access.authorise(
                user, Right("list", CORE, kind.lower(), namespace), candidates
            )
        allowed: list[Granted] = []
        for start in range(0, len(resources), _AT_A_TIME):
            allowed += await asyncio.gather(
                *(
                    authorise_where_decided(
                        self._access,
                        user,
                        Right("list", resource.group, resource.plural, namespace),
                        candidates,
                    )
                    for resource in resources[start : start + _AT_A_TIME]
                )
            )
        by_key = {
            resource.key: names for resource, names in zip(resources, allowed, strict=True) if names
        }
        undecided = frozenset[str]().union(*(names.undecided for names in allowed))
        if undecided and not by_key:
            raise UndecidedProblem(undecided)
        return ReadableTypes(fleet, by_key, candidates, undecided)

    def require(self, readable: ReadableTypes, kind: str, namespace: str) -> None:
        """Refuse a type that no cluster has, or that the user may list in none (rule A2).

        Raises:
            NotFoundProblem: there is none; where everybody may read everything, with a suggestion.
        """
        if not kind or readable.clusters:
            return
        if self._access.is_open:
            readable.fleet.find(kind)
        raise no_resource(Selection(verb="list", resource=kind, namespace=namespace))

    async def freshness(
        self, user: User, readable: ReadableTypes, *, named: Collection[str]
    ) -> dict[str, Freshness]:
        """The freshness of each cluster with anything readable (rule A4): that of its worst part.

        Args:
            user: who asks.
            readable: what was found.
            named: clusters that the user has named, which the answer names in any case.
        """
        now = datetime.now(UTC)
        records = {record.name: record for record in await self._reader.clusters()}
        keys: dict[str, set[str]] = {}
        for cluster, key in readable.places:
            keys.setdefault(cluster, set()).add(key)
        parts = {
            name: [record for record in resource_records if record.key in keys[name]]
            async for name, resource_records in self._reader.resource_records([*keys])
        }
        states = {
            name: await cluster_freshness(records[name], resources, now)
            for name, resources in parts.items()
            if name in records
        }
        left_out = [name for name in readable.candidates if name not in states]
        if left_out and not named:
            visible = await self._access.authorise(user, Right("list"), left_out)
            left_out = [name for name in left_out if name in visible]
        states |= dict.fromkeys(left_out, UNREADABLE)
        states |= dict.fromkeys(readable.undecided, UNDECIDED)
        return dict(sorted(states.items()))
