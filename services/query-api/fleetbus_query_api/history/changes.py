"""Answers what changed in the fleet, grouped by change rather than by cluster.

The state of every object that may have changed is read at both ends of the period and compared,
without what each cluster fills in itself (`reduce_tree`). Equal changes of objects of one name are
one group: "in 38 of 40 clusters the image went from a to b".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.fields.undetermined import Undetermined, UndeterminedObject
from fleetbus_query_api.fields.variants import reduce_tree
from fleetbus_query_api.history.distributed import (
    ReportFilter,
    Visible,
    Writer,
    read_mark,
    read_ownership,
    read_reports,
    visible_writers,
)
from fleetbus_query_api.history.parameters import ChangesParameters
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import describe_resource
from fleetbus_query_api.past.deletions import deletions_of_object, read_deletions
from fleetbus_query_api.past.differences import NONE, Differences, compare_trees
from fleetbus_query_api.past.states import PastState, PastStates
from fleetbus_query_api.past.steps import Step
from fleetbus_query_api.past.stored_events import ref_of
from fleetbus_query_api.past.window import Asked, Windows, render_window
from fleetbus_query_api.relations.readable_types import ReadableTypes, TypeReader
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.render import render_freshness

_FIRST_STEP: Final = 1_000
_MOST_STEP: Final = 4_000
"""Objects whose states are read at a time, if they are small."""
_MAX_OBJECTS: Final = 50_000
"""Objects that are compared; the answer says if there are more."""
_MAX_GROUPS: Final = 5_000
"""Different changes that are shown; further ones are counted as objects only."""
_AT_A_TIME: Final = 2
"""Questions whose objects are compared side by side, of all users: each holds a step in memory."""
_MODIFIED: Final = "modified"
UNREADABLE: Final = Differences((), more=1)
"""Difference of a body that cannot be decoded: something has changed."""


class _Name(NamedTuple):
    """The name that objects of several clusters share."""

    resource: str
    namespace: str
    name: str


class _Kind(NamedTuple):
    """The key of equal changes."""

    name: _Name
    change: str
    digest: bytes
    writer: Writer


@dataclass(slots=True)
class _Group:
    """Equal changes."""

    differences: Differences
    clusters: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Compared:
    """The changes that were found.

    Attributes:
        groups: equal changes.
        count: objects that changed.
        owned: objects that were left out because another one owns them.
        undetermined: objects of which it is unknown what changed, and why; not all of many.
        is_cut: whether there are more objects than were compared.
    """

    groups: dict[_Kind, _Group] = field(default_factory=dict[_Kind, _Group])
    count: int = 0
    owned: int = 0
    undetermined: Undetermined = field(default_factory=Undetermined)
    is_cut: bool = False


class FleetChanges:
    """Answers requests for changes, as JSON.

    Args:
        reader: the snapshot.
        types: finds what a user may list.
        windows: check times.
        slices: run the comparisons.
        access: decides who may know which MultiClusterResource wrote an object.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        types: TypeReader,
        windows: Windows,
        slices: TimeSlices,
        access: Access,
    ) -> None:
        self._reader = reader
        self._types = types
        self._windows = windows
        self._slices = slices
        self._access = access
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def list(self, user: User, parameters: ChangesParameters) -> bytes:
        """Compare the fleet at two points in time.

        Raises:
            InvalidName: the name of the type is malformed.
            NotFoundProblem: no cluster has the type, or the user may list it in none.
            InvalidTime, HistoryError: a time is malformed, or they are in the wrong order.
            OutsideWindow: the first one is before the window.
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        readable = await self._types.find(
            user, parameters.namespace, kind=parameters.resource, clusters=parameters.cluster
        )
        self._types.require(readable, parameters.resource, parameters.namespace)
        freshness = await self._types.freshness(user, readable, named=parameters.cluster)
        past = await self._windows.ask(parameters.since)
        until = self._windows.end(parameters.until, past)
        async with self._turns:
            comparison = await self._compare(readable, past, until, parameters)
        groups = sorted(
            comparison.groups.items(), key=lambda item: (-len(item[1].clusters), item[0])
        )
        page = groups[: parameters.limit]
        others = await self._elsewhere(readable, [kind.name for kind, _ in page])
        visible = Visible(self._access, user)
        writers = await visible_writers((kind.writer for kind, _ in page), visible)
        reports = await read_reports(
            past.bus, past.at, until, _report_filter(parameters, readable), visible
        )
        return msgspec.json.encode(
            {
                "from": rfc3339(past.at),
                "to": rfc3339(until),
                "groups": [
                    _render(kind, group, others[kind.name], readable)
                    | {"writtenBy": writers[kind.writer]}
                    for kind, group in page
                ],
                "distribution": reports[: parameters.limit],
                "distributionCount": len(reports),
                "changedObjects": comparison.count,
                "ownedObjects": comparison.owned,
                "groupCount": len(groups),
                "truncated": comparison.is_cut or len(groups) > len(page),
                "undetermined": comparison.undetermined.render(),
                "window": render_window(past.window),
                **render_freshness(freshness),
            }
        )

    async def _compare(
        self, readable: ReadableTypes, past: Asked, until: datetime, parameters: ChangesParameters
    ) -> _Compared:
        comparison, step = _Compared(), Step(_FIRST_STEP, _MOST_STEP)
        states = PastStates(bus=past.bus, reader=self._reader)
        changed, subjects = await self._changed(readable, past.at, parameters, comparison)

        async def compare(sizes: Mapping[ObjectRef, int]) -> None:
            for refs in step.divide(list(sizes), sizes):
                before = await states.at(refs, past.at)
                after = await (states.at(refs, until) if parameters.until else states.present(refs))
                step.adapt(before)

                def take(
                    ref: ObjectRef,
                    before: Mapping[ObjectRef, PastState] = before,
                    after: Mapping[ObjectRef, PastState] = after,
                ) -> None:
                    _take(comparison, ref, before[ref], after[ref], is_complete=parameters.owned)

                await self._slices.run(take, refs)

        # NATS looks for the deletions while others are compared.
        reading = asyncio.create_task(
            _deleted(
                readable,
                past,
                parameters,
                comparison,
                subjects=subjects,
                most=_MAX_OBJECTS - len(changed),
            ),
            name="deletions",
        )
        try:
            await compare(changed)
            await compare(await reading)
        finally:
            reading.cancel()
        return comparison

    async def _changed(
        self,
        readable: ReadableTypes,
        since: datetime,
        parameters: ChangesParameters,
        comparison: _Compared,
    ) -> tuple[dict[ObjectRef, int], set[str]]:
        """Find what exists and may have changed, and the subjects of all their deletions.

        Returns:
            The bytes of each object; and the subjects.
        """
        places: dict[str, list[str]] = {}
        for cluster, resource in readable.places:
            places.setdefault(resource, []).append(cluster)
        sizes: dict[ObjectRef, int] = {}
        subjects: set[str] = set()
        for resource, clusters in places.items():
            for cluster in clusters:
                async for page in self._reader.past.changed_since(cluster, resource, since):
                    for row in page:
                        if parameters.namespace not in ("", row.namespace):
                            continue
                        ref = ObjectRef(cluster, resource, row.namespace, row.name)
                        subjects.add(deletions_of_object(ref))
                        if row.is_owned and not parameters.owned:
                            comparison.owned += 1
                        elif len(sizes) < _MAX_OBJECTS:
                            sizes[ref] = row.size
                        else:
                            comparison.is_cut = True
                            return sizes, subjects
        return sizes, subjects

    async def _elsewhere(
        self, readable: ReadableTypes, names: Sequence[_Name]
    ) -> dict[_Name, set[str]]:
        """The clusters that have an object of each name now."""
        clusters: dict[_Name, set[str]] = {name: set() for name in names}
        by_resource: dict[str, list[_Name]] = {}
        for name in clusters:
            by_resource.setdefault(name.resource, []).append(name)
        for cluster, resource in readable.places:
            members = by_resource.get(resource, [])
            versions = await self._reader.versions(
                cluster, resource, [(member.namespace, member.name) for member in members]
            )
            for member in members:
                version = versions.get((member.namespace, member.name))
                if version is not None and version.is_live:
                    clusters[member].add(cluster)
        return clusters


async def _deleted(
    readable: ReadableTypes,
    past: Asked,
    parameters: ChangesParameters,
    comparison: _Compared,
    *,
    subjects: set[str],
    most: int,
) -> dict[ObjectRef, int]:
    """Find what was deleted meanwhile and does not exist now; with the bytes of its last state.

    Args:
        readable: what may be read.
        past: since when.
        parameters: of the request.
        comparison: takes how many were left out.
        subjects: those of deletions that say nothing new; takes those that are found.
        most: how many are wanted.
    """
    sizes: dict[ObjectRef, int] = {}
    async for stored in read_deletions(
        past.bus,
        places=readable.places,
        since=past.at,
        namespace=parameters.namespace,
        without=subjects,
    ):
        ref = ref_of(stored.event)
        subjects.add(deletions_of_object(ref))
        if not parameters.owned and read_ownership(stored.event.object).is_owned:
            comparison.owned += 1
        elif len(sizes) < most:
            sizes[ref] = len(stored.event.object or b"")
        else:
            comparison.is_cut = True
            break
    return sizes


def _report_filter(parameters: ChangesParameters, readable: ReadableTypes) -> ReportFilter:
    types = [readable.known(resource) for _, resource in readable.places]
    # events of earlier releases do not say a group
    kinds = {(group, one.kind) for one in types for group in (one.group, "")}
    return ReportFilter(
        clusters=frozenset(parameters.cluster or ()),
        namespace=parameters.namespace,
        kinds=kinds if parameters.resource else (),
    )


def _take(
    comparison: _Compared, ref: ObjectRef, before: PastState, after: PastState, *, is_complete: bool
) -> None:
    """Add an object to the group of its change, if it has changed.

    Args:
        comparison: takes it.
        ref: the object.
        before: its state at the beginning.
        after: its state at the end.
        is_complete: also if another object owns it.
    """
    for state in (before, after):
        if state.known_from is not None:
            comparison.undetermined.add([UndeterminedObject(ref, state.reason, state.known_from)])
            return
    if not before.is_present and not after.is_present:
        return
    change, differences = _compare(ref.resource, before, after)
    if change == _MODIFIED and differences is NONE:
        return
    ownership = read_mark(after.body if after.is_present else before.body)
    if ownership.is_owned and not is_complete:
        comparison.owned += 1
        return
    comparison.count += 1
    name = _Name(ref.resource, ref.namespace, ref.name)
    kind = _Kind(name, change, differences.digest, ownership.writer)
    if kind not in comparison.groups and len(comparison.groups) >= _MAX_GROUPS:
        comparison.is_cut = True
        return
    comparison.groups.setdefault(kind, _Group(differences)).clusters.append(ref.cluster)


def _compare(resource: str, before: PastState, after: PastState) -> tuple[str, Differences]:
    if not before.is_present:
        return "added", NONE
    if not after.is_present:
        return "deleted", NONE
    if before.body == after.body:
        return _MODIFIED, NONE
    try:
        trees = [reduce_tree(resource, decode(state.body)) for state in (before, after)]
    except UnreadableBody:
        return _MODIFIED, UNREADABLE
    differences = compare_trees(*trees)
    return _MODIFIED, differences if differences.shown else NONE


def _render(
    kind: _Kind, group: _Group, elsewhere: Collection[str], readable: ReadableTypes
) -> dict[str, Any]:
    clusters = sorted(group.clusters)
    return {
        "resource": describe_resource(readable.known(kind.name.resource)),
        "namespace": kind.name.namespace,
        "name": kind.name.name,
        "change": kind.change,
        "clusters": clusters,
        "others": sorted(set(elsewhere) - set(clusters)),
        **group.differences.render(),
    }
