"""Reconciles one parent and its children in one run of a `Children` controller.

The snapshot decides whether there is anything to do. If so, the parent is read live before any
write, and each child before it is written or deleted; nothing is deleted because of the snapshot
alone (rule R6). If everything is in sync, no request is sent.

Order when creating: finalizer and cluster names on the parent, then the first child. When deleting:
the children, then the name of their cluster, then the finalizer. So a crash between two steps
leaves too many clusters on record, never too few.
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
from fleetbus.children.marks import ChildMark, is_in_sync, marked_uid
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
from fleetbus.kube.applied import ServerAnswers
from fleetbus.kube.client import Object
from fleetbus.kube.merge_patch import is_merged
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.owned_objects.claim import Claim, Ownership
from fleetbus.ownership import Owner
from fleetbus.reconcile import Request, Result, TerminalError
from fleetbus.snapshot.reads.entries import Entry
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus_proto.resources import Resource

log = structlog.get_logger()

_CONCURRENCY: Final = 16
_SLOW_RECHECK: Final = timedelta(minutes=5)
"""For states that do not change by themselves, like a foreign object with a child's name."""
_RECHECKED: Final = frozenset({ChildState.WAITING, ChildState.UNREACHABLE, ChildState.MISSING})
_SLOWLY_RECHECKED: Final = frozenset({ChildState.REFUSED, ChildState.CONFLICT})
_REMAINING: Final = frozenset({ChildState.WAITING, ChildState.UNREACHABLE, ChildState.REFUSED})
"""Outcomes of a removal after which the child may still exist."""
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObservedChild:
    """A child that exists."""

    cluster: str
    resource: Resource
    object: Object

    @property
    def place(self) -> Place:
        """Its place."""
        return place_of(self.cluster, self.resource, self.object)


class ChildrenReconciler:
    """One reconcile of a parent.

    Args:
        policy: the settings of the controller.
        desired: the author's function for the children.
        propagate: the author's function for the parent, if there is one.
        request: names the parent.
        fleet: the clusters and the snapshot.
        unavailable: places that were unavailable a short time ago.
        answers: the children that their servers take for what was applied.
    """

    def __init__(
        self,
        policy: Policy,
        desired: Desired,
        propagate: Propagate | None,
        request: Request,
        fleet: Fleet,
        unavailable: UnavailablePlaces,
        answers: ServerAnswers,
    ) -> None:
        self._policy = policy
        self._desired = desired
        self._propagate = propagate
        self._request = request
        self._fleet = fleet
        self._unavailable = unavailable
        self._answers = answers
        self._mark = ChildMark(policy.controller, request, policy.parents)
        self._annotation = ParentAnnotation(policy.controller)
        self._outcomes: dict[Place, ChildOutcome] = {}
        self._unjoined = frozenset[str]()
        # Accepted UID by cluster, to check the marks of children in the snapshot.
        self._uids: dict[str, str] = {}
        # Objects that could not be read may include a child.
        self._has_unread = False
        self.parent: Object | None = None
        """The parent as last read."""

    @property
    def conditions(self) -> list[Condition]:
        """The problems to report, ordered by place."""
        return [
            Condition(outcome.state, place, outcome.message)
            for place, outcome in sorted(self._outcomes.items())
            if outcome.state not in (ChildState.IN_SYNC, ChildState.GONE, ChildState.WAITING)
        ]

    async def reconcile(self) -> Result | None:
        """Create, update and delete the children."""
        request, parents = self._request, self._policy.parents
        home = self._fleet.cluster(request.cluster)
        if not self._policy.parent_watch.clusters.test(home.name, home.info):
            log.info("parent_cluster_not_selected")
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
                await self._propagate_state(home, cached, desired, children)
                return self._requeue()
        return await self._act(home, children)

    # --- current and desired state --------------------------------------------------------------

    async def _find(self) -> list[ObservedChild]:
        """Find the children in the snapshot; objects without a body there are read live."""
        names = self._policy.child_clusters(self._fleet)
        labels = LabelSelector.parse(self._mark.selector)
        observed: list[ObservedChild] = []
        for resource in self._policy.children:
            query = ListQuery(clusters=names, resource=resource.key, labels=labels, count=False)
            for entry in (await self._fleet.reader.list(query)).entries:
                if entry.body and not entry.degraded:
                    obj = cast("Object", read_tree(entry.body))
                    observed.append(ObservedChild(entry.cluster, resource, obj))
                elif (obj := await self._read_live(entry, resource)) is not None:
                    observed.append(ObservedChild(entry.cluster, resource, obj))
            observed += await self._find_unlabelled(names, resource, labels)
        return observed

    async def _read_uids(self, clusters: Iterable[str]) -> dict[str, str]:
        """Read the accepted UIDs from the snapshot; a cluster without one is left out."""
        uids: dict[str, str] = {}
        for name in clusters:
            with suppress(NotAccepted):  # e.g. joined twice: a write to it reports the error
                uids[name] = await self._fleet.accepted_uid(name)
        return uids

    async def _find_unlabelled(
        self, names: Sequence[str], resource: Resource, labels: LabelSelector
    ) -> list[ObservedChild]:
        """Find children among objects too large for the bus, whose labels only a live read has."""
        observed: list[ObservedChild] = []
        for entry in await self._fleet.reader.unlabelled(names, resource.key):
            try:
                obj = await self._read_live(entry, resource)
            except (ClusterNotFound, NotFound, Forbidden, Unauthorized):
                continue  # foreign, or we could not remove it
            except (NotEngaged, KubeError):
                # Most likely foreign, so it must not block the children in other clusters. But
                # check again later: nothing triggers a deleted parent again.
                self._has_unread = True
                continue
            if obj is not None and labels.matches(obj["metadata"].get("labels") or {}):
                observed.append(ObservedChild(entry.cluster, resource, obj))
        return observed

    async def _read_live(self, entry: Entry, resource: Resource) -> Object | None:
        cluster = self._fleet.cluster(entry.cluster)
        return await cluster.live.get(resource, entry.namespace, entry.name)

    async def _desired_children(self, parent: Object) -> list[DesiredChild] | None:
        """Return the desired children; None to do nothing until the parent is gone.

        Raises:
            TerminalError: the author's function returned something invalid.
        """
        self.parent = parent
        owner = Owner.of(parent, self._request.cluster)
        self._mark = replace(self._mark, owner=owner)
        if parent["metadata"].get("deletionTimestamp"):
            return [] if self._policy.finalizer or self._annotation.is_on(parent) else None
        if not self._policy.parent_watch.selects(parent):
            return []
        answer = await self._desired(copy.deepcopy(parent), self._request.cluster, self._fleet)
        return self._policy.check(answer, parent)

    def _evaluate(self, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]) -> None:
        """Note which children are in sync as the snapshot has them, or known to be unavailable."""
        there = {child.place: child for child in children}
        for item in desired:
            child = there.get(item.place)
            if child is None or self._claim(child).ownership is not Ownership.OURS:
                if unavailable := self._unavailable.outcome_for(item.place, self._request):
                    self._outcomes[item.place] = unavailable
                continue
            uid = self._uids.get(child.cluster) or marked_uid(child.object, child.cluster)
            marked = self._mark.put_on(item.child.object, item.child.cluster, uid)
            is_leaving = child.object["metadata"].get("deletionTimestamp")
            if is_leaving:
                continue
            if item.child.create_only or is_in_sync(
                child.object, marked, child.cluster, self._answers
            ):
                self._outcomes[item.place] = ChildOutcome(ChildState.IN_SYNC, object=child.object)

    def _is_settled(
        self, parent: Object, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]
    ) -> bool:
        clusters = (
            {item.child.cluster for item in desired} if self._policy.finalizer else set[str]()
        )
        has_finalizer = self._annotation.has_finalizer(parent)
        if self._annotation.clusters(parent) != clusters or (clusters and not has_finalizer):
            return False
        if any(item.place not in self._outcomes for item in desired):
            return False  # state unknown
        leaving = self._leaving(desired, children)
        return all(self._claim(child).ownership is Ownership.COPY for child in leaving)

    def _leaving(
        self, desired: Sequence[DesiredChild], children: Sequence[ObservedChild]
    ) -> list[ObservedChild]:
        places = {item.place for item in desired}
        leaving = [child for child in children if child.place not in places]
        for child in leaving:
            claim = self._claim(child)
            if claim.ownership is Ownership.COPY:
                self._outcomes[child.place] = ChildOutcome(ChildState.EXTRA, claim.message)
        return leaving

    def _claim(self, child: ObservedChild) -> Claim:
        uid = self._uids.get(child.cluster, "")
        return self._mark.claim(child.object, child.cluster, uid)

    @property
    def _writer(self) -> ChildWriter:
        return ChildWriter(self._policy, self._fleet, self._mark, self._answers)

    # --- writes ---------------------------------------------------------------------------------

    async def _act(self, home: Cluster, children: Sequence[ObservedChild]) -> Result | None:
        request = self._request
        try:
            parent = await home.live.get(self._policy.parents, request.namespace, request.name)
        except NotFound as e:
            # The kind may come back, and the parent with it: do not treat the parent as deleted.
            log.warning("parent_kind_not_served", error=str(e))
            return Result(requeue_after=_SLOW_RECHECK)
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
            await self._propagate_state(home, parent, desired, children)
        return self._requeue()

    async def _record_clusters(
        self, home: Cluster, parent: Object, desired: Sequence[DesiredChild]
    ) -> Object:
        """Put finalizer and clusters on the parent, before a child is created there."""
        clusters = self._annotation.clusters(parent) | {item.child.cluster for item in desired}
        return await self._write_annotation(home, parent, clusters)

    async def _ensure_all(self, desired: Sequence[DesiredChild]) -> None:
        missing = [item for item in desired if item.place not in self._outcomes]
        for item, outcome in zip(missing, await _gather(self._writer.ensure, missing), strict=True):
            self._outcomes[item.place] = outcome
            self._unavailable.update(item.place, outcome, self._request)

    async def _remove_leaving(
        self,
        home: Cluster,
        parent: Object,
        desired: Sequence[DesiredChild],
        children: Sequence[ObservedChild],
    ) -> None:
        """Delete children no longer desired, and clusters without children from the record."""
        leaving = self._leaving(desired, children)
        noted, clusters = (
            self._annotation.clusters(parent),
            {item.child.cluster for item in desired},
        )
        is_pending = any(self._outcomes[item.place].state in _RECHECKED for item in desired)
        if is_pending and (leaving or noted - clusters):
            return  # a child moves: keep the old one until the new one exists
        if (leaving or noted - clusters) and not self._fleet.is_known:
            raise NotEngaged("the providers have not reported their clusters yet")
        self._unjoined = await self._find_unjoined(noted - clusters)
        remaining = await self._remove_all(leaving)
        remaining |= await self._clear_clusters(
            noted - clusters, {child.place for child in leaving}
        )
        names = clusters | remaining if self._policy.finalizer else set[str]()
        if noted or names:
            await self._write_annotation(home, parent, names)

    async def _remove_all(self, children: Iterable[ObservedChild]) -> set[str]:
        """Delete children; return the clusters where some may remain."""
        leaving, writer = list(children), self._writer
        outcomes = await _gather(
            lambda child: writer.remove(child.cluster, child.resource, child.object), leaving
        )
        remaining: set[str] = set()
        for child, outcome in zip(leaving, outcomes, strict=True):
            remaining |= self._record_removal(child.place, outcome)
        return remaining

    async def _clear_clusters(self, clusters: Iterable[str], done: set[Place]) -> set[str]:
        """Delete children that a live list still shows; return clusters where some may remain."""
        remaining = await _gather(lambda name: self._clear_cluster(name, done), sorted(clusters))
        return set[str]().union(*remaining)

    async def _clear_cluster(self, name: str, done: set[Place]) -> set[str]:
        remaining: set[str] = set()
        for resource in self._policy.children:
            try:
                children = await self._writer.list_children(name, resource)
            except (ClusterNotFound, NotEngaged, KubeError) as e:
                place = (name, resource.key, "", "")
                remaining |= self._record_removal(
                    place, ChildOutcome(ChildState.UNREACHABLE, str(e))
                )
                continue
            observed = [ObservedChild(name, resource, child) for child in children]
            remaining |= await self._remove_all(item for item in observed if item.place not in done)
            # A child that was just deleted is still listed while its own finalizers keep it.
            left = {item.place for item in observed} & done
            remaining |= {name for place in left if self._outcomes[place].state in _REMAINING}
        return remaining

    async def _find_unjoined(self, clusters: Iterable[str]) -> frozenset[str]:
        """Find which of these were unjoined, rather than just missing from the fleet (rule D7)."""
        fleet = self._fleet
        absent = [name for name in clusters if not fleet.has(name)]
        if not absent or not fleet.hub:
            return frozenset()
        try:
            hub = fleet.cluster(fleet.hub).live
            namespace = self._policy.hub_namespace or fleet.hub_namespace
            # The projector deletes stale ones; controllers have no right to.
            records = LeaveRecords(namespace, may_delete=False)
            return await records.left(hub, fleet.clusters()) & frozenset(absent)
        except (ClusterNotFound, NotEngaged, KubeError) as e:
            log.warning("leave_records_unreadable", error=str(e))  # treated as not unjoined
            return frozenset()

    def _record_removal(self, place: Place, outcome: ChildOutcome) -> set[str]:
        """Record the outcome of a removal; return the cluster if a child may remain there."""
        is_retained = self._policy.retain or place[0] in self._unjoined
        if outcome.state is ChildState.UNREACHABLE and is_retained:
            outcome = ChildOutcome(ChildState.LEFT_BEHIND, outcome.message)
        self._outcomes[place] = outcome
        return {place[0]} if outcome.state in _REMAINING else set()

    # --- the parent -----------------------------------------------------------------------------

    async def _write_annotation(self, home: Cluster, parent: Object, clusters: set[str]) -> Object:
        """Write the clusters annotation and the finalizer; keep the finalizers of others.

        Raises:
            Conflict: the parent was changed concurrently; to be retried.
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

    async def _propagate_state(
        self,
        home: Cluster,
        parent: Object,
        desired: Sequence[DesiredChild],
        children: Sequence[ObservedChild],
    ) -> None:
        """Run the author's propagate function, and patch the parent if it differs."""
        if self._propagate is None or not desired:
            return
        current = self._current_children(desired, children)
        patch = cast("object", await self._propagate(copy.deepcopy(parent), current, self._fleet))
        if patch is None:
            return
        if not isinstance(patch, dict):
            raise TerminalError(f"@propagate returned {type(patch).__name__}, not a patch or None")
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
        """Return the children for the propagate function, with their problems."""
        there = {child.place: child.object for child in children}
        current: list[Child] = []
        for item in desired:
            outcome = self._outcomes[item.place]
            obj = outcome.object or there.pop(item.place, None) or item.child.object
            there.pop(item.place, None)
            problem = (
                "" if outcome.state is ChildState.IN_SYNC else outcome.message or outcome.state
            )
            current.append(replace(item.child, object=obj, problem=problem))
        return current

    def _requeue(self) -> Result | None:
        """Return when to check again without another trigger."""
        states = {outcome.state for outcome in self._outcomes.values()}
        if states & _RECHECKED:
            recheck = self._policy.recheck * random.uniform(1, 1.3)  # noqa: S311 -- only jitter
            return Result(requeue_after=recheck)
        is_slow = bool(states & _SLOWLY_RECHECKED) or self._has_unread
        return Result(requeue_after=_SLOW_RECHECK) if is_slow else None


async def _gather(function: Callable[[A], Awaitable[T]], arguments: Sequence[A]) -> list[T]:
    """Run calls concurrently, a few at a time, and return their results; an error cancels all."""
    slots = asyncio.Semaphore(_CONCURRENCY)

    async def one(argument: A) -> T:
        async with slots:
            return await function(argument)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(argument)) for argument in arguments]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
