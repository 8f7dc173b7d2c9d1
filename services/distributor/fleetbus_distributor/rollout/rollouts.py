"""Runs the rollouts: which revision each cluster gets in a round, and what the round found.

In this order, so that a crash between any two steps resumes: the revision is stored, then
`status.rollout` refers to it, in one write with the intent (rule D2), then the clusters get it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube.client import KubeClient
from fleetbus.process.redact import cut
from fleetbus_distributor.fleet_view import FleetView, TargetClients
from fleetbus_distributor.hub import entries, status
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.rollout_state import (
    AWAY,
    Phase,
    RevisionRef,
    RolloutState,
    WavePhase,
    WaveStatus,
    read_state,
    write_state,
)
from fleetbus_distributor.plan.intent import Inventory
from fleetbus_distributor.render.draft import Draft, Renderer
from fleetbus_distributor.render.place import Member, place
from fleetbus_distributor.render.rollout_spec import QUIET
from fleetbus_distributor.render.spec import Spec
from fleetbus_distributor.rollout.advance import Finding, Step, advance, next_look, observe
from fleetbus_distributor.rollout.changes import RolloutChange, changes_of
from fleetbus_distributor.rollout.quiet import look
from fleetbus_distributor.rollout.revisions import Revisions, fields_of, name_of
from fleetbus_distributor.rollout.waves import (
    Scene,
    definition_of,
    follow_placement,
    moved,
    start,
)
from fleetbus_distributor.targets.outcome import ClusterOutcome, State
from fleetbus_distributor.targets.target import AT_ONCE
from fleetbus_proto.subjects import vote_subject, votes_prefix

ReadVote: TypeAlias = Callable[[str], Awaitable[Finding]]
"""Read the last vote on a subject."""
HEALTH_POLL: Final = timedelta(seconds=15)
"""A change of an object wakes the rollout; this is for kinds that are not watched."""
_MAX_TURNS: Final = 4
_MAX_WHY: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The rollout of one MultiClusterResource in one round."""

    stored: RolloutState | None
    """As it is in the status."""
    state: RolloutState
    specs: Mapping[str, Spec | None]
    """Clusters that do not have the newest revision → the one they have, if it is known."""
    step: Step
    is_undo: bool = False
    """The newest revision begins in this round, and an earlier one had the same content."""

    @property
    def is_changed(self) -> bool:
        """Whether the status differs from what is stored."""
        return self.stored is None or write_state(self.stored) != write_state(self.state)

    @property
    def changes(self) -> list[RolloutChange]:
        """The changes since it was stored."""
        return changes_of(self.stored, self.state, is_undo=self.is_undo)

    @property
    def touched(self) -> frozenset[str]:
        """The clusters that have to be worked on or looked at."""
        late = self.state.updating.keys() if _is_late(self.state, self.step) else ()
        return moved(self.stored, self.state) | frozenset(late)

    @property
    def tree(self) -> dict[str, Any]:
        """The value of `status.rollout`."""
        return write_state(self.state)

    @property
    def next_round(self) -> timedelta | None:
        """When it needs a round for all clusters if no event comes."""
        ready = replace(self.step, may_give=True, may_fail=False)
        has_next = write_state(advance(self.state, ready)) != write_state(self.state)
        return AT_ONCE if has_next else next_look(self.state, self.step)

    @property
    def has_spare_revisions(self) -> bool:
        """Whether old revisions may have become superfluous."""
        is_new = self.stored is None or self.stored.revision != self.state.revision
        is_complete = self.state.phase is Phase.COMPLETE
        return is_new or (is_complete and self.is_changed)

    @property
    def polled(self) -> frozenset[str]:
        """Clusters whose health is awaited."""
        is_active = self.state.phase in (Phase.PROGRESSING, Phase.HELD)
        return frozenset(self.state.updating) if is_active else frozenset()

    def waits(self, cluster: str, *, has_objects: bool) -> str:
        """Why a cluster gets nothing."""
        wave = self.state.wave_of(cluster)
        name = wave.name if wave else ""
        is_open = wave is not None and wave.phase is not WavePhase.WAITING
        why = f"it waits for its turn in wave {name}" if is_open else f"wave {name} is not open"
        left = "; the revision that it has is not stored, so its objects stay as they are"
        return why + left if has_objects else why

    def observed(
        self, draft: Draft, outcomes: Sequence[ClusterOutcome], *, is_whole: bool
    ) -> Progress:
        """Note which clusters are ready (rule D17).

        Args:
            draft: what was to be there.
            outcomes: of the clusters that were worked on.
            is_whole: these are all clusters that the open wave waits for, so time limits count.
        """
        names = {outcome.name for outcome in outcomes}
        rendered = [outcome for outcome in outcomes if outcome.name in draft.revisions]
        reasons = {each.name: _why_not_ready(each, draft.revisions[each.name]) for each in rendered}
        reasons |= {name: cut(each.message, _MAX_WHY) for name, each in draft.problems.items()}
        holding = {outcome.name for outcome in outcomes if outcome.state is State.HELD}
        now = _now()
        step = replace(
            self.step,
            scene=replace(self.step.scene, held=self.step.scene.held - names | holding),
            may_give=False,
            may_fail=is_whole,
            now=now,
        )
        state = observe(self.state, reasons)
        wave = state.current
        written = {outcome.name for outcome in rendered if outcome.changes}
        if wave and wave.phase is WavePhase.OPEN and not written.isdisjoint(state.updating):
            state = state.with_wave(replace(wave, progressed_at=now))
        return replace(self, state=advance(state, step), step=step)


def _why_not_ready(outcome: ClusterOutcome, revision: str) -> str:
    """Why a cluster is not ready; "" if everything is applied there, and healthy."""
    if outcome.state is State.UNREACHABLE:
        return cut(f"{AWAY}{outcome.message}", _MAX_WHY)
    if outcome.state not in (State.APPLIED, State.DRIFTED):
        return cut(f"{outcome.state}: {outcome.message}", _MAX_WHY)
    if outcome.revision != revision:
        return "not everything is applied"
    return cut(outcome.unhealthy, _MAX_WHY)


def _is_late(state: RolloutState, step: Step) -> bool:
    """Whether the time limit of the open wave is over: then its clusters are looked at first."""
    wave = state.current
    if wave is None or wave.phase is not WavePhase.OPEN or wave.progressed_at is None:
        return False
    return step.now - wave.progressed_at >= step.rollout.health_gate.timeout


def _now() -> datetime:
    return datetime.now(UTC)


class Rollouts:
    """Takes the steps of the rollouts.

    Args:
        renderer: shared by all rounds of the process.
        read_vote: reads the last vote on a subject.
    """

    def __init__(self, *, renderer: Renderer, read_vote: ReadVote) -> None:
        self._renderer = renderer
        self._read_vote = read_vote
        self._revisions = Revisions()
        self._ensured: dict[str, str] = {}
        """UID → the newest revision, as this process has seen it stored."""

    async def begin(
        self,
        fleet: FleetView,
        clients: TargetClients,
        document: Document,
        spec: Spec,
        inventory: Inventory,
    ) -> Progress | None:
        """Take the next step of a rollout; None without `spec.rollout`.

        Args:
            fleet: the clusters.
            clients: read them.
            document: the MultiClusterResource, read live.
            spec: its spec.
            inventory: the intent as it is on record.

        Raises:
            RolloutError: the status is malformed, or the revision cannot be stored.
            KubeError: the hub did not answer.
        """
        if spec.rollout is None:
            return None
        hub = fleet.cluster(fleet.hub).live
        stored = read_state(document.status)
        newest, is_undo = await self._newest(hub, document, stored)
        scene = await self._scene(fleet, document, spec, inventory, is_first=stored is None)
        state = stored
        if (
            state is None
            or state.revision != newest
            or state.definition != definition_of(spec.rollout)
        ):
            state = start(stored, spec.rollout, newest, scene)
            state = replace(state, votes=_votes_of(document, newest))
        elif _was_suspended(document):
            state = replace(state, phase=Phase.PAUSED)  # its clocks start again
        state = follow_placement(state, scene)
        step = Step(spec.rollout, scene, {}, _now())
        for _ in range(_MAX_TURNS):
            step = replace(step, findings=await self._findings(clients, inventory, state, step))
            before, state = state, advance(state, step)
            if before.current == state.current:
                break
        specs = await self._specs(hub, document, state)
        return Progress(stored=stored, state=state, specs=specs, step=step, is_undo=is_undo)

    async def resume(
        self, fleet: FleetView, document: Document, spec: Spec, inventory: Inventory
    ) -> Progress | None:
        """The rollout as it is on record, for the repair of one cluster; None if there is none.

        Raises:
            RolloutError: the status is malformed.
            KubeError: the hub did not answer.
        """
        stored = read_state(document.status) if spec.rollout else None
        if spec.rollout is None or stored is None:
            return None
        hub = fleet.cluster(fleet.hub).live
        scene = await self._scene(fleet, document, spec, inventory, is_first=False)
        specs = await self._specs(hub, document, stored)
        step = Step(spec.rollout, scene, {}, _now())
        return Progress(stored=stored, state=stored, specs=specs, step=step)

    async def trim(self, fleet: FleetView, document: Document, progress: Progress) -> None:
        """Delete old revisions, once a newer one is on record.

        Raises:
            KubeError: the hub did not answer.
        """
        if not progress.has_spare_revisions:
            return
        hub = fleet.cluster(fleet.hub).live
        limit = progress.step.rollout.revision_history_limit
        await self._revisions.trim(hub, document, limit, progress.state)

    async def _newest(
        self, hub: KubeClient, document: Document, stored: RolloutState | None
    ) -> tuple[RevisionRef, bool]:
        """The revision of the spec, stored as far as this process knows; and if it is one again."""
        uid = str(document.metadata["uid"])
        name = name_of(document, fields_of(document.resource))
        current = stored.revision if stored else None
        if current is not None and current.name == name == self._ensured.get(uid):
            return current, False
        newest, is_again = await self._revisions.ensure(hub, document, current)
        self._ensured[uid] = newest.name
        return newest, is_again

    async def _scene(
        self,
        fleet: FleetView,
        document: Document,
        spec: Spec,
        inventory: Inventory,
        *,
        is_first: bool,
    ) -> Scene:
        clusters = tuple(fleet.clusters())
        placed = place(spec.placement, [Member(i.name, i.labels) for i in clusters], fleet.hub)
        names = {member.name for member in placed.targets}
        matching = frozenset[str]()
        if is_first and inventory:
            matching = await self._matching(fleet, document, spec, clusters)
        return Scene(
            members=placed.targets,
            suspended=frozenset(info.name for info in clusters if info.suspended),
            kept=frozenset({*inventory, *placed.unknown}) - names,
            held=entries.clusters_in(document.status, State.HELD),
            matching=matching,
        )

    async def _matching(
        self, fleet: FleetView, document: Document, spec: Spec, clusters: Sequence[ClusterInfo]
    ) -> frozenset[str]:
        """The clusters that have the objects of this spec already."""
        draft = await self._renderer.draft(spec, clusters, fleet.hub)
        applied = entries.revisions(document.status)
        return frozenset(n for n, revision in draft.revisions.items() if applied.get(n) == revision)

    async def _findings(
        self, clients: TargetClients, inventory: Inventory, state: RolloutState, step: Step
    ) -> dict[tuple[str, str], Finding]:
        """Read the votes on the open wave, and look whether it is quiet."""
        wave = state.current
        if step.rollout.paused or wave is None or wave.phase is WavePhase.WAITING:
            return {}
        findings: dict[tuple[str, str], Finding] = {}
        for gate in step.gates(wave):
            if gate.name != QUIET:
                findings[wave.name, gate.name] = await self._read_vote(
                    vote_subject(state.votes, wave.name, gate.name)
                )
            elif _is_ready(state, wave, step):
                digests = wave.gate(QUIET).seen
                findings[wave.name, QUIET] = await look(
                    clients, inventory, step.counted(wave), digests
                )
        return findings

    async def _specs(
        self, hub: KubeClient, document: Document, state: RolloutState
    ) -> dict[str, Spec | None]:
        loaded: dict[str, Spec | None] = {"": None}
        for revision in state.behind.values():
            if revision.name not in loaded:
                loaded[revision.name] = await self._revisions.load(hub, document, revision)
        return {name: loaded[revision.name] for name, revision in state.behind.items()}


def _votes_of(document: Document, newest: RevisionRef) -> str:
    revision = f"{newest.number}-{newest.name.rpartition('-')[2]}"
    return votes_prefix(document.metadata["namespace"], document.metadata["name"], revision)


def _was_suspended(document: Document) -> bool:
    return status.reason_of(document.status, status.READY) == "Suspended"


def _is_ready(state: RolloutState, wave: WaveStatus, step: Step) -> bool:
    waits = {*state.behind, *state.updating}
    return waits.isdisjoint(step.counted(wave))
