"""Catalogs the clusters of the fleet and their resources, and resolves resource names."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Final, TypeVar

from fleetbus.kube.resource_names import names_of
from fleetbus.kube.unwatched_types import how_to_watch
from fleetbus.process.close_names import close_names
from fleetbus.snapshot import Definition, ResourceType, SnapshotReader, StoreEmpty
from fleetbus_proto.resources import CORE, ResourceName, parse_resource_name
from fleetbus_query_api.responses.problem import NotFoundProblem

_Part = TypeVar("_Part", bound=Hashable)
_FIRST_GROUPS: Final = (CORE, "apps", "batch", "autoscaling", "networking.k8s.io")
"""A name that several groups have means that of the first of these, as with kubectl."""

_RATIO: Final = 20
"""So reading a fleet takes a twentieth of the time at most."""
_SOON: Final = 0.02
_LONGEST: Final = timedelta(seconds=10)
"""For how long an older state of a large fleet is used while a newer one is read."""
_MAX_NAMED: Final = 12
"""Resources that an error lists; a cluster may have hundreds."""


@dataclass(frozen=True, slots=True)
class KnownResource:
    """A resource of some cluster.

    Attributes:
        versions: all that are served by any cluster.
        singular: as in discovery; empty if it is not known.
        short_names: of all clusters.
        definitions: by cluster, where one has reported it; none for a built-in resource.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool
    versions: tuple[str, ...]
    singular: str = ""
    short_names: tuple[str, ...] = ()
    definitions: Mapping[str, Definition] = field(
        default_factory=dict[str, Definition], compare=False
    )

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"

    @property
    def name(self) -> str:
        """The name that kubectl uses: `pods`, `deployments.apps`."""
        return self.plural if self.group == CORE else f"{self.plural}.{self.group}"

    def list_kind(self, clusters: Collection[str] | None) -> str:
        """The kind of a list of the objects of some clusters, or of all that have the resource."""
        declared = self.most_common(lambda definition: definition.list_kind, clusters)
        return declared or f"{self.kind}List"

    def most_common(
        self, attribute: Callable[[Definition], _Part], clusters: Collection[str] | None
    ) -> _Part | None:
        """A part of the definitions, as most of these clusters have it; None without any."""
        counts = Counter(
            attribute(definition)
            for cluster, definition in sorted(self.definitions.items())
            if clusters is None or cluster in clusters
        )
        return counts.most_common(1)[0][0] if counts else None

    def is_named(self, text: str) -> bool:
        """Whether this is a name of the resource.

        Raises:
            InvalidName: it is not a resource name.
        """
        return any(self.rank_for(name) for name in parse_resource_name(text.lower()))

    @property
    def words(self) -> Collection[str]:
        """All of its names, without its group."""
        own = (self.plural, self.kind.lower(), self.singular)
        return {*own, *names_of(self.key), *self.short_names}

    def rank_for(self, name: ResourceName) -> tuple[int, int, str] | None:
        """Rank the match of a name with this resource, the least is best; None without a match."""
        if name.group is not None and name.group != self.group:
            return None
        if name.version is not None and name.version not in self.versions:
            return None
        match = self._match(name.plural)
        if match is None:
            return None
        is_first = self.group in _FIRST_GROUPS
        at = _FIRST_GROUPS.index(self.group) if is_first else len(_FIRST_GROUPS)
        return (match, at, self.group)

    def _match(self, word: str) -> int | None:
        if word == self.plural:
            return 0
        if word in {self.kind.lower(), self.singular}:
            return 1
        if word in names_of(self.key):
            return 2
        return 3 if word in self.short_names else None  # only a cluster says so


class ResourceIndex:
    """Resources by key and by every name: a member may have tens of thousands of types.

    Args:
        resources: the first ones.
    """

    def __init__(self, resources: Iterable[KnownResource] = ()) -> None:
        self._by_key: dict[str, KnownResource] = {}
        self._by_word: dict[str, list[KnownResource]] = {}
        for resource in resources:
            self.add(resource)

    def add(self, resource: KnownResource) -> None:
        """Add a resource that is not there."""
        self._by_key[resource.key] = resource
        for word in resource.words:
            self._by_word.setdefault(word, []).append(resource)

    def __iter__(self) -> Iterator[KnownResource]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> KnownResource | None:
        """The resource of a key."""
        return self._by_key.get(key)

    def best(self, name: ResourceName) -> KnownResource | None:
        """The resource that a name means; None if no resource has it."""
        ranked = [
            (rank, resource)
            for resource in self._by_word.get(name.plural, ())
            if (rank := resource.rank_for(name)) is not None
        ]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def named(self, text: str) -> list[KnownResource]:
        """Every resource that has a name.

        Raises:
            InvalidName: it is not a resource name.
        """
        found = {
            resource.key: resource
            for name in parse_resource_name(text.lower())
            for resource in self._by_word.get(name.plural, ())
            if resource.rank_for(name)
        }
        return [*found.values()]

    def of_kind(self, group: str, kind: str) -> KnownResource | None:
        """The first resource of a kind."""
        same = self._by_word.get(kind.lower(), ())
        return next((each for each in same if (each.group, each.kind) == (group, kind)), None)


@dataclass(frozen=True, slots=True)
class KnownFleet:
    """The fleet at one moment.

    Attributes:
        watched: cluster → the types of its resources by key.
        resources: those of all clusters.
    """

    watched: Mapping[str, Mapping[str, ResourceType]]
    resources: ResourceIndex

    @property
    def clusters(self) -> Collection[str]:
        """The names of the members."""
        return self.watched.keys()

    def lacks(self, cluster: str, key: str) -> bool:
        """Whether a cluster has reported its resources, and this one is not among them."""
        resources = self.watched.get(cluster, {})
        return bool(resources) and key not in resources

    def within(self, resource: KnownResource, clusters: Collection[str]) -> KnownResource | None:
        """A resource as only these clusters have it; None if none of them does."""
        names = set(clusters)
        if names >= self.watched.keys():
            return resource
        same = {
            name: self.watched[name][resource.key]
            for name in sorted(names & self.watched.keys())
            if resource.key in self.watched[name]
        }
        return _merge(resource.key, same) if same else None

    def get(self, key: str) -> KnownResource:
        """The resource of a key.

        Raises:
            NotFoundProblem: no cluster has reported it.
        """
        resource = self.resources.get(key)
        if resource is None:
            raise NotFoundProblem(f"{key} is not watched in any cluster of the fleet")
        return resource

    def find(self, text: str) -> KnownResource:
        """Resolve a resource name: a full name, a name of kubectl, a short name or a kind.

        Raises:
            InvalidName: it is not a resource name.
            NotFoundProblem: no cluster has reported it.
        """
        readings = parse_resource_name(text.lower())
        for name in readings:
            if resource := self.resources.best(name):
                return resource
        hint = how_to_watch(readings) or self._suggestion(text) or self._watched_names()
        raise NotFoundProblem(f"{text} is not watched in any cluster of the fleet; {hint}")

    def _suggestion(self, text: str) -> str:
        names = {resource.name for resource in self.resources} | {r.plural for r in self.resources}
        likely = sorted(names, key=lambda name: name[:1] != text[:1].lower())
        near = close_names(text, likely)
        return f"did you mean {near[0]!r}?" if near else ""

    def _watched_names(self) -> str:
        if not self.resources:
            return "nothing is watched yet"
        names = sorted(resource.name for resource in self.resources)
        more = len(names) - _MAX_NAMED
        suffix = f" and {more} more" if more > 0 else ""
        return f"watched are: {', '.join(names[:_MAX_NAMED])}{suffix}"


class Catalog:
    """The fleet in the snapshot, cached for a moment.

    Args:
        reader: the snapshot.
        max_age: of the cache; a large fleet is kept longer, for `_RATIO` times what a read took.
    """

    def __init__(
        self, reader: SnapshotReader, *, max_age: timedelta = timedelta(seconds=1)
    ) -> None:
        self._reader = reader
        self._max_age = max_age.total_seconds()
        self._fleet = KnownFleet({}, ResourceIndex())
        self._read_at = float("-inf")
        self._took = 0.0
        self._reading = asyncio.Lock()

    async def fleet(self) -> KnownFleet:
        """Read the members of the fleet and their resources; one caller reads for all.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
        """
        if self._reading.locked() and self._may_be_used:
            return self._fleet
        async with self._reading:
            began = time.monotonic()
            if began - self._read_at > max(self._max_age, _RATIO * self._took):
                self._fleet = await self._read()
                self._read_at = time.monotonic()
                self._took = self._read_at - began
        return self._fleet

    @property
    def _may_be_used(self) -> bool:
        """Whether nobody needs to wait for another caller to read a large fleet."""
        is_slow = self._took > _SOON
        return is_slow and time.monotonic() - self._read_at < _LONGEST.total_seconds()

    async def _read(self) -> KnownFleet:
        await read_generation(self._reader)
        watched: dict[str, Mapping[str, ResourceType]] = {}
        merged: dict[str, dict[str, ResourceType]] = {}
        names = [cluster.name for cluster in await self._reader.clusters()]
        async for name, types in self._reader.resource_types(names):
            watched[name] = types
            for key, resource_type in types.items():
                merged.setdefault(key, {})[name] = resource_type
        resources = ResourceIndex()
        for key, same in sorted(merged.items()):
            resources.add(_merge(key, same))
            await asyncio.sleep(0)  # let others run
        return KnownFleet(watched, resources)


def _merge(key: str, same: Mapping[str, ResourceType]) -> KnownResource:
    """Merge into one resource per group and plural: versions are not identity (rule W17)."""
    first = next(iter(same.values()))
    kind = next((record.kind for record in same.values() if record.kind), "")
    definitions = {name: r.definition for name, r in same.items() if r.definition is not None}
    declarations = definitions.values()
    return KnownResource(
        group=first.group,
        plural=first.plural,
        kind=kind,
        namespaced=first.namespaced,
        versions=tuple(sorted({record.version for record in same.values()})),
        singular=next(
            (definition.singular for definition in declarations if definition.singular),
            kind.lower(),
        ),
        short_names=_joined(
            names_of(key)[1:], *(definition.short_names for definition in declarations)
        ),
        definitions=definitions,
    )


def _joined(*lists: Iterable[str]) -> tuple[str, ...]:
    """Join without duplicates, in the order in which they come."""
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


async def read_generation(reader: SnapshotReader) -> str:
    """Read the id of the store's content, before reading who is in the fleet.

    An empty store is not an empty fleet (rule P13).

    Raises:
        StoreEmpty: the store was emptied, or not set up yet.
    """
    generation = await reader.generation()
    if generation is None:
        raise StoreEmpty("the snapshot is empty: no projector has filled it yet")
    return generation
