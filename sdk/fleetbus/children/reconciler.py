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

from fleetbus.children.conditions import Condition
from fleetbus.children.marks import ChildMark, Ownership, is_in_sync, marked_uid
from fleetbus.children.parent_annotation import ParentAnnotation
from fleetbus.children.policy import (
    Child,
    Desired,
    DesiredChild,
    Place,
    Policy,
    Propagate,
    place_of,
)
from fleetbus.children.unavailable import UnavailablePlaces
from fleetbus.children.writes import ChildOutcome, ChildState, ChildWriter
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
_SOON: Final = frozenset({ChildState.WAITING, ChildState.UNREACHABLE, ChildState.MISSING})
_LASTING: Final = frozenset({ChildState.REFUSED, ChildState.CONFLICT})
_KEEPS: Final = frozenset({ChildState.WAITING, ChildState.UNREACHABLE, ChildState.REFUSED})
"""What a removal may answer while the child is, or may be, still there."""
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObservedChild:
    """A child that is there."""

    cluster: str
    resource: Resource
    object: Object

    @property
    def place(self) -> Place:
        """Where it is."""
        return place_of(self.cluster, self.resource, self.object)


class ChildrenReconciler:
    """One run.

    Args:
        policy: how children are kept.
        desired: the author's function for the children.
        propagate: the author's function for the way back, if there is one.
        request: names the parent.
        fleet: everything.
        unavailable: what was found away a moment ago.
    """

    def __init__(
        self,
        policy: Policy,
        desired: Desired,
        propagate: Propagate | None,
        request: Request,
        fleet: Fleet,
        unavailable: UnavailablePlaces,
    ) -> None:
        self._policy = policy
        self._desired = desired
        self._propagate = propagate
        self._request = request
        self._fleet = fleet
        self._unavailable = unavailable
        self._mark = ChildMark(policy.controller, request, policy.parents)
        self._annotation = ParentAnnotation(policy.controller)
        self._outcomes: dict[Place, ChildOutcome] = {}
        self._unjoined = frozenset[str]()
        # Cluster → its accepted UID, for comparing what the snapshot has.
        self._uids: dict[str, str] = {}
        # A child may be among what could not be read.
        self._has_unread = False
        self.parent: Object | None = None
        """As it was read last."""

    @property
    def problems(self) -> list[Condition]:
        """What is to be told of, in the order of the places."""
        return [
            Condition(outcome.state, place, outcome.message)
            for place, outcome in sorted(self._outcomes.items())
            if outcome.state not in (ChildState.IN_SYNC, ChildState.GONE, ChildState.WAITING)
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
            return self._requeue()
        if cached is not None:
            desired = await self._desired_children(cached)
            if desired is None:
                return None
            self._evaluate(desired, children)
            if self._is_settled(cached, desired, children):
                await self._report_back(home, cached, desired, children)
                return self._requeue()
        return await self._act(home, children)

    # --- what there is, and what there shall be -------------------------------------------------

    async def _find(self) -> list[ObservedChild]:
        """The children that the snapshot knows; what it does not know yet is looked at live."""
        names = self._policy.child_clusters(self._fleet)
        labels = LabelSelector.parse(self._mark.selector)
        found: list[ObservedChild] = []
        for resource in self._policy.children:
            query = ListQuery(clusters=names, resource=resource.key, labels=labels, count=False)
            for entry in (await self._fleet.reader.list(query)).entries:
                if entry.body and not entry.degraded:
                    obj = cast("Object", read_tree(entry.body))
                    found.append(ObservedChild(entry.cluster, resource, obj))
                elif (obj := await self._read_live(entry, resource)) is not None:
                    found.append(ObservedChild(entry.cluster, resource, obj))
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
    ) -> list[ObservedChild]:
        """Children among the objects that are too large for the bus: only their server can tell."""
        found: list[ObservedChild] = []
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
                found.append(ObservedChild(entry.cluster, resource, obj))
        return found

    async def _read_live(self, entry: Entry, resource: Resource) -> Object | None:
        cluster = self._fleet.cluster(entry.cluster)
        return await cluster.live.get(resource, entry.namespace, entry.name)

    async def _desired_children(self, parent: Object) -> list[DesiredChild] | None:
        """The children that a parent shall have; None if nothing is to be done until it is gone.

        Raises:
            TerminalError: the author's function answered nonsense.
        """
        self.parent = parent
        owner = Owner.of(parent, self._request.cluster)
        self._mark = replace(self._mark, owner=owner)
        if parent["metadata"].get("deletionTimestamp"):
            return [] if self._policy.finalizer or self._annotation.is_on(parent) else None
        if not self._policy.selects(parent):
            return []
        answer = await self._desired(copy.deepcopy(parent), self._request.cluster, self._fleet)
        return self._policy.check(answer, parent)

    def _evaluate(self, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]) -> None:
        """Note which children are in sync as the snapshot has them, or known to be unavailable."""
        there = {child.place: child for child in children}
        for one in desired:
            child = there.get(one.place)
            if child is None or self._ownership(child)[0] is not Ownership.OURS:
                if rest := self._unavailable.of(one.place, self._request):
                    self._outcomes[one.place] = rest
                continue
            uid = self._uids.get(child.cluster) or marked_uid(child.object, child.cluster)
            marked = self._mark.put_on(one.child.object, one.child.cluster, uid)
            is_leaving = child.object["metadata"].get("deletionTimestamp")
            if not is_leaving and (one.child.create_only or is_in_sync(child.object, marked)):
                self._outcomes[one.place] = ChildOutcome(ChildState.IN_SYNC, object=child.object)

    def _is_settled(
        self, parent: Object, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]
    ) -> bool:
        clusters = {one.child.cluster for one in desired} if self._policy.finalizer else set[str]()
        is_held = self._annotation.is_held(parent)
        if self._annotation.clusters(parent) != clusters or (clusters and not is_held):
            return False
        if any(one.place not in self._outcomes for one in desired):
            return False  # not even known to be away
        leaving = self._leaving(desired, children)
        return all(self._ownership(child)[0] is Ownership.COPY for child in leaving)

    def _leaving(
        self, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]
    ) -> list[ObservedChild]:
        kept = {one.place for one in desired}
        leaving = [child for child in children if child.place not in kept]
        for child in leaving:
            ownership, why = self._ownership(child)
            if ownership is Ownership.COPY:
                self._outcomes[child.place] = ChildOutcome(ChildState.EXTRA, why)
        return leaving

    def _ownership(self, child: ObservedChild) -> tuple[Ownership, str]:
        uid = self._uids.get(child.cluster, "")
        return self._mark.ownership(child.object, child.cluster, uid)

    # --- what is done ---------------------------------------------------------------------------

    async def _act(self, home: Cluster, children: Sequence[ObservedChild]) -> Result | None:
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
            return self._requeue()
        desired = await self._desired_children(parent)
        if desired is None:
            return None
        self._evaluate(desired, children)
        if desired and self._policy.finalizer:
            parent = await self._record_clusters(home, parent, desired)
        await self._ensure_all(desired)
        await self._remove_leaving(home, parent, desired, children)
        if desired:
            await self._report_back(home, parent, desired, children)
        return self._requeue()

    async def _record_clusters(
        self, home: Cluster, parent: Object, desired: Sequence[DesiredChild]
    ) -> Object:
        """Finalizer and clusters on the parent, before the first child is made there."""
        clusters = self._annotation.clusters(parent) | {one.child.cluster for one in desired}
        return await self._write_annotation(home, parent, clusters)

    async def _ensure_all(self, desired: Sequence[DesiredChild]) -> None:
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        missing = [one for one in desired if one.place not in self._outcomes]
        for one, outcome in zip(missing, await _gather(writer.ensure, missing), strict=True):
            self._outcomes[one.place] = outcome
            self._unavailable.note(one.place, outcome, self._request)

    async def _remove_leaving(
        self,
        home: Cluster,
        parent: Object,
        desired: Sequence[DesiredChild],
        children: Sequence[ObservedChild],
    ) -> None:
        """Remove what is not desired any more, and the record of where nothing is left."""
        leaving = self._leaving(desired, children)
        noted, clusters = self._annotation.clusters(parent), {one.child.cluster for one in desired}
        is_pending = any(self._outcomes[one.place].state in _SOON for one in desired)
        if is_pending and (leaving or noted - clusters):
            return  # a child moves: the old one stays until the new one stands
        if (leaving or noted - clusters) and not self._fleet.is_known:
            raise NotEngaged("the providers have not told their clusters yet")
        self._unjoined = await self._find_unjoined(noted - clusters)
        remaining = await self._remove_all(leaving)
        remaining |= await self._clear_clusters(
            noted - clusters, {child.place for child in leaving}
        )
        kept = clusters | remaining if self._policy.finalizer else set[str]()
        if noted or kept:
            await self._write_annotation(home, parent, kept)

    async def _remove_all(self, children: Iterable[ObservedChild]) -> set[str]:
        """Remove children; answers the clusters where some may be left."""
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        gone = list(children)
        outcomes = await _gather(
            lambda child: writer.remove(child.cluster, child.resource, child.object), gone
        )
        remaining: set[str] = set()
        for child, outcome in zip(gone, outcomes, strict=True):
            remaining |= self._record_removal(child.place, outcome)
        return remaining

    async def _clear_clusters(self, clusters: Iterable[str], done: set[Place]) -> set[str]:
        """Remove what a live list of these clusters still shows; answers where some may be left."""
        writer = ChildWriter(self._policy, self._fleet, self._mark)
        remaining = await _gather(
            lambda name: self._clear_cluster(writer, name, done), sorted(clusters)
        )
        return set[str]().union(*remaining)

    async def _clear_cluster(self, writer: ChildWriter, name: str, done: set[Place]) -> set[str]:
        remaining: set[str] = set()
        for resource in self._policy.children:
            try:
                children = await writer.survivors(name, resource)
            except (ClusterNotFound, NotEngaged, KubeError) as e:
                place = (name, resource.key, "", "")
                remaining |= self._record_removal(
                    place, ChildOutcome(ChildState.UNREACHABLE, str(e))
                )
                continue
            found = [ObservedChild(name, resource, child) for child in children]
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

    def _record_removal(self, place: Place, outcome: ChildOutcome) -> set[str]:
        """Note what came of a removal; answers the cluster if a child may be left there."""
        is_retained = self._policy.retain or place[0] in self._unjoined
        if outcome.state is ChildState.UNREACHABLE and is_retained:
            outcome = ChildOutcome(ChildState.LEFT_BEHIND, outcome.message)
        self._outcomes[place] = outcome
        return {place[0]} if outcome.state in _KEEPS else set()

    # --- the parent -----------------------------------------------------------------------------

    async def _write_annotation(self, home: Cluster, parent: Object, clusters: set[str]) -> Object:
        """Write the record of clusters and the finalizer; the finalizers of others are kept.

        Raises:
            Conflict: the parent was changed meanwhile; to be done again.
        """
        patch = self._annotation.patch(parent, clusters)
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
        desired: Sequence[DesiredChild],
        children: Sequence[ObservedChild],
    ) -> None:
        """Run the author's propagate function, and patch what it says and the parent lacks."""
        if self._propagate is None or not desired:
            return
        family = self._current_children(desired, children)
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

    def _current_children(
        self, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]
    ) -> list[Child]:
        """The family for the propagate function: what is desired, then what is still leaving."""
        there = {child.place: child.object for child in children}
        told: list[Child] = []
        for one in desired:
            outcome = self._outcomes[one.place]
            obj = outcome.object or there.pop(one.place, None) or one.child.object
            there.pop(one.place, None)
            problem = (
                "" if outcome.state is ChildState.IN_SYNC else outcome.message or outcome.state
            )
            told.append(replace(one.child, object=obj, problem=problem))
        return told

    def _requeue(self) -> Result | None:
        """When to look again, if nothing else wakes us."""
        states = {outcome.state for outcome in self._outcomes.values()}
        if states & _SOON:
            recheck = self._policy.recheck * random.uniform(1, 1.3)  # noqa: S311 -- only jitter
            return Result(requeue_after=recheck)
        is_seldom = bool(states & _LASTING) or self._has_unread
        return Result(requeue_after=_SELDOM) if is_seldom else None


async def _gather(function: Callable[[A], Awaitable[T]], arguments: Sequence[A]) -> list[T]:
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
