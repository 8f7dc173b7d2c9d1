"""Opens waves and evaluates their gates: the step from one state of a rollout to the next (pure).

The same state, spec, clusters and findings give the same next state, so a crash costs nothing: what
was not written is decided again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from fleetbus_distributor.hub.rollout_state import (
    AWAY,
    OUTAGE,
    GateState,
    GateStatus,
    Phase,
    RolloutState,
    WavePhase,
    WaveStatus,
    named,
)
from fleetbus_distributor.render.rollout_spec import HEALTH, QUIET, Gate, Limit, Rollout, Wave
from fleetbus_distributor.rollout.waves import Scene, refill
from fleetbus_proto.subjects import vote_subject

VOTE_POLL: Final = timedelta(seconds=30)
"""A vote wakes the rollout; this is for a vote whose announcement was lost."""
QUIET_POLL: Final = timedelta(seconds=15)
_NOT_LOOKED: Final = "it has not been processed yet"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding about a gate: the last vote, or whether there was new trouble."""

    state: GateState
    message: str = ""
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """For `quiet`: the trouble that is known by now."""
    is_news: bool = False
    """For `quiet`: there is trouble that was not known before."""


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that one step depends on, beside the state."""

    rollout: Rollout
    scene: Scene
    findings: Mapping[tuple[str, str], Finding]
    """By the names of wave and gate."""
    now: datetime
    may_give: bool = True
    """Whether waves are opened, and clusters given the revision: at the beginning of a round."""
    may_fail: bool = False
    """Whether the time limit of the health counts: only just after all clusters were looked at.
    Else a distributor that was away for an hour would fail a wave that is healthy by now."""

    def defined(self, wave: WaveStatus) -> Wave | None:
        """The definition of a wave; None for a built-in one."""
        return next(
            (definition for definition in self.rollout.waves if definition.name == wave.name), None
        )

    def gates(self, wave: WaveStatus) -> list[Gate]:
        """The gates of a wave, beside its health."""
        defined = self.defined(wave)
        has_own = defined is not None and defined.gates is not None
        return list(defined.gates or []) if defined and has_own else self.rollout.gates

    def members(self, wave: WaveStatus) -> list[str]:
        """The clusters of a wave that are in the fleet and placed."""
        return [name for name in wave.clusters if name in self.scene.names]

    def counted(self, wave: WaveStatus) -> list[str]:
        """Those that the wave waits for."""
        return [name for name in self.members(wave) if name not in self.scene.suspended]


def advance(state: RolloutState, step: Step) -> RolloutState:
    """Take the next step: open what may be opened, evaluate the gates of what is open."""
    if step.rollout.paused:
        return _pause(state)
    state = _resume(state, step.now)
    while (wave := state.current) is not None:
        defined = step.defined(wave)
        if not step.members(wave) and defined is not None:
            state = refill(state, wave, defined, step.scene)
            wave = state.wave_named(wave.name)
        if not step.members(wave) and _needs_clusters(defined):
            return _hold_empty(state, wave)
        state = _turn(state, wave, step)
        if state.current is not None and state.current.name == wave.name:
            break
    return _summarise(state, step)


def _needs_clusters(defined: Wave | None) -> bool:
    """Whether a wave without any cluster is a mistake: most likely a typo in its selector."""
    return defined is not None and defined.percent is None and not defined.optional


def _hold_empty(state: RolloutState, wave: WaveStatus) -> RolloutState:
    message = (
        "it selects no cluster of the placement; correct its clusters or clusterSelector, label a "
        "cluster, or set optional: true"
    )
    state = state.with_wave(replace(wave, message=message))
    return replace(state, phase=Phase.HELD, message=f"wave {wave.name}: {message}")


def _pause(state: RolloutState) -> RolloutState:
    """Stop; a failed wave gets another chance when it is resumed."""
    if state.current is None:
        return replace(state, phase=Phase.COMPLETE)
    wave = state.current
    if wave.phase is WavePhase.FAILED:
        gates = tuple(
            GateStatus(gate.name) if gate.state is GateState.FAILED else gate for gate in wave.gates
        )
        state = state.with_wave(replace(wave, phase=WavePhase.OPEN, gates=gates, message=""))
    return replace(state, phase=Phase.PAUSED, message="spec.rollout.paused is on")


def _resume(state: RolloutState, now: datetime) -> RolloutState:
    """Start the clocks again after a pause."""
    wave = state.current
    if state.phase is not Phase.PAUSED or wave is None or wave.phase is not WavePhase.OPEN:
        return state
    gates = tuple(replace(gate, since=now) if gate.since else gate for gate in wave.gates)
    return state.with_wave(replace(wave, progressed_at=now, gates=gates))


def _turn(state: RolloutState, wave: WaveStatus, step: Step) -> RolloutState:
    """Work on one wave: open it, give it to clusters, evaluate its gates."""
    if not step.members(wave):
        return state.with_wave(replace(wave, phase=WavePhase.PASSED, message="it has no cluster"))
    if wave.phase is WavePhase.WAITING and not step.may_give:
        return state
    if wave.phase is WavePhase.WAITING:
        wave = replace(wave, phase=WavePhase.OPEN, opened_at=step.now, progressed_at=step.now)
        # Also those that have the revision already have to be seen healthy.
        has_it = {name: _NOT_LOOKED for name in step.counted(wave) if name not in state.behind}
        state = replace(state, updating=has_it)
    if wave.phase is WavePhase.OPEN and step.may_give:
        state, wave = _give(state, wave, step)
    wave = _evaluate(state, wave, step)
    if wave.phase is WavePhase.PASSED:
        state = replace(state, updating={})
    return state.with_wave(wave)


def _give(state: RolloutState, wave: WaveStatus, step: Step) -> tuple[RolloutState, WaveStatus]:
    """Give the revision to as many clusters as the limit allows."""
    counted = step.counted(wave)
    waiting = [name for name in counted if name in state.behind]
    limit = _limit(step, wave, len(counted))
    free = limit - sum(name in state.updating for name in counted)
    taken = waiting[: max(0, free)]
    idle = [name for name in step.members(wave) if name in step.scene.suspended]
    behind = {
        name: revision for name, revision in state.behind.items() if name not in {*taken, *idle}
    }
    updating = {name: why for name, why in state.updating.items() if name in counted}
    updating |= dict.fromkeys(taken, _NOT_LOOKED)
    if taken:
        wave = replace(wave, progressed_at=step.now)
    return replace(state, behind=behind, updating=updating), wave


def _limit(step: Step, wave: WaveStatus, count: int) -> int:
    defined = step.defined(wave)
    limit_of_wave: Limit | None = defined.max_unavailable if defined else None
    limit = limit_of_wave if limit_of_wave is not None else step.rollout.max_unavailable
    if limit is None:
        return count
    if isinstance(limit, int):
        return limit
    return max(1, count * int(limit.removesuffix("%")) // 100)


def _evaluate(state: RolloutState, wave: WaveStatus, step: Step) -> WaveStatus:
    counted = step.counted(wave)
    waits = [name for name in counted if name in state.behind or name in state.updating]
    ready = len(counted) - len(waits)
    was_healthy = wave.gate(HEALTH).state is GateState.PASSED
    if ready > wave.ready or (was_healthy and waits) or _may_try_again(state, wave, step):
        wave = replace(wave, ready=max(ready, wave.ready), progressed_at=step.now)
    gates = [_health(state, wave, step, waits)]
    gates += [_gate(state, wave, step, gate, is_ready=not waits) for gate in step.gates(wave)]
    states = {gate.state for gate in gates}
    phase = WavePhase.OPEN
    if GateState.FAILED in states:
        phase = WavePhase.FAILED
    elif states == {GateState.PASSED}:
        phase = WavePhase.PASSED
    return replace(wave, phase=phase, gates=tuple(gates), message=_message(gates))


def _message(gates: list[GateStatus]) -> str:
    for state in (GateState.FAILED, GateState.PENDING):
        for gate in gates:
            if gate.state is state:
                return f"gate {gate.name}: {gate.message}"
    return ""


def _elapsed(wave: WaveStatus, step: Step) -> timedelta:
    return step.now - (wave.progressed_at or step.now)


def _health(state: RolloutState, wave: WaveStatus, step: Step, waits: list[str]) -> GateStatus:
    before = wave.gate(HEALTH)
    if before.state is GateState.FAILED and not _may_try_again(state, wave, step):
        # Until a person acts: another edit, an undo, or a pause. Else a rollout that failed in the
        # evening would go on in the night, because its clusters recovered.
        return before
    if not waits:
        return GateStatus(HEALTH, GateState.PASSED)
    count = len(step.counted(wave))
    details = [f"{name}: {why}" for name in waits if (why := state.updating.get(name))]
    message = "; ".join([f"{count - len(waits)} of {count} clusters are ready", *details[:2]])
    timeout = step.rollout.health_gate.timeout
    is_held = not step.scene.held.isdisjoint(waits)
    if step.may_fail and not is_held and _elapsed(wave, step) >= timeout:
        seconds = int(timeout.total_seconds())
        late = f"no progress within {seconds} s ({named(waits)}): {message}"
        failed = [name for name in waits if name in state.updating] or waits
        outages = {name for name in failed if _is_away(state, name)}
        failures = {name: OUTAGE if name in outages else "" for name in failed}
        return GateStatus(HEALTH, GateState.FAILED, late, seen=failures)
    return GateStatus(HEALTH, GateState.PENDING, message)


def _may_try_again(state: RolloutState, wave: WaveStatus, step: Step) -> bool:
    """Whether a failed wave gets another chance.

    A person has suspended or excluded all clusters that it has failed on, or all of them did not
    answer then and do so now: an outage says nothing about the revision.
    """
    before = wave.gate(HEALTH)
    if before.state is not GateState.FAILED:
        return False
    if before.seen.keys().isdisjoint(step.counted(wave)):
        return True
    is_outage = set(before.seen.values()) == {OUTAGE}
    return is_outage and not any(_is_away(state, name) for name in before.seen)


def _is_away(state: RolloutState, cluster: str) -> bool:
    return state.updating.get(cluster, "").startswith(AWAY)


def _gate(
    state: RolloutState, wave: WaveStatus, step: Step, gate: Gate, *, is_ready: bool
) -> GateStatus:
    before = wave.gate(gate.name)
    finding = step.findings.get((wave.name, gate.name))
    if gate.name == QUIET:
        result = _quiet(before, finding, gate, step, is_ready=is_ready)
    elif finding is not None and finding.state is not GateState.PENDING:
        result = GateStatus(gate.name, finding.state, finding.message)
    elif before.state is not GateState.PENDING:
        return before  # the message has expired, or cannot be read: the vote still counts
    else:
        subject = vote_subject(state.votes, wave.name, gate.name)
        result = GateStatus(gate.name, GateState.PENDING, _waits_for_vote(finding, subject))
    is_late = gate.timeout is not None and _elapsed(wave, step) >= gate.timeout
    if result.state is GateState.PENDING and is_ready and is_late:
        return replace(result, state=GateState.FAILED, message=f"too late: {result.message}")
    return result


def _waits_for_vote(finding: Finding | None, subject: str) -> str:
    return finding.message if finding and finding.message else f"no vote yet on {subject}"


def _quiet(
    before: GateStatus, finding: Finding | None, gate: Gate, step: Step, *, is_ready: bool
) -> GateStatus:
    """Pass when nothing new has gone wrong for a period, by our own clock."""
    if before.state is not GateState.PENDING or (is_ready and finding is None and before.since):
        return before  # it has passed, or nobody looked: this round is for one cluster
    if not is_ready or finding is None:
        return GateStatus(QUIET, GateState.PENDING, "waits until the wave is healthy")
    if finding.message and not finding.seen:
        return replace(before, message=finding.message)
    if before.since is None or finding.is_news:
        message = finding.message or "no trouble so far"
        return GateStatus(QUIET, GateState.PENDING, message, step.now, finding.seen)
    period = gate.period or timedelta()
    if step.now - before.since >= period:
        return GateStatus(QUIET, GateState.PASSED)
    return replace(before, seen=finding.seen)


def _summarise(state: RolloutState, step: Step) -> RolloutState:
    wave = state.current
    if wave is None:
        number = state.revision.number
        return replace(state, phase=Phase.COMPLETE, message=f"every cluster has revision {number}")
    holding = step.scene.held & {*step.members(wave)}
    phase, message = Phase.PROGRESSING, f"wave {wave.name}: {wave.message}"
    if wave.phase is WavePhase.FAILED:
        phase = Phase.FAILED
    elif holding:
        phase = Phase.HELD
        message = f"wave {wave.name}: deletions are held on {named(holding)}; see DeletionHeld"
    return replace(state, phase=phase, message=message)


def observe(state: RolloutState, reasons: Mapping[str, str]) -> RolloutState:
    """Note which clusters of the open wave are ready.

    Args:
        state: the rollout.
        reasons: cluster → why it is not ready; "" if it is.
    """
    wave = state.current
    if wave is None or wave.phase is WavePhase.WAITING:
        return state
    concerned = {name for name in wave.clusters if name in reasons and name not in state.behind}
    updating = {name: why for name, why in state.updating.items() if name not in concerned}
    updating |= {name: reasons[name] for name in concerned if reasons[name]}
    return replace(state, updating=updating)


def next_look(state: RolloutState, step: Step) -> timedelta | None:
    """When the rollout has to be looked at if no event comes; None if only an event matters."""
    wave = state.current
    is_idle = state.phase in (Phase.PAUSED, Phase.COMPLETE)
    if is_idle or wave is None or wave.phase is WavePhase.WAITING:
        return None
    elapsed = _elapsed(wave, step)
    waits: list[timedelta] = []
    if wave.gate(HEALTH).state is GateState.PENDING and state.phase is not Phase.HELD:
        waits.append(step.rollout.health_gate.timeout - elapsed)
    for gate in step.gates(wave):
        status = wave.gate(gate.name)
        if status.state is GateState.PASSED:
            continue
        if gate.name != QUIET:
            waits.append(VOTE_POLL)
        elif wave.gate(HEALTH).state is GateState.PASSED and status.state is GateState.PENDING:
            poll = min(QUIET_POLL, gate.period or QUIET_POLL)
            waits.append(poll if status.since else timedelta())
        if gate.timeout is not None and status.state is GateState.PENDING:
            waits.append(gate.timeout - elapsed)
    return max(timedelta(seconds=1), min(waits)) if waits else None
