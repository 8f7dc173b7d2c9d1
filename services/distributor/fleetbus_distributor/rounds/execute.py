"""Executes the work of a round on its clusters side by side: none waits for or fails another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ClusterNotFound, NotAccepted, NotEngaged
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.liveness import Liveness
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.rounds.failing_pods import ExplainHealth
from fleetbus_distributor.rounds.round import Round, Work
from fleetbus_distributor.targets.circuit_breaker import CircuitBreaker
from fleetbus_distributor.targets.converge import converge
from fleetbus_distributor.targets.corrections import Corrections
from fleetbus_distributor.targets.limits import Limits
from fleetbus_distributor.targets.memory import TargetMemory
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_distributor.targets.target import LATER, SOON, Target

log = structlog.get_logger()

_SILENT: Final = "the cluster accepts or drops connections without answering"
SILENT_FOR: Final = timedelta(seconds=1)
"""Silence allowed to a cluster that alone delays its round."""
SILENT_ALONE: Final = timedelta(seconds=5)
"""Silence allowed to clusters while no other one of their round has answered either."""
_LOOK: Final = timedelta(milliseconds=250)

ReportProgress: TypeAlias = Callable[[Sequence[ClusterOutcome]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Works on clusters; what it knows about them is shared by all rounds of the process."""

    limits: Limits
    explain: ExplainHealth
    status_after: timedelta
    """Clusters that take longer are reported as in progress meanwhile."""
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    """Which clusters hang."""
    memory: TargetMemory = field(default_factory=TargetMemory)
    """Versions and namespaces that this process has seen on targets."""
    corrections: Corrections = field(default_factory=Corrections)

    async def run(
        self, round_: Round, work: Mapping[str, Work], interim: ReportProgress | None = None
    ) -> list[ClusterOutcome]:
        """Work on all clusters at once.

        Args:
            round_: the facts of the round.
            work: what to do, per cluster.
            interim: gets the outcomes so far when some clusters are slow.
        """
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(self._work_on(round_, name, share), name=f"converge {name}")
                for name, share in work.items()
            }
            if not tasks:
                return []
            patience = group.create_task(self._give_up_silent(round_.fleet, tasks), name="give up")
            timeout = self.status_after.total_seconds()
            _, slow = await asyncio.wait(tasks.values(), timeout=timeout)
            if slow and interim is not None:
                await interim([_so_far(name, work[name], task) for name, task in tasks.items()])
            if slow:
                await asyncio.wait(tasks.values())
            patience.cancel()
        return [
            _unreachable(name, work[name], "Timeout", _SILENT)
            if task.cancelled()
            else task.result()
            for name, task in tasks.items()
        ]

    async def _give_up_silent(
        self, fleet: FleetView, tasks: Mapping[str, asyncio.Task[ClusterOutcome]]
    ) -> None:
        """Stop waiting for clusters that answer nothing, once they alone delay the round.

        Their slot is needed by others; they are tried again after their cooldown.
        """
        watch = SilenceWatch()
        while pending := [name for name, task in tasks.items() if not task.done()]:
            await watch.pause()
            if self.limits.turns.are_scarce:
                continue
            answered = {name: _answered_at(fleet, name) for name in tasks}
            hanging = {name for name in pending if self.breaker.is_open(name)}
            for name in watch.silent(answered, pending, hanging):
                self.breaker.record_failure(name, "Timeout", _SILENT, SILENT_FOR)
                tasks[name].cancel()

    async def _work_on(self, round_: Round, name: str, work: Work) -> ClusterOutcome:
        if cooldown := self.breaker.cooldown_of(name):
            return _unreachable(name, work, cooldown.reason, cooldown.message)
        # The first use of a cluster makes its client, of which there may be a thousand.
        (await self.limits.turns.take(Liveness())).end()
        client = _client(round_.fleet, name, work)
        if isinstance(client, ClusterOutcome):
            return client
        target = self._target(round_, name, work, client)
        try:
            target.aliases = await round_.fleet.aliases(name)
        except NotAccepted as error:
            return _unreachable(name, work, error.reason, error.message)
        started = time.monotonic()
        try:
            outcome = await converge(target, work.objects, work.prune, work.revision)
            await self.explain(outcome)
        except Exception as error:
            if _has_left(round_.fleet, name, client):
                return _unreachable(name, work, "NotEngaged", "the cluster left meanwhile")
            # A bug, or an answer that no API server should give: other clusters go on.
            log.exception("cluster_round_failed", cluster=name)
            message = f"internal error: {type(error).__name__}"
            return _without_contact(name, work, State.FAILED, "InternalError", message, LATER)
        duration = timedelta(seconds=time.monotonic() - started)
        if outcome.state is State.UNREACHABLE:
            self.breaker.record_failure(name, outcome.reason, outcome.message, duration)
        else:
            self.breaker.record_answer(name)
        return outcome

    def _target(self, round_: Round, name: str, work: Work, client: KubeClient) -> Target:
        limits = self.limits.of(name)
        if name != round_.fleet.hub:
            client.limiter = limits.requests
        return Target(
            name=name,
            client=round_.acting(client),
            service_account=str(round_.service_account or ""),
            owner=round_.owner,
            manager=round_.manager,
            policy=round_.policy,
            corrections=self.corrections,
            memory=self.memory,
            limits=limits,
            known=work.recorded,
            only_compare=work.only_compare,
            is_same=work.is_same,
            status_rules=work.status_rules,
            may_create=work.may_create,
        )


def _client(fleet: FleetView, name: str, work: Work) -> KubeClient | ClusterOutcome:
    info = _info(fleet, name)
    if info is not None and info.suspended:
        message = (
            "the Cluster is suspended, so nothing is written there; to resume, set its "
            f"spec.suspend to false, or remove it from the fleet: fleetbus unjoin {name}"
        )
        return _without_contact(name, work, State.WAITING, "ClusterSuspended", message, LATER)
    try:
        return fleet.cluster(name).live
    except (ClusterNotFound, NotEngaged) as error:
        return _unreachable(name, work, "NotEngaged", str(error))


def _info(fleet: FleetView, name: str) -> ClusterInfo | None:
    return next((info for info in fleet.clusters() if info.name == name), None)


def _answered_at(fleet: FleetView, name: str) -> float:
    """When a cluster last sent anything to this process, in `time.monotonic()`."""
    try:
        return fleet.cluster(name).live.liveness.answered_at
    except (ClusterNotFound, NotEngaged):
        return float("inf")  # its task ends by itself


def _has_left(fleet: FleetView, name: str, client: KubeClient) -> bool:
    """Whether the client was closed meanwhile, because the cluster left or was replaced."""
    try:
        return fleet.cluster(name).live is not client
    except (ClusterNotFound, NotEngaged):
        return True


def _so_far(name: str, work: Work, task: asyncio.Task[ClusterOutcome]) -> ClusterOutcome:
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    message = "the cluster has not answered yet"
    return _without_contact(name, work, State.WAITING, "InProgress", message, SOON)


def _unreachable(name: str, work: Work, reason: str, message: str) -> ClusterOutcome:
    return _without_contact(name, work, State.UNREACHABLE, reason, message, LATER)


def _without_contact(
    name: str, work: Work, state: State, reason: str, message: str, retry: timedelta
) -> ClusterOutcome:
    """An outcome without any write, so everything on record stays on record."""
    return ClusterOutcome(name, state, reason, message, retry, dict(work.recorded))


class SilenceWatch:
    """Decides which clusters of a round are not worth waiting for, from its start (rule D11).

    A cluster that hangs would hold the slot of its round for as long as its requests may take. What
    must not happen is that a busy machine takes its own delay for the silence of a cluster: as long
    as any cluster of the round answers, or our own timers are late, nobody is given up.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._is_late = False

    async def pause(self) -> None:
        """Wait until it is time to look."""
        planned = time.monotonic() + _LOOK.total_seconds()
        await asyncio.sleep(_LOOK.total_seconds())
        self._is_late = time.monotonic() - planned > _LOOK.total_seconds()

    def silent(
        self, answered: Mapping[str, float], pending: Sequence[str], hanging: Collection[str]
    ) -> list[str]:
        """List the clusters to give up.

        Args:
            answered: when each cluster of the round last sent anything.
            pending: the clusters that the round waits for.
            hanging: those of them that other rounds have found to hang.
        """
        now = time.monotonic()
        silent = [name for name in pending if answered[name] < self._began]
        if self._is_late or now - self._began < SILENT_FOR.total_seconds():
            return []
        others = [at for at in answered.values() if self._began <= at <= now]
        if not others:
            is_long = now - self._began >= SILENT_ALONE.total_seconds()
            return silent if is_long else [name for name in silent if name in hanging]
        is_quiet = max(others) < now - 2 * _LOOK.total_seconds()
        return silent if is_quiet and len(silent) == len(pending) else []
