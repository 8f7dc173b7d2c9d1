"""Finds what is served to a user: kinds of a cluster, or of the fleet, and its version (A2).

Who may `get` the Cluster sees what is watched there. Everybody else sees, whatever name they ask
for, the built-in types that some cluster watches, which tell nothing, and in addition the custom
types that they may list in all namespaces. Without that, kubectl could not be used by who has
rights in one namespace only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fleetbus.snapshot import ResourceType, SnapshotReader
from fleetbus_proto.resources import is_built_in
from fleetbus_query_api.access.authorise import Access, Right, authorise_where_decided
from fleetbus_query_api.catalog.catalog import Catalog, KnownFleet, KnownResource
from fleetbus_query_api.catalog.kinds import Kind, kinds_of
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem

FLEET: Final = "-"
"""In the place of a cluster's name: all of them."""

_VERSION: Final = re.compile(r"v(\d+)\.(\d+)")
_UNKNOWN_VERSION: Final = "v1.33.0"
_MAX_REVIEWS: Final = 500
"""Reviews of custom types in clusters that a user does not see, for one answer."""


class ServedKinds:
    """Finds the kinds that a user may know of.

    Args:
        reader: the snapshot.
        catalog: the clusters and their resources.
        access: decides.
    """

    def __init__(self, *, reader: SnapshotReader, catalog: Catalog, access: Access) -> None:
        self._reader = reader
        self._catalog = catalog
        self._access = access

    async def find(self, user: User, cluster: str) -> list[Kind]:
        """The kinds of a cluster, or of the fleet.

        Raises:
            NotFoundProblem: the user may know that the cluster is not in the fleet.
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        fleet, visible, unseen = await self._look(user, cluster)
        if cluster == FLEET and not unseen:
            return kinds_of(_types_of(fleet.resources))
        types = [each for name in visible for each in fleet.watched.get(name, {}).values()]
        if unseen:
            types += _types_of(
                resource for resource in fleet.resources if is_built_in(resource.group)
            )
            types += await self._listable(user, fleet, unseen)
        return kinds_of(types)

    async def _look(
        self, user: User, cluster: str
    ) -> tuple[KnownFleet, Collection[str], Sequence[str]]:
        """The fleet, and which of the clusters that are asked for the user may get, and may not."""
        fleet = await self._catalog.fleet()
        candidates = sorted(fleet.clusters) if cluster == FLEET else [cluster]
        visible = await self._access.authorise(user, Right("get"), candidates)
        if cluster in visible and cluster not in fleet.clusters:
            raise no_cluster(cluster)
        return fleet, visible, [name for name in candidates if name not in visible]

    async def _listable(
        self, user: User, fleet: KnownFleet, unseen: Sequence[str]
    ) -> list[ResourceType]:
        """The custom types that a user may list, in clusters that they do not see.

        The same reviews are made for a name that is in no fleet: the time must not tell (rule A2).
        """
        custom = [resource for resource in fleet.resources if not is_built_in(resource.group)]
        if len(custom) * len(unseen) > _MAX_REVIEWS:
            return []
        types: list[ResourceType] = []
        for resource in custom:
            right = Right("list", resource.group, resource.plural)
            allowed = await authorise_where_decided(self._access, user, right, unseen)
            types += _records(fleet, allowed, resource.key)
        return types

    async def version(self, user: User, cluster: str) -> dict[str, Any]:
        """The document of `/version`: of the fleet, that of its oldest cluster.

        Raises: as `find`.
        """
        _, visible, _ = await self._look(user, cluster)
        records = [each for each in await self._reader.clusters() if each.name in visible]
        versions = [each.server_version for each in records if _VERSION.match(each.server_version)]
        version = min(versions, key=_order, default=_UNKNOWN_VERSION)
        major, minor = _order(version)
        return {
            "major": str(major),
            "minor": str(minor),
            "gitVersion": version,
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "",
            "compiler": "",
            "platform": "",
        }


def no_cluster(name: str) -> NotFoundProblem:
    """The cluster is not in the fleet, and the user may know that."""
    return NotFoundProblem(f"the fleet has no cluster {name[:200]!r}")


def _types_of(resources: Iterable[KnownResource]) -> Iterator[ResourceType]:
    """The types of resources in each version that some cluster keeps.

    A thousand clusters have fifty thousand types, of which fifty differ.
    """
    for resource in resources:
        for version in resource.versions:
            yield ResourceType(
                group=resource.group,
                version=version,
                plural=resource.plural,
                kind=resource.kind,
                namespaced=resource.namespaced,
                definition=next(iter(resource.definitions.values()), None),
            )


def _records(fleet: KnownFleet, clusters: Collection[str], key: str) -> list[ResourceType]:
    records = (fleet.watched.get(name, {}).get(key) for name in clusters)
    return [record for record in records if record is not None]


def _order(version: str) -> tuple[int, int]:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


class TypeListing:
    """Lists the types that a user may know of, like `kubectl api-resources`.

    Args:
        served: finds them.
    """

    def __init__(self, *, served: ServedKinds) -> None:
        self._served = served

    async def list(self, user: User) -> bytes:
        """List the types, with their names.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        items: dict[str, dict[str, Any]] = {}
        for kind in await self._served.find(user, FLEET):
            key = f"{kind.group}/{kind.plural}"
            item = items.setdefault(key, _render(kind))
            if kind.version not in item["versions"]:
                item["versions"].append(kind.version)
        return msgspec.json.encode({"items": list(items.values())})


def _render(kind: Kind) -> dict[str, Any]:
    return {
        "group": kind.group,
        "plural": kind.plural,
        "kind": kind.kind,
        "namespaced": kind.namespaced,
        "versions": [],
        "singular": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
