"""What can be asked for: the clusters of the fleet and the resources that are known of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from itertools import chain
from typing import Final

from fleetbus.kube.resource_names import SHORT_NAMES
from fleetbus.snapshot import ResourceRecord, SnapshotReader
from fleetbus_proto.resources import CORE, ResourceName, parse_resource_name
from fleetbus_query_api.answers.errors import NotFound
from fleetbus_query_api.answers.store import read_generation

_FIRST_GROUPS: Final = (CORE, "apps", "batch", "autoscaling", "networking.k8s.io")
"""A name that several groups have means the first of these, as with kubectl."""

_LONGEST: Final = 100
"""Letters of a name that are compared with others."""
_NAMES_SHOWN: Final = 12
"""So many resources a refusal names; a cluster may have hundreds."""


@dataclass(frozen=True, slots=True)
class KnownResource:
    """A resource that some cluster has.

    Attributes:
        versions: those that are served, over all clusters.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool
    versions: tuple[str, ...]

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"

    @property
    def name(self) -> str:
        """What a person calls it, as kubectl does: `pods`, `deployments.apps`."""
        return self.plural if self.group == CORE else f"{self.plural}.{self.group}"

    def rank_for(self, name: ResourceName) -> tuple[int, int, str] | None:
        """How well a person's name means this resource, the least is the best; None: not at all."""
        if name.group is not None and name.group != self.group:
            return None
        if name.version is not None and name.version not in self.versions:
            return None
        likeness = self._likeness(name.plural)
        if likeness is None:
            return None
        known = self.group in _FIRST_GROUPS
        at = _FIRST_GROUPS.index(self.group) if known else len(_FIRST_GROUPS)
        return (likeness, at, self.group)

    def _likeness(self, word: str) -> int | None:
        words = (self.plural, self.kind.lower())
        if word in words:
            return words.index(word)
        return 2 if self.key in SHORT_NAMES.get(word, ()) else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet at one moment.

    Attributes:
        watched: the resource keys that are known of each cluster.
        resources: those of all clusters together.
    """

    watched: Mapping[str, Collection[str]]
    resources: Sequence[KnownResource]

    @property
    def clusters(self) -> Collection[str]:
        """The names of the members."""
        return self.watched.keys()

    def is_left_out(self, cluster: str, key: str) -> bool:
        """Whether a cluster has told of its resources, and this one is not among them."""
        known = self.watched.get(cluster, ())
        return bool(known) and key not in known

    def resource(self, text: str) -> KnownResource:
        """The resource that a person means: full names, kubectl's names, short names, kinds.

        Raises:
            InvalidName: the text is no resource name.
            NotFound: no cluster has told of it.
        """
        for name in parse_resource_name(text.lower()):
            ranked = [
                (rank, known)
                for known in self.resources
                if (rank := known.rank_for(name)) is not None
            ]
            if ranked:
                return min(ranked, key=lambda pair: pair[0])[1]
        hint = self._suggestion(text) or self._watched_names()
        raise NotFound(f"{text} is watched in no cluster of the fleet; {hint}")

    def _suggestion(self, text: str) -> str:
        names = {known.name for known in self.resources} | {r.plural for r in self.resources}
        near = get_close_matches(text[:_LONGEST], names, n=1)
        return f"do you mean {near[0]!r}?" if near else ""

    def _watched_names(self) -> str:
        if not self.resources:
            return "nothing is watched yet"
        names = sorted(known.name for known in self.resources)
        more = len(names) - _NAMES_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        return f"watched are: {', '.join(names[:_NAMES_SHOWN])}{rest}"


class Catalog:
    """The fleet as the snapshot tells it, read at most once in a while.

    Args:
        reader: the snapshot.
        max_age: how old an answer may be; each read asks once per cluster.
    """

    def __init__(
        self, reader: SnapshotReader, *, max_age: timedelta = timedelta(seconds=1)
    ) -> None:
        self._reader = reader
        self._max_age = max_age.total_seconds()
        self._fleet = Fleet({}, ())
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def fleet(self) -> Fleet:
        """Who is in the fleet and what they have.

        Raises:
            StoreEmpty: nobody can tell (rule P13).
        """
        async with self._reading:  # many questions at once read it once
            if time.monotonic() - self._read_at > self._max_age:
                self._fleet = await self._read()
                self._read_at = time.monotonic()
        return self._fleet

    async def _read(self) -> Fleet:
        await read_generation(self._reader)
        records: dict[str, Sequence[ResourceRecord]] = {}
        for cluster in await self._reader.clusters():
            records[cluster.name] = await self._reader.resources(cluster.name)
        watched = {name: {known.key for known in found} for name, found in records.items()}
        return Fleet(watched, _merge(chain.from_iterable(records.values())))


def _merge(records: Iterable[ResourceRecord]) -> list[KnownResource]:
    """One resource per group and plural: the served version is not identity (rule W17)."""
    merged: dict[str, list[ResourceRecord]] = {}
    for record in records:
        merged.setdefault(record.key, []).append(record)
    return [
        KnownResource(
            group=same[0].group,
            plural=same[0].plural,
            kind=next((record.kind for record in same if record.kind), ""),
            namespaced=same[0].namespaced,
            versions=tuple(sorted({record.version for record in same})),
        )
        for _, same in sorted(merged.items())
    ]
