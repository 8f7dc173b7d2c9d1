"""Runs the clusters of one round side by side: none waits for another or fails another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ClusterNotFound, NotAccepted, NotEngaged
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.liveness import Liveness
from fleetbus.kube.impersonation import ActingClient, ServiceAccount
from fleetbus.ownership import Owner
from fleetbus_distributor.announce.announce import Announce
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.health.cluster_health import NO_RULES, StatusRules
from fleetbus_distributor.plan.fleet_fuse import FleetFuse
from fleetbus_distributor.plan.intent import Inventory, Owned
from fleetbus_distributor.render.draft import Draft, Renderer
from fleetbus_distributor.render.spec import Policy, Spec
from fleetbus_distributor.render.template import Object
from fleetbus_distributor.rollout.rollouts import Progress
from fleetbus_distributor.rounds.failing_pods import ExplainHealth, say_no_more
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.silence import SILENT_FOR, SilenceWatch
from fleetbus_distributor.rounds.status_pace import StatusPace
from fleetbus_distributor.targets.circuit_breaker import CircuitBreaker
from fleetbus_distributor.targets.converge import converge
from fleetbus_distributor.targets.drift import Corrections
from fleetbus_distributor.targets.limits import Limits
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_distributor.targets.seen import SeenOnTargets
from fleetbus_distributor.targets.target import LATER, SOON, Target

log = structlog.get_logger()

_SILENT: Final = "the cluster accepts connections, or loses them, and answers nothing"

Requeue = Callable[[Owner, str, timedelta], Awaitable[None]]
"""Enqueue a round: of which owner, for which cluster ("" for all), after how long."""
ReportProgress = Callable[[Sequence[ClusterOutcome]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one round on one cluster."""

    objects: Sequence[Object] = ()
    revision: str = ""
    """Hash of the objects."""
    prune: Sequence[Owned] = ()
    only_compare: bool = False
    is_same: bool = False
    """`revision` was applied here before."""
    may_create: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one MultiClusterResource.

    Args:
        fleet: the clusters.
        owner: the mark of every object.
        manager: our field manager.
        policy: of the spec.
        service_account: whose rights count on the targets; None for those of our own (rule D16).
        inventory: the intent as it is on record.
        breaker: shared by all rounds of the process.
        corrections: likewise.
        seen: likewise; what was written.
        limits: likewise; how much one cluster is asked.
        fuse: likewise; limits deletions over the whole fleet.
        renderer: likewise; places and renders.
        missing: likewise; notes of repairs about missing objects.
        pace: likewise; how often the status is written.
        requeue: enqueues later rounds (rule D11).
        status_rules: how to tell the health of the objects, and what to collect from them.
        rollout: which revision each cluster gets; None if all get the newest.
        announce: tells people and programs what a round found and did.
        explain: says more about the health of a cluster.
        status_after: clusters that take longer are reported as in progress meanwhile.
    """

    fleet: FleetView
    owner: Owner
    manager: str
    policy: Policy
    inventory: Inventory
    breaker: CircuitBreaker
    corrections: Corrections
    seen: SeenOnTargets
    limits: Limits
    fuse: FleetFuse
    renderer: Renderer
    missing: MissingObjects
    pace: StatusPace
    requeue: Requeue
    rollout: Progress | None = None
    service_account: ServiceAccount | None = None
    status_rules: StatusRules = NO_RULES
    announce: Announce
    explain: ExplainHealth = say_no_more
    status_after: timedelta = field(default=timedelta(seconds=2))

    async def draft(self, spec: Spec, clusters: Sequence[ClusterInfo]) -> Draft:
        """Place and render, each cluster from the revision that it has."""
        hub = self.fleet.hub
        if self.rollout is None:
            return await self.renderer.draft(spec, clusters, hub)
        return await self.renderer.draft(spec, clusters, hub, self.rollout.specs)

    def client_of(self, name: str) -> KubeClient:
        """A client of a target, with the rights that count there (rule D16).

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: it cannot be used yet.
        """
        return self._as_account(self.fleet.cluster(name).live)

    def _as_account(self, client: KubeClient) -> KubeClient:
        account = self.service_account
        return ActingClient(client, account.user) if account else client

    async def run(self, work: Mapping[str, Work], interim: ReportProgress) -> list[ClusterOutcome]:
        """Work on all clusters at once.

        Args:
            work: what to do, per cluster.
            interim: gets the outcomes so far when some clusters are slow.
        """
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(self._work_on(name, one), name=f"converge {name}")
                for name, one in work.items()
            }
            if not tasks:
                return []
            given_up = group.create_task(self._give_up_silent(tasks), name="give up")
            waited = self.status_after.total_seconds()
            _, slow = await asyncio.wait(tasks.values(), timeout=waited)
            if slow:
                await interim([self._so_far(name, task) for name, task in tasks.items()])
                await asyncio.wait(tasks.values())
            given_up.cancel()
        return [
            self._given_up(name) if task.cancelled() else task.result()
            for name, task in tasks.items()
        ]

    async def _give_up_silent(self, tasks: Mapping[str, asyncio.Task[ClusterOutcome]]) -> None:
        """Stop waiting for clusters that answer nothing, once they alone delay the round.

        Their slot is needed by others; they are tried again after their cooldown.
        """
        watch = SilenceWatch()
        while pending := [name for name, task in tasks.items() if not task.done()]:
            await watch.pause()
            if self.limits.turns.are_scarce:
                continue
            answered = {name: self._answered_at(name) for name in tasks}
            known = {name for name in pending if self.breaker.is_open(name)}
            for name in watch.silent(answered, pending, known):
                self.breaker.record_failure(name, "Timeout", _SILENT, SILENT_FOR)
                tasks[name].cancel()

    def _answered_at(self, name: str) -> float:
        """When a cluster last sent anything to this process, in `time.monotonic()`."""
        try:
            return self.fleet.cluster(name).live.liveness.answered_at
        except (ClusterNotFound, NotEngaged):
            return float("inf")  # its task ends by itself

    def _given_up(self, name: str) -> ClusterOutcome:
        return self._unreachable(name, "Timeout", _SILENT)

    def _so_far(self, name: str, task: asyncio.Task[ClusterOutcome]) -> ClusterOutcome:
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        message = "the cluster has not answered yet"
        return self._without_contact(name, State.WAITING, "InProgress", message, SOON)

    async def _work_on(self, name: str, work: Work) -> ClusterOutcome:
        if cooldown := self.breaker.cooldown_of(name):
            return self._unreachable(name, cooldown.reason, cooldown.message)
        # The first use of a cluster makes its client, of which there may be a thousand.
        (await self.limits.turns.take(Liveness())).end()
        client = self._client(name)
        if isinstance(client, ClusterOutcome):
            return client
        target = self._target(name, work, client)
        try:
            target.aliases = await self.fleet.aliases(name)
        except NotAccepted as error:
            return self._unreachable(name, error.reason, error.message)
        started = time.monotonic()
        try:
            result = await converge(target, work.objects, work.prune, work.revision)
            await self.explain(result)
        except Exception as error:
            if self._has_left(name, client):
                return self._unreachable(name, "NotEngaged", "the cluster left meanwhile")
            # A bug, or an answer that no API server should give: other clusters go on.
            log.exception("cluster_round_failed", cluster=name)
            message = f"internal error: {type(error).__name__}"
            return self._without_contact(name, State.FAILED, "InternalError", message, LATER)
        took = timedelta(seconds=time.monotonic() - started)
        if result.state is State.UNREACHABLE:
            self.breaker.record_failure(name, result.reason, result.message, took)
        else:
            self.breaker.record_answer(name)
        return result

    def _client(self, name: str) -> KubeClient | ClusterOutcome:
        info = self._info(name)
        if info is not None and info.suspended:
            message = (
                "the Cluster is suspended, so nothing is written there; to resume, set its "
                f"spec.suspend to false, or remove it from the fleet: fleetbus unjoin {name}"
            )
            return self._without_contact(name, State.WAITING, "ClusterSuspended", message, LATER)
        try:
            return self.fleet.cluster(name).live
        except (ClusterNotFound, NotEngaged) as error:
            return self._unreachable(name, "NotEngaged", str(error))

    def _target(self, name: str, work: Work, client: KubeClient) -> Target:
        limits = self.limits.of(name)
        if name != self.fleet.hub:
            client.limiter = limits.requests
        return Target(
            name=name,
            client=self._as_account(client),
            service_account=str(self.service_account or ""),
            owner=self.owner,
            manager=self.manager,
            policy=self.policy,
            corrections=self.corrections,
            seen=self.seen,
            limits=limits,
            known=self.inventory.get(name, {}),
            only_compare=work.only_compare,
            is_same=work.is_same,
            status_rules=self.status_rules,
            may_create=work.may_create,
        )

    def _has_left(self, name: str, client: KubeClient) -> bool:
        """Whether the client was closed meanwhile, because the cluster left or was replaced."""
        try:
            return self.fleet.cluster(name).live is not client
        except (ClusterNotFound, NotEngaged):
            return True

    def _info(self, name: str) -> ClusterInfo | None:
        return next((info for info in self.fleet.clusters() if info.name == name), None)

    def _unreachable(self, name: str, reason: str, message: str) -> ClusterOutcome:
        return self._without_contact(name, State.UNREACHABLE, reason, message, LATER)

    def _without_contact(
        self, name: str, state: State, reason: str, message: str, retry: timedelta
    ) -> ClusterOutcome:
        """An outcome without any write, so everything on record stays on record."""
        inventory = dict(self.inventory.get(name, {}))
        return ClusterOutcome(name, state, reason, message, retry, inventory)
