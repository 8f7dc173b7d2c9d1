"""Reconciles one MultiClusterResource, level-triggered.

read live → place → render → plan → record intent → apply, per cluster → confirm → status

A crash may follow every step: the intent is on record before the first write, and each step starts
from the observed state, so the next round finishes what this one began.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

import structlog

from fleetbus.clusters.leaving import LeaveRecords
from fleetbus.deletions.budget import DeletionBudget
from fleetbus.errors import Conflict, NotEngaged, NotFound, StoreError
from fleetbus.fleet.inventory_chunks import NewerStatus
from fleetbus.kube.client import KubeClient
from fleetbus.kube.impersonation import ServiceAccount
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES, Owner, field_manager
from fleetbus.reconcile import Request, Result
from fleetbus_distributor.announce.announce import Announce
from fleetbus_distributor.errors import ChunkError, IntentError, RolloutError, SpecError
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.hub import entries, status
from fleetbus_distributor.hub.chunks import ChunkStore
from fleetbus_distributor.hub.document import Document, KubeEvent
from fleetbus_distributor.hub.status import Condition
from fleetbus_distributor.kind import API_VERSION, KIND
from fleetbus_distributor.off_loop import off_loop
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.fleet_fuse import FleetFuse
from fleetbus_distributor.plan.intent import Inventory
from fleetbus_distributor.render.draft import Renderer
from fleetbus_distributor.render.spec import (
    DeletionPolicy,
    Policy,
    Spec,
    read_service_account,
    read_spec,
)
from fleetbus_distributor.rollout.rollouts import Progress, ReadVote, Rollouts
from fleetbus_distributor.rounds.cleanup import Cleanup
from fleetbus_distributor.rounds.distribute import Distribution
from fleetbus_distributor.rounds.execute import Executor
from fleetbus_distributor.rounds.failing_pods import ExplainHealth, say_no_more
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.repair import Repairs
from fleetbus_distributor.rounds.round import Requeue, Round
from fleetbus_distributor.rounds.settled import Scope, SettledRounds, facts_of, scope_of
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_distributor.targets.limits import Limits
from fleetbus_distributor.targets.outcome import State, earliest
from fleetbus_distributor.targets.target import AT_ONCE, PAUSED, RARELY, SOON

log = structlog.get_logger()

_MANY_EACH: Final = range(20)
"""A guess, to decide where an intent is read that nobody has counted yet."""
_Step: TypeAlias = Callable[[FleetView, KubeClient, Document, str], Awaitable[timedelta | None]]


class Distributor:
    """Reconciles MultiClusterResources.

    Args:
        settings: intervals and limits.
        budget: of the deletions that no edit requests, shared by all processes.
        missing: notes of repairs about missing objects, shared likewise.
        pace: when each status was last written, shared likewise.
        settled: the rounds for all clusters that need no repetition.
        requeue: enqueues later rounds.
        read_vote: reads the last vote on a gate of a rollout.
        announce: tells people and programs what a round found and did.
        explain: says more about the health of a cluster.
    """

    def __init__(
        self,
        *,
        settings: DistributorSettings,
        budget: DeletionBudget,
        missing: MissingObjects,
        pace: StatusPace,
        settled: SettledRounds,
        requeue: Requeue,
        read_vote: ReadVote,
        announce: Announce,
        explain: ExplainHealth = say_no_more,
    ) -> None:
        self._settings = settings
        self._missing = missing
        self._settled = settled
        self._requeue = requeue
        self._announce = announce
        self._chunks = ChunkStore()
        self._leave_records = LeaveRecords(settings.namespace)
        self._hub_identity: tuple[KubeClient, str] | None = None
        """UID by client: a hub that was replaced has another client."""
        self._newer = set[str]()
        """UIDs of those whose status a newer release has written, and that were reported."""
        renderer = Renderer()
        self.executor = executor = Executor(
            limits=Limits(qps=settings.qps, burst=settings.burst, in_flight=settings.in_flight),
            explain=explain,
            status_after=settings.status_after,
        )
        self._rollouts = Rollouts(renderer=renderer, read_vote=read_vote)
        self._distribution = Distribution(
            renderer=renderer,
            fuse=FleetFuse(budget),
            executor=executor,
            pace=pace,
            announce=announce,
            requeue=requeue,
        )
        self._repairs = Repairs(
            renderer=renderer,
            executor=executor,
            missing=missing,
            pace=pace,
            announce=announce,
            requeue=requeue,
        )
        self._cleanup = Cleanup(executor=executor, announce=announce, records=settings.namespace)

    async def reconcile(self, request: Request, fleet: FleetView) -> Result | None:
        """Reconcile one MultiClusterResource on all clusters.

        Raises:
            NotEngaged: the fleet is not known yet; the request is retried.
            KubeError: the hub refused or did not answer; the request is retried.
        """
        if request.cluster != fleet.hub and fleet.is_known:
            return None  # a MultiClusterResource outside the hub has no effect
        return await self._read_and(self._reconcile, request, fleet)

    async def repair(self, request: Request, fleet: FleetView) -> Result | None:
        """Reconcile one MultiClusterResource on the cluster that the request names (rule D11).

        Raises:
            NotEngaged: the fleet is not known yet; the request is retried.
            KubeError: the hub refused or did not answer; the request is retried.
        """
        if fleet.is_known and not any(i.name == request.cluster for i in fleet.clusters()):
            return None

        async def step(
            view: FleetView, _hub: KubeClient, document: Document, hub_id: str
        ) -> timedelta | None:
            return await self._repair(view, document, hub_id, request.cluster)

        return await self._read_and(step, request, fleet)

    async def _read_and(self, step: _Step, request: Request, fleet: FleetView) -> Result | None:
        if not fleet.is_known:
            raise NotEngaged("the clusters of the fleet are not known yet")
        if not fleet.hub:
            return None
        hub = fleet.cluster(fleet.hub).live
        hub_id = await self._identity_of(hub)
        resource = await hub.get(MULTI_CLUSTER_RESOURCES, request.namespace, request.name)
        if resource is None:
            return None
        document = Document(hub, resource, self._chunks)
        try:
            document.check_format()
            retry = await step(fleet, hub, document, hub_id)
        except NewerStatus as newer:
            retry = RARELY
            await self._tell_newer(document, newer)
        except (Conflict, NotFound):
            # Somebody changed or removed it meanwhile: read it again.
            retry = AT_ONCE
        return Result(requeue_after=retry) if retry else None

    async def _tell_newer(self, document: Document, newer: NewerStatus) -> None:
        """Report a status of a newer release once, without a write to the object.

        If the definition is older than the status, any write drops the fields that it lacks.
        """
        uid = str(document.metadata["uid"])
        if uid not in self._newer:
            self._newer.add(uid)
            place = (document.metadata["namespace"], document.metadata["name"])
            log.warning(
                "status_of_a_newer_release", namespace=place[0], name=place[1], error=str(newer)
            )
            await document.emit_events([KubeEvent("NewerRelease", str(newer), is_warning=True)])

    async def _repair(
        self, fleet: FleetView, document: Document, hub_id: str, cluster: str
    ) -> timedelta | None:
        if not document.has_finalizer:
            return None
        if _deletion_is_paused(document, cluster):
            # Perhaps not any more, and only the round for all clusters deletes (rule D26).
            await self._requeue(_owner_of(document, fleet, hub_id), "", SOON)
        if document.is_deleted:
            return None
        if not document.is_observed:
            return SOON  # the round for all clusters is about to run
        try:
            await document.load_chunks(from_cache=True)
            inventory = await _inventory_of(document)
            spec = _spec_to_apply(document)
            rollout = await self._rollouts.resume(fleet, document, spec, inventory)
            if rollout is None and spec.rollout is not None:
                return None  # the round for all clusters has yet to begin it
            round_ = self._round(fleet, document, hub_id, inventory)
            return await self._repairs.repair(round_, document, spec, rollout, cluster)
        except (SpecError, IntentError, RolloutError, _SpecNotApplied) as problem:
            log.debug("not_repaired", cluster=cluster, error=str(problem))
            return None  # reported by the round for all clusters

    async def _identity_of(self, hub: KubeClient) -> str:
        if self._hub_identity is None or self._hub_identity[0] is not hub:
            self._hub_identity = (hub, await hub.accepted_uid())
        return self._hub_identity[1]

    async def _reconcile(
        self, fleet: FleetView, hub: KubeClient, document: Document, hub_id: str
    ) -> timedelta | None:
        if document.is_deleted and not document.has_finalizer:
            return None
        retry: timedelta | None = None
        try:
            await document.load_chunks()
            inventory = await _inventory_of(document)
            unjoined = await self._unjoined(fleet, hub, inventory)
            round_ = self._round(fleet, document, hub_id, inventory, unjoined)
            if document.is_deleted:
                if round_.policy.suspend and inventory:
                    raise _suspended("it is deleted once spec.policy.suspend is off")
                return await self._cleanup.run(round_, document)
            spec = _spec_to_apply(document)
            if not document.has_finalizer:
                await document.add_finalizer()
            retry = await self._work(round_, document, spec)
            return earliest(retry, self._settings.resync)
        except SpecError as error:
            problem = Condition(status.READY, False, "InvalidSpec", str(error))
        except IntentError as error:
            retry = RARELY if isinstance(error, ChunkError) else None
            problem = Condition(status.READY, False, "IntentUnusable", str(error))
        except RolloutError as error:
            problem = Condition(status.READY, False, "RolloutUnusable", str(error))
        except _SpecNotApplied as refusal:
            problem = refusal.problem
        before = document.status
        await document.write_status(status.refuse(problem, document.generation, before))
        await self._announce(document, (), before)
        return retry

    async def _work(self, round_: Round, document: Document, spec: Spec) -> timedelta | None:
        """Work on all clusters, or, if nothing else has changed, on those that need it."""
        # Read: the fleet, what repairs have found missing, and where a rollout is.
        uid, unjoined = round_.owner.uid, round_.unjoined
        clusters, now = tuple(round_.fleet.clusters()), self._settled.now()
        notes = await self._notes(uid)
        rollout = await self._rollouts.begin(
            round_.fleet, round_.client_of, document, spec, round_.inventory
        )
        # Decide: which clusters need work.
        last = self._settled.last(uid, facts_of(document, clusters, unjoined))
        scope = scope_of(last, notes, rollout.touched if rollout else frozenset())
        if scope.only_missing:
            retry = last.retry if last else None
            wait = await self._work_on_few(round_, document, spec, rollout, scope, notes)
            return earliest(retry, wait)
        if scope.clusters is None:
            last = None
        # Execute, and report it.
        self._settled.forget(uid)
        following, rollout = await self._distribution.run(
            round_, document, spec, rollout, scope.clusters
        )
        retry = earliest(following.retry, last.retry if last else None)
        if following.is_settled:
            facts, began = facts_of(document, clusters, unjoined), last.began if last else now
            self._settled.record(uid, facts, began, retry)
        if notes:
            await self._missing.forget(uid, notes)
        if rollout is None:
            return retry
        await self._rollouts.trim(round_.fleet, document, rollout)
        return earliest(retry, rollout.next_round)

    async def _work_on_few(
        self,
        round_: Round,
        document: Document,
        spec: Spec,
        rollout: Progress | None,
        scope: Scope,
        notes: frozenset[str] | None,
    ) -> timedelta | None:
        """Create what repairs have found missing, and note what became of the gates.

        If it is too early to report that, the notes stay for the round that does.
        """
        retry: timedelta | None = None
        if rollout is not None:
            await document.write_status(status.with_rollout(document.status, rollout.tree))
            await self._announce.rollout(document, rollout.changes)
            await self._rollouts.trim(round_.fleet, document, rollout)
            retry = rollout.next_round
        clusters = scope.clusters or frozenset()
        if wait := await self._repairs.create_missing(round_, document, spec, rollout, clusters):
            return earliest(retry, wait)
        if notes:
            await self._missing.forget(round_.owner.uid, notes)
        return retry

    async def _notes(self, uid: str) -> frozenset[str] | None:
        """The notes of repairs; None if the store is away."""
        try:
            return await self._missing.read(uid)
        except StoreError as error:
            log.debug("missing_objects_unknown", error=str(error))
            return None

    async def _unjoined(
        self, fleet: FleetView, hub: KubeClient, inventory: Inventory
    ) -> frozenset[str]:
        """Unjoined clusters; read only when a cluster on record is absent."""
        members = fleet.clusters()
        if inventory.keys() <= {info.name for info in members}:
            await self._leave_records.clear(hub, members)
            return frozenset()
        return await self._leave_records.left(hub, members)

    def _round(
        self,
        fleet: FleetView,
        document: Document,
        hub_id: str,
        inventory: Inventory,
        unjoined: frozenset[str] = frozenset(),
    ) -> Round:
        account = self._service_account(document, inventory)
        return Round(
            fleet=fleet,
            owner=_owner_of(document, fleet, hub_id),
            manager=field_manager(hub_id),
            policy=_policy_of(document),
            service_account=account,
            inventory=inventory,
            unjoined=unjoined,
        )

    def _service_account(self, document: Document, inventory: Inventory) -> ServiceAccount | None:
        """Whose rights count on the targets, also for deletions; None for our own (rule D16).

        Raises:
            SpecError: the name is invalid.
            _SpecNotApplied: none is named, and one is required.
        """
        if name := read_service_account(document.resource):
            return ServiceAccount(document.metadata["namespace"], name)
        has_ended = document.is_deleted and not inventory
        if has_ended or not self._settings.require_service_account:
            return None
        message = (
            "spec.serviceAccountName: required here; nothing is applied or deleted until it names"
            " a ServiceAccount of this namespace, whose rights are used on the clusters"
        )
        raise _SpecNotApplied(Condition(status.READY, False, "ServiceAccountRequired", message))


class _SpecNotApplied(Exception):
    """The spec is valid, but must not be applied."""

    def __init__(self, problem: Condition) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _owner_of(document: Document, fleet: FleetView, hub_id: str) -> Owner:
    metadata = document.metadata
    return Owner(
        api_version=API_VERSION,
        kind=KIND,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        cluster_name=fleet.hub,
        hub=hub_id,
    )


def _deletion_is_paused(document: Document, cluster: str) -> bool:
    """Whether a person keeps an object there that is to be deleted, as far as is known."""
    entry = entries.read_entry(document.status, cluster)
    return (entry.state, entry.reason) == (State.HELD, PAUSED)


def _spec_to_apply(document: Document) -> Spec:
    spec = read_spec(document.resource)
    if spec.policy.suspend:
        raise _suspended("spec.policy.suspend is on")
    return spec


def _suspended(why: str) -> _SpecNotApplied:
    message = f"{why}; nothing is applied or deleted"
    return _SpecNotApplied(Condition(status.READY, False, "Suspended", message))


async def _inventory_of(document: Document) -> Inventory:
    """Read the intent, in a thread if there are many clusters."""
    stored = entries.entries_in(document.status)
    share = {str(entry.get("name")): _MANY_EACH for entry in stored}
    return await off_loop(share, intent.read, document.status)


def _policy_of(document: Document) -> Policy:
    """The policy; of an invalid spec only what becomes of the objects counts.

    Raises:
        SpecError: that is invalid, too; it may have been meant to keep the objects.
    """
    try:
        return read_spec(document.resource).policy
    except SpecError as error:
        policy = _raw_policy(document)
        deletion = policy.get("deletion", DeletionPolicy.DELETE) if policy is not None else None
        if policy is None or deletion not in tuple(DeletionPolicy):
            refusal = "spec.policy.deletion: neither Delete nor Orphan, so nothing is deleted"
            raise SpecError([*error.problems, refusal]) from error
        suspend = policy.get("suspend", False) is not False
        return Policy(deletion=DeletionPolicy(deletion), suspend=suspend)


def _raw_policy(document: Document) -> dict[str, Any] | None:
    """The policy as it is written, empty if there is none; None if it is no map."""
    value: Any = document.resource
    for name in ("spec", "policy"):
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, Any]", value).get(name, {})
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
