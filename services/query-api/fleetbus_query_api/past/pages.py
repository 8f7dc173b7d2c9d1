"""Pages of the objects of a resource as they were at a point in time.

Candidates are the objects of today and those that were deleted since; the state of each then
decides. They come in the order of other lists, by cluster, namespace and name.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, NamedTuple

from fleetbus.kube.selectors import FieldSelector
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot import Entry, InvalidToken, ListQuery, SnapshotReader
from fleetbus.snapshot.reads.entries import member_of
from fleetbus.snapshot.reads.paging import Position, write_token
from fleetbus_proto.keys import split_object_key
from fleetbus_query_api.fields.bodies import UnreadableBody, matches_entry, why_degraded
from fleetbus_query_api.fields.undetermined import Undetermined, UndeterminedObject
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.past.deletions import read_deletions
from fleetbus_query_api.past.states import PastState, PastStates
from fleetbus_query_api.past.steps import STEP_BYTES, Step
from fleetbus_query_api.past.window import Asked
from fleetbus_query_api.requests.paging import (
    PastPosition,
    digest_question,
    microseconds,
    read_past_token,
)
from fleetbus_query_api.responses.problem import BadRequestProblem

_FIRST_STEP: Final = 250
_MOST_STEP: Final = 1_000
"""Objects whose states are read at a time: more of them while few match, as requests are dear."""
_AT_A_TIME: Final = 4
"""Steps of all users at a time: each holds its states in memory."""
_MAX_READ: Final = 20_000
"""Candidates of one page; the next page continues there."""
_MAX_BYTES: Final = 16 * 1024 * 1024
"""Bodies per page, as of other lists (rule A8); also of today's objects that are read at a time."""
_PORTIONS: Final = 20
"""Parts of the fleet at most, whose deletions are read one after the other."""
_MAX_DELETED: Final = 200_000
"""Names of deleted objects that a page has to sort."""


class _Place(NamedTuple):
    """Where an object is in the order of lists."""

    cluster: str
    key: bytes


@dataclass(slots=True)
class PastPage:
    """A page.

    Attributes:
        at: the time that it is of.
        entries: the objects that existed then and match.
        undecided: how many objects per cluster existed, and may match or not.
        undetermined: objects of which it is unknown what they were, and why; not all of many.
        continue_token: of the next page; empty on the last one.
    """

    at: datetime
    entries: list[Entry] = field(default_factory=list[Entry])
    undecided: dict[str, int] = field(default_factory=dict[str, int])
    undetermined: Undetermined = field(default_factory=Undetermined)
    continue_token: str = ""
    last: _Place | None = None
    """The last candidate that was looked at."""
    read: int = 0
    """Number of objects that were read."""
    size: int = 0


class PastPages:
    """Finds pages.

    Args:
        reader: the snapshot.
        slices: run the matching.
    """

    def __init__(self, *, reader: SnapshotReader, slices: TimeSlices) -> None:
        self._reader = reader
        self._slices = slices
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    async def find(self, query: ListQuery, fields: FieldSelector, past: Asked) -> PastPage:
        """Find one page.

        Raises:
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            OutsideWindow: the time of the continue token has left the window.
            BadRequestProblem: too many objects were deleted since then.
            BusError: the stream cannot be read.
        """
        mark = _digest(query, fields)
        after: PastPosition | None = None
        at = past.at
        if query.continue_token:
            after = read_past_token(query.continue_token, mark)
            at = after.time
            past.window.require(at)
            if at > past.window.end:
                raise InvalidToken("the continue token is of a time that is still to come")
        page = PastPage(at)
        last = await self._fill(page, query, fields, past, after)
        if last is not None:
            generation, place = last
            page.continue_token = PastPosition(
                generation, microseconds(at), mark, *place
            ).to_token()
        return page

    async def _fill(
        self,
        page: PastPage,
        query: ListQuery,
        fields: FieldSelector,
        past: Asked,
        after: PastPosition | None,
    ) -> tuple[str, _Place] | None:
        """Add objects until the page is full; where it ends, or None if nothing is left."""
        for clusters in _portions(query.clusters):
            if after is not None and clusters[-1] < after.cluster:
                continue
            portion = replace(query, clusters=clusters)
            end = await self._fill_part(page, portion, fields, past, after)
            if end is not None:
                return end
        return None

    async def _fill_part(
        self,
        page: PastPage,
        query: ListQuery,
        fields: FieldSelector,
        past: Asked,
        after: PastPosition | None,
    ) -> tuple[str, _Place] | None:
        """The same for some clusters, whose deletions are read together."""
        states = PastStates(bus=past.bus, reader=self._reader)
        deleted = await self._deleted(query, replace(past, at=page.at), after)
        step = Step(_FIRST_STEP, _MOST_STEP)
        async with aclosing(self._candidates(query, after, deleted, step)) as batches:
            async for generation, places in batches:
                if page.last is not None and _is_full(page, query):
                    return generation, page.last
                async with self._turns:
                    is_cut = await self._take_step(page, query, fields, states, places, step)
                if is_cut and page.last is not None and page.last != places[-1]:
                    return generation, page.last
        return None

    async def _take_step(
        self,
        page: PastPage,
        query: ListQuery,
        fields: FieldSelector,
        states: PastStates,
        places: Sequence[_Place],
        step: Step,
    ) -> bool:
        """Add those of some candidates that existed and match; whether the page is full."""
        refs = {place: _ref(query.resource, place) for place in places}
        past_states = await states.at(list(refs.values()), page.at)
        step.adapt(past_states)

        def take(place: _Place) -> bool:
            page.last = place
            _take(page, refs[place], past_states[refs[place]], query, fields)
            return _is_full(page, query)

        return await self._slices.run(take, places)

    async def _deleted(
        self, query: ListQuery, past: Asked, after: PastPosition | None
    ) -> dict[_Place, int]:
        """The objects that were deleted since the time, with the bytes of their last states."""
        deleted: dict[_Place, int] = {}
        deletions = read_deletions(
            past.bus,
            places=[(cluster, query.resource) for cluster in query.clusters],
            since=past.at,
            namespace=query.namespace or "",
            name=query.name or "",
            also_left=True,
        )
        async for stored in deletions:
            event = stored.event
            place = _Place(event.cluster, member_of(event.namespace, event.name))
            if after is None or place > (after.cluster, after.key):
                deleted[place] = max(deleted.get(place, 0), len(event.object or b""))
            if len(deleted) > _MAX_DELETED:
                raise BadRequestProblem(
                    f"more than {_MAX_DELETED:,} objects were deleted since then: name a cluster or"
                    " a namespace, or a later time"
                )
        return deleted

    async def _candidates(
        self,
        query: ListQuery,
        after: PastPosition | None,
        deleted: Mapping[_Place, int],
        step: Step,
    ) -> AsyncGenerator[tuple[str, list[_Place]]]:
        """Yield candidates in the order of lists, and the generation of the snapshot."""
        start = Position(after.generation, 0, after.cluster, after.key) if after else None
        present = replace(
            query,
            labels=None,  # those of today say nothing
            continue_token=write_token(start) if start is not None else "",
            limit=_MOST_STEP,
            max_bytes=STEP_BYTES,
            count=False,
        )
        remaining = sorted(deleted)
        async for listed in self._reader.pages(present):
            sizes = {
                _Place(e.cluster, member_of(e.namespace, e.name)): len(e.body)
                for e in listed.entries
            }
            cut = len(remaining)
            if listed.continue_token:
                bound = max(sizes, default=_Place("", b""))
                cut = bisect_right(remaining, bound)
            ordered = sorted({*sizes, *remaining[:cut]})
            remaining = remaining[cut:]
            largest = {place: max(sizes.get(place, 0), deleted.get(place, 0)) for place in ordered}
            for batch in step.divide(ordered, largest):
                yield listed.generation, batch


def _portions(clusters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Divide clusters, in their order: a page mostly ends in one of the first."""
    ordered = sorted(clusters)
    size = -(-len(ordered) // _PORTIONS) or 1
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _take(
    page: PastPage, ref: ObjectRef, state: PastState, query: ListQuery, fields: FieldSelector
) -> None:
    """Add an object to a page, if it existed and matches."""
    page.read += 1
    if state.known_from is not None:
        page.undetermined.add([UndeterminedObject(ref, state.reason, state.known_from)])
        return
    if not state.is_present:
        return
    entry = _entry(ref, state)
    try:
        is_wanted = matches_entry(entry, query.labels, fields)
    except UnreadableBody:
        page.undecided[ref.cluster] = page.undecided.get(ref.cluster, 0) + 1
        return
    if is_wanted:
        page.entries.append(entry)
        page.size += len(entry.body)


def _is_full(page: PastPage, query: ListQuery) -> bool:
    is_long = query.limit is not None and len(page.entries) >= query.limit
    return is_long or page.size >= _MAX_BYTES or page.read >= _MAX_READ


def _entry(ref: ObjectRef, state: PastState) -> Entry:
    event = state.event
    return Entry(
        ref.cluster,
        ref.namespace,
        ref.name,
        event.uid if event is not None else "",
        event.resource_version if event is not None else "",
        state.body,
        0,
        why_degraded(state.body, state.reason or ("" if state.body else "absent")),
        event.incarnation.number if event is not None else 0,
    )


def _ref(resource: str, place: _Place) -> ObjectRef:
    namespace, name = split_object_key(place.key.decode())
    return ObjectRef(place.cluster, resource, namespace, name)


def _digest(query: ListQuery, fields: FieldSelector) -> bytes:
    requirements = (
        f"{requirement.path} {requirement.is_equal} {requirement.values}"
        for requirement in fields.requirements
    )
    return digest_question(
        "as of",
        query.resource,
        ",".join(query.clusters),
        repr((query.namespace, query.name)),
        str(query.labels or ""),
        *requirements,
    )
