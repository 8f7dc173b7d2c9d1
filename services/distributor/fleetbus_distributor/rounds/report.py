"""Concludes from the outcomes of a round for all clusters what is shown and what follows (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from fleetbus_distributor.hub import entries, status
from fleetbus_distributor.hub.status import Report, Status
from fleetbus_distributor.plan.intent import Owned, outdated_keys
from fleetbus_distributor.plan.plan import HoldReason
from fleetbus_distributor.rounds.decide import Decision
from fleetbus_distributor.targets.outcome import (
    ClusterOutcome,
    LeftBehind,
    ObjectOutcome,
    State,
    earliest,
)
from fleetbus_distributor.targets.target import LATER, SOON

_UNKNOWN: Final = "no cluster of this name is in the fleet; it applies once one joins"
_GONE: Final = "the cluster left the fleet without an unjoin; its {} object(s) stay on record"
_NOT_RENDERED: Final = "nothing is deleted while a template cannot be rendered"


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The rounds that follow one for all clusters."""

    retry: timedelta | None
    """When to repeat it, or None."""
    is_settled: bool
    """If it waits for anything, an event on the hub announces that: no cluster need be polled."""
    clusters: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """Clusters that are looked at again alone."""


def follow_up(
    decision: Decision, outcomes: Sequence[ClusterOutcome], complete: Sequence[ClusterOutcome]
) -> FollowUp:
    """Decide which rounds follow, and whether this one is settled.

    Args:
        decision: what the round was to do.
        outcomes: of the clusters that it worked on.
        complete: of all clusters.
    """
    # Whether other objects than planned turned out to need a replacement.
    has_news = any(
        outdated_keys(outcome.inventory) != outdated_keys(decision.record.get(outcome.name, {}))
        for outcome in outcomes
        if outcome.name in decision.draft.objects
    )
    retry = SOON if has_news else None
    is_settled = not has_news
    alone: dict[str, timedelta] = {}
    for outcome in complete:
        if outcome.retry is None:
            continue
        if _concerns_only(decision, outcome.name):
            alone[outcome.name] = outcome.retry
            continue
        retry = earliest(retry, outcome.retry)
        is_settled &= _is_no_member(decision, outcome.name)
    return FollowUp(retry, is_settled, alone)


def _concerns_only(decision: Decision, cluster: str) -> bool:
    """Whether a retry for this cluster concerns no other one."""
    plan = decision.plan
    shrinks = any(cluster in share for share in (plan.prune, plan.held, plan.doubted))
    return cluster in decision.draft.objects and not shrinks


def _is_no_member(decision: Decision, cluster: str) -> bool:
    """Whether a cluster has yet to join, or has left."""
    return cluster in decision.draft.placed.unknown or cluster in decision.plan.gone


def report_of(
    decision: Decision,
    complete: Sequence[ClusterOutcome],
    *,
    generation: int,
    rollout: Status | None,
) -> Report:
    """Collect what the status shows.

    Args:
        decision: what the round was to do.
        complete: the outcomes of all clusters.
        generation: of the spec.
        rollout: the value of `status.rollout`, if the spec has a rollout.
    """
    draft, plan = decision.draft, decision.plan
    named = decision.placed | set(draft.placed.unknown)
    released = [
        LeftBehind(name, owned.ref, "Unjoined")
        for name, share in plan.released.items()
        for owned in share
    ]
    return Report(
        generation=generation,
        outcomes=[outcome for outcome in complete if outcome.inventory or outcome.name in named],
        inventory={outcome.name: outcome.inventory for outcome in complete if outcome.inventory},
        left_behind=[*released, *(left for outcome in complete for left in outcome.left_behind)],
        bases=decision.bases,
        is_complete=not draft.problems,
        hold=plan.hold,
        held=plan.held,
        doubted=plan.doubted,
        warnings=draft.warnings,
        unused=draft.unused,
        absent=draft.absent,
        placed=decision.placed,
        rollout=rollout,
    )


def complete_outcomes(
    decision: Decision, outcomes: Sequence[ClusterOutcome], before: Mapping[str, Any]
) -> list[ClusterOutcome]:
    """Add the outcomes of the clusters where nothing could be done, and what is held.

    Args:
        decision: what the round was to do.
        outcomes: of the clusters that it worked on.
        before: the status before it.
    """
    complete = {
        outcome.name: entries.keep_revision(outcome, decision.applied.get(outcome.name, ""))
        for outcome in outcomes
    }
    last = entries.read_entries(before) if decision.skipped else {}
    for name in decision.skipped:
        inventory = dict(decision.record.get(name, {}))
        complete[name] = replace(last.get(name, ClusterOutcome(name)), inventory=inventory)
    for name in decision.draft.waiting:
        complete[name] = _idle(
            decision, name, State.WAITING, status.WAVE_NOT_OPEN, _why(decision, name)
        )
    for name in decision.draft.placed.unknown:
        idle = _idle(decision, name, State.WAITING, "UnknownCluster", _UNKNOWN, LATER)
        complete.setdefault(name, idle)
    for name, problem in decision.draft.problems.items():
        complete[name] = _idle(decision, name, State.FAILED, problem.reason, problem.message)
    for name in decision.plan.gone:
        message = _GONE.format(len(decision.record[name]))
        complete[name] = _idle(decision, name, State.HELD, "ClusterGone", message, LATER)
    for name in decision.record:
        if name not in complete:
            complete[name] = _pending_removal(decision, name)
    return _with_holds(decision, complete)


def _idle(
    decision: Decision,
    name: str,
    state: State,
    reason: str,
    message: str,
    retry: timedelta | None = None,
) -> ClusterOutcome:
    inventory = dict(decision.record.get(name, {}))
    revision = decision.applied.get(name, "")
    return ClusterOutcome(name, state, reason, message, retry, inventory, revision=revision)


def _why(decision: Decision, name: str) -> str:
    rollout, has_objects = decision.rollout, name in decision.record
    return rollout.waits(name, has_objects=has_objects) if rollout else ""


def _pending_removal(decision: Decision, name: str) -> ClusterOutcome:
    if name in decision.plan.held or name in decision.plan.doubted:
        return _idle(decision, name, State.APPLIED, "Applied", "")
    return _idle(decision, name, State.HELD, "RenderFailed", _NOT_RENDERED)


def _with_holds(decision: Decision, complete: Mapping[str, ClusterOutcome]) -> list[ClusterOutcome]:
    plan = decision.plan
    reason = plan.hold.reason if plan.hold else HoldReason.FUSE
    retry = LATER if reason is HoldReason.UNREADABLE else None
    outcomes = dict(complete)
    for name, owned in plan.held.items():
        outcomes[name] = _with_hold(outcomes[name], owned, reason, retry)
    for name, owned in plan.doubted.items():
        outcomes[name] = _with_hold(outcomes[name], owned, HoldReason.LABELS, LATER)
    return list(outcomes.values())


def _with_hold(
    outcome: ClusterOutcome, owned: Sequence[Owned], reason: HoldReason, retry: timedelta | None
) -> ClusterOutcome:
    named = {finding.ref.key for finding in outcome.findings}
    findings = [
        ObjectOutcome(each.ref, State.HELD, reason, f"{each.ref} is not deleted")
        for each in owned
        if each.ref.key not in named
    ]
    message = f"{len(owned)} object(s) are not deleted; see condition {status.HELD}"
    result = replace(outcome, findings=[*outcome.findings, *findings])
    result.add(State.HELD, reason, message, retry)
    return result
