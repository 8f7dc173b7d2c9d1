"""One parent and its children in one run of a `Children` controller.

The snapshot says whether there is anything to do; when there is, the API servers say what: the
parent is read live before anything is written, each child before it is written or deleted, and
nothing is deleted on the word of the snapshot (rule R6). So an idle fleet sees no request at all.

The order on the way in: finalizer and the clusters' names on the parent, then the first child. The
order on the way out: the children, then their cluster's name, then the finalizer. A crash between
two steps leaves a record of too many clusters, never of too few.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar, cast

import structlog

from fleetbus.children.conditions import Problem
from fleetbus.children.marks import ChildMark, Standing, is_right, marked_uid
from fleetbus.children.parent_annotation import ChildRecord
from fleetbus.children.policy import Child, Desired, Place, Policy, Propagate, Wanted, place_of
from fleetbus.children.unavailable import Rests
from fleetbus.children.writes import ChildWriter, Outcome, State
from fleetbus.clusters.leaving import LeaveRecords
from fleetbus.errors import (
    ClusterNotFound,
    Forbidden,
    KubeError,
    NotAccepted,
    NotEngaged,
    NotFound,
    Unauthorized,
)
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.merge_patch import is_merged
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.ownership import Owner
from fleetbus.reconcile import Request, Result, TerminalError
from fleetbus.snapshot.reads.reader import Entry, ListQuery
from fleetbus_proto.resources import Resource

log = structlog.get_logger()

_AT_ONCE: Final = 16
_SELDOM: Final = timedelta(minutes=5)
"""What does not heal by itself, like a stranger under a child's name, is looked at so often."""
_SOON: Final = frozenset({State.WAITING, State.UNREACHABLE, State.MISSING})
_LASTING: Final = frozenset({State.REFUSED, State.CONFLICT})
_KEEPS: Final = frozenset({State.WAITING, State.UNREACHABLE, State.REFUSED})
"""What a removal may answer while the child is, or may be, still there."""
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A child that is there."""

    cluster: str
    resource: Resource
    object: Object

    @property
    def place(self) -> Place:
        """Where it is."""
        return place_of(self.cluster, self.resource, self.object)


class Family:
    """One run.

    Args:
        policy: how children are kept.
        desired: the author's function for the children.
        propagate: the author's function for the way back, if there is one.
        request: names the parent.
        fleet: everything.
        rests: what was found away a moment ago.
    """

    def __init__(
        self,
        policy: Policy,
        desired: Desired,
        propagate: Propagate | None,
        request: Request,
        fleet: Fleet,
        rests: Rests,
    ) -> None:
        self._policy = policy
        self._desired = desired
        self._propagate = propagate
        self._request = request
        self._fleet = fleet
        self._rests = rests
        self._mark = ChildMark(policy.controller, request, policy.parents)
        self._record = ChildRecord(policy.controller)
        self._outcomes: dict[Place, Outcome] = {}
        self._unjoined = frozenset[str]()
        # Cluster → its accepted UID, for comparing what the snapshot has.
        self._uids: dict[str, str] = {}
        # A child may be among what could not be read.
        self._has_unread = False
        self.parent: Object | None = None
        """As it was read last."""

    @property
    def problems(self) -> list[Problem]:
        """What is to be told of, in the order of the places."""
        return [
            Problem(outcome.state, place, outcome.message)
            for place, outcome in sorted(self._outcomes.items())
            if outcome.state not in (State.RIGHT, State.GONE, State.WAITING)
        ]

    async def reconcile(self) -> Result | None:
        """Bring the children in line."""
        request, parents = self._request, self._policy.parents
        home = self._fleet.cluster(request.cluster)
        if not self._policy.is_parent_cluster(home.name, home.info):
            log.info("parent_is_in_no_parent_cluster")
            return None
        cached = await home.get(parents, request.namespace, request.name)
        children = await self._find()
        self._uids = await self._read_uids({child.cluster for child in children})
        if cached is None and not children:
            return self._later()
        if cached is not None:
            wanted = await self._wanted(cached)
            if wanted is None:
                return None
            self._judge(wanted, children)
            if self._is_settled(cached, wanted, children):
                await self._report_back(home, cached, wanted, children)
                return self._later()
        return await self._act(home, children)

    # --- what there is, and what there shall be -------------------------------------------------

    async def _find(self) -> list[Found]:
        """The children that the snapshot knows; what it does not know yet is looked at live."""
        names = self._policy.child_clusters(self._fleet)
        labels = LabelSelector.parse(self._mark.selector)
        found: list[Found] = []
        for resource in self._policy.children:
            query = ListQuery(clusters=names, resource=resource.key, labels=labels, count=False)
            for entry in (await self._fleet.reader.list(query)).entries:
                if entry.body and not entry.degraded:
                    obj = cast("Object", read_tree(entry.body))
                    found.append(Found(entry.cluster, resource, obj))
                elif (obj := await self._read_live(entry, resource)) is not None:
                    found.append(Found(entry.cluster, resource, obj))
            found += await self._find_unlabelled(names, resource, labels)
        return found

    async def _read_uids(self, clusters: Iterable[str]) -> dict[str, str]:
        """The accepted UIDs as the snapshot has them; of a cluster that has none nothing."""
        uids: dict[str, str] = {}
        for name in clusters:
            with suppress(NotAccepted):  # it is in the fleet twice: whatever is written says so
                uids[name] = await self._fleet.accepted_uid(name)
        return uids

    async def _find_unlabelled(
        self, names: Sequence[str], resource: Resource, labels: LabelSelector
    ) -> list[Found]:
        """Children among the objects that are too large for the bus: only their server can tell."""
        found: list[Found] = []
        for entry in await self._fleet.reader.unlabelled(names, resource.key):
            try:
                obj = await self._read_live(entry, resource)
            except (ClusterNotFound, NotFound, Forbidden, Unauthorized):
                continue  # it is a stranger's, or nobody here could remove it
            except (NotEngaged, KubeError):
                # Most likely a stranger's: a cluster that is away holds up its own only. But a
                # parent that is gone wakes nobody again.
                self._has_unread = True
                continue
            if obj is not None and labels.matches(obj["metadata"].get("labels") or {}):
                found.append(Found(entry.cluster, resource, obj))
        return found

    async def _read_live(self, entry: Entry, resource: Resource) -> Object | None:
        cluster = self._fleet.cluster(entry.cluster)
        return await cluster.live.get(resource, entry.namespace, entry.name)

    async def _wanted(self, parent: Object) -> list[Wanted] | None:
        """The children that a parent shall have; None if nothing is to be done until it is gone.

        Raises:
            TerminalError: the author's function answered nonsense.
        """
        self.parent = parent
        owner = Owner.of(parent, self._request.cluster)
        self._mark = replace(self._mark, owner=owner)
        if parent["metadata"].get("deletionTimestamp"):
            return [] if self._policy.finalizer or self._record.is_on(parent) else None
        if not self._policy.selects(parent):
            return []
        answer = await self._desired(copy.deepcopy(parent), self._request.cluster, self._fleet)
        return self._policy.check(answer, parent)

    def _judge(self, wanted: Sequence[Wanted], children: Sequence[Found]) -> None:
        """Note which of the wanted children are right as the snapshot has them, or out of reach."""
        there = {child.place: child for child in children}
        for one in wanted:
            child = there.get(one.place)
            if child is None or self._standing(child)[0] is not Standing.OURS:
                if rest := self._rests.of(one.place, self._request):
                    self._outcomes[one.place] = rest
                continue
            uid = self._uids.get(child.cluster) or marked_uid(child.object, child.cluster)
            marked = self._mark.put_on(one.child.object, one.child.cluster, uid)
            is_leaving = child.object["metadata"].get("deletionTimestamp")
            if not is_leaving and (one.child.create_only or is_right(child.object, marked)):
                self._outcomes[one.place] = Outcome(State.RIGHT, object=child.object)

    def _is_settled(
        self, parent: Object, wanted: Sequence[Wanted], children: Sequence[Found]
    ) -> bool:
        clusters = {one.child.cluster for one in wanted} if self._policy.finalizer else set[str]()
        is_held = self._record.is_held(parent)
        if self._record.clusters(parent) != clusters or (clusters and not is_held):
            return False
        if any(one.place not in self._outcomes for one in wanted):
            return False  # not even known to be away
        leaving = self._leaving(wanted, children)
        return all(self._standing(child)[0] is Standing.COPY for child in leaving)

    def _leaving(self, wanted: Sequence[Wanted], children: Sequence[Found]) -> list[Found]:
        kept = {one.place for one in wanted}
        leaving = [child for child in children if child.place not in kept]
        for child in leaving:
            standing, why = self._standing(child)
            if standing is Standing.COPY:
                self._outcomes[child.place] = Outcome(State.EXTRA, why)
        return leaving

    def _standing(self, child: Found) -> tuple[Standing, str]:
        uid = self._uids.get(child.cluster, "")
        return self._mark.standing(child.object, child.cluster, uid)

    # --- what is done ---------------------------------------------------------------------------

    async def _act(self, home: Cluster, children: Sequence[Found]) -> Result | None:
        request = self._request
        try:
            parent = await home.live.get(self._policy.parents, request.namespace, request.name)
        except NotFound as e:
            # Its type may come back, and the parent with it: nothing is concluded from that.
            log.warning("parents_are_not_served", error=str(e))
            return Result(requeue_after=_SELDOM)
        self._outcomes.clear()
        self.parent = parent
        if parent is None:
            self._mark = replace(self._mark, owner=None)
            await self._remove_all(children)
            return self._later()
        wanted = await self._wanted(parent)
        if wanted is None:
            return None
        self._judge(wanted, children)
        if wanted and self._policy.finalizer:
            parent = await self._hold(home, parent, wanted)
        await self._ensure_all(wanted)
        await self._let_go(home, parent, wanted, children)
        if wanted:
            await self._report_back(home, parent, wanted, children)
        return self._later()

    async def _hold(self, home: Cluster, parent: Object, wanted: Sequence[Wanted]) -> Object:
        """Finalizer and clusters on the parent, before the first child is made there."""
        clusters = self._record.clusters(parent) | {one.child.cluster for one in wanted}
        return await self._note_on(home, parent, clusters)

    async def _ensure_all(self, wanted: Sequence[Wanted]) -> None:
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        missing = [one for one in wanted if one.place not in self._outcomes]
        for one, outcome in zip(missing, await _together(writer.ensure, missing), strict=True):
            self._outcomes[one.place] = outcome
            self._rests.note(one.place, outcome, self._request)

    async def _let_go(
        self, home: Cluster, parent: Object, wanted: Sequence[Wanted], children: Sequence[Found]
    ) -> None:
        """Remove what is not wanted any more, and the record of where nothing is left."""
        leaving = self._leaving(wanted, children)
        noted, clusters = self._record.clusters(parent), {one.child.cluster for one in wanted}
        is_pending = any(self._outcomes[one.place].state in _SOON for one in wanted)
        if is_pending and (leaving or noted - clusters):
            return  # a child moves: the old one stays until the new one stands
        if (leaving or noted - clusters) and not self._fleet.is_known:
            raise NotEngaged("the providers have not told their clusters yet")
        self._unjoined = await self._find_unjoined(noted - clusters)
        remaining = await self._remove_all(leaving)
        remaining |= await self._clear(noted - clusters, {child.place for child in leaving})
        kept = clusters | remaining if self._policy.finalizer else set[str]()
        if noted or kept:
            await self._note_on(home, parent, kept)

    async def _remove_all(self, children: Iterable[Found]) -> set[str]:
        """Remove children; answers the clusters where some may be left."""
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        gone = list(children)
        outcomes = await _together(
            lambda child: writer.remove(child.cluster, child.resource, child.object), gone
        )
        remaining: set[str] = set()
        for child, outcome in zip(gone, outcomes, strict=True):
            remaining |= self._settle(child.place, outcome)
        return remaining

    async def _clear(self, clusters: Iterable[str], done: set[Place]) -> set[str]:
        """Remove what a live list of these clusters still shows; answers where some may be left."""
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        remaining = await _together(
            lambda name: self._clear_one(writer, name, done), sorted(clusters)
        )
        return set[str]().union(*remaining)

    async def _clear_one(self, writer: ChildWriter, name: str, done: set[Place]) -> set[str]:
        remaining: set[str] = set()
        for resource in self._policy.children:
            try:
                children = await writer.survivors(name, resource)
            except (ClusterNotFound, NotEngaged, KubeError) as e:
                place = (name, resource.key, "", "")
                remaining |= self._settle(place, Outcome(State.UNREACHABLE, str(e)))
                continue
            found = [Found(name, resource, child) for child in children]
            remaining |= await self._remove_all(one for one in found if one.place not in done)
            # What was removed a moment ago is still listed while its own finalizers hold it.
            left = {one.place for one in found} & done
            remaining |= {name for place in left if self._outcomes[place].state in _KEEPS}
        return remaining

    async def _find_unjoined(self, clusters: Iterable[str]) -> frozenset[str]:
        """Which of these were taken out of the fleet, and did not merely vanish (rule D7)."""
        fleet = self._fleet
        absent = [name for name in clusters if not fleet.has(name)]
        if not absent or not fleet.hub:
            return frozenset()
        try:
            hub = fleet.cluster(fleet.hub).live
            records = LeaveRecords(self._policy.hub_namespace)
            return await records.left(hub, fleet.clusters()) & frozenset(absent)
        except (ClusterNotFound, NotEngaged, KubeError) as e:
            log.warning("leave_records_unreadable", error=str(e))  # nothing follows from that
            return frozenset()

    def _settle(self, place: Place, outcome: Outcome) -> set[str]:
        """Note what came of a removal; answers the cluster if a child may be left there."""
        is_retained = self._policy.retain or place[0] in self._unjoined
        if outcome.state is State.UNREACHABLE and is_retained:
            outcome = Outcome(State.LEFT_BEHIND, outcome.message)
        self._outcomes[place] = outcome
        return {place[0]} if outcome.state in _KEEPS else set()

    # --- the parent -----------------------------------------------------------------------------

    async def _note_on(self, home: Cluster, parent: Object, clusters: set[str]) -> Object:
        """Write the record of clusters and the finalizer; the finalizers of others are kept.

        Raises:
            Conflict: the parent was changed meanwhile; to be done again.
        """
        patch = self._record.patch(parent, clusters)
        if patch is None:
            return parent
        metadata = parent["metadata"]
        request = self._request
        return await home.patch(
            self._policy.parents,
            request.namespace,
            request.name,
            patch,
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )

    async def _report_back(
        self,
        home: Cluster,
        parent: Object,
        wanted: Sequence[Wanted],
        children: Sequence[Found],
    ) -> None:
        """Run the author's propagate function, and patch what it says and the parent lacks."""
        if self._propagate is None or not wanted:
            return
        family = self._as_told(wanted, children)
        patch = cast("object", await self._propagate(copy.deepcopy(parent), family, self._fleet))
        if patch is None:
            return
        if not isinstance(patch, dict):
            raise TerminalError(f"@propagate answered {type(patch).__name__}, not a patch or None")
        whole = cast("Object", patch)
        status = {key: value for key, value in whole.items() if key == "status"}
        rest = {key: value for key, value in whole.items() if key != "status"}
        for part, subresource in ((rest, ""), (status, "status")):
            if part and not is_merged(parent, part):
                await self._patch(home, parent, part, subresource)

    async def _patch(self, home: Cluster, parent: Object, patch: Object, subresource: str) -> None:
        request = self._request
        await home.patch(
            self._policy.parents,
            request.namespace,
            request.name,
            patch,
            subresource=subresource,
            uid=parent["metadata"]["uid"],
        )

    def _as_told(self, wanted: Sequence[Wanted], children: Sequence[Found]) -> list[Child]:
        """The family for the propagate function: what is wanted, then what is still leaving."""
        there = {child.place: child.object for child in children}
        told: list[Child] = []
        for one in wanted:
            outcome = self._outcomes[one.place]
            obj = outcome.object or there.pop(one.place, None) or one.child.object
            there.pop(one.place, None)
            problem = "" if outcome.state is State.RIGHT else outcome.message or outcome.state
            told.append(replace(one.child, object=obj, problem=problem))
        return told

    def _later(self) -> Result | None:
        """When to look again, if nothing else wakes us."""
        states = {outcome.state for outcome in self._outcomes.values()}
        if states & _SOON:
            recheck = self._policy.recheck * random.uniform(1, 1.3)  # noqa: S311 -- only jitter
            return Result(requeue_after=recheck)
        is_seldom = bool(states & _LASTING) or self._has_unread
        return Result(requeue_after=_SELDOM) if is_seldom else None


async def _together(function: Callable[[A], Awaitable[T]], arguments: Sequence[A]) -> list[T]:
    """The answers of calls that run side by side, a few at once; the first error ends all."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(argument: A) -> T:
        async with slots:
            return await function(argument)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(argument)) for argument in arguments]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
