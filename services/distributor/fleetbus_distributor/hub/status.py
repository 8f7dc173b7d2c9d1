"""Builds the status of a MultiClusterResource from the outcomes of a round.

No message contains a time or a number of attempts, so that an idle fleet, or one with a cluster
down for a week, sees no status write at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

from fleetbus.kube.json_fields import condition
from fleetbus.process.redact import cut
from fleetbus_distributor.health.result import HealthState
from fleetbus_distributor.hub.entries import (
    MAX_MESSAGE,
    is_ready,
    is_unhealthy,
    read_entries,
    with_last,
    write_entries,
)
from fleetbus_distributor.hub.rollout_state import Phase
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Bases, Basis, Inventory, Owned
from fleetbus_distributor.plan.plan import Hold, HoldReason, Share, count
from fleetbus_distributor.targets.outcome import ClusterOutcome, LeftBehind, State

Status: TypeAlias = dict[str, Any]

READY: Final = "Ready"
"""Everything is applied and healthy."""
APPLIED: Final = "Applied"
WAVE_NOT_OPEN: Final = "WaveNotOpen"
"""The reason of a cluster that waits for its wave."""
HELD: Final = "DeletionHeld"
WARNED: Final = "Warning"
ORPHANED: Final = "Orphaned"
"""Set and cleared by the orphan sweep; rounds keep it."""
_MAX_LEFT_BEHIND: Final = 200
_MAX_NAMED: Final = 5
_BEGINNING: Final = 80
"""Characters by which a message is found in another one, where it may be cut."""
_NO_CLUSTERS: Final = (
    "the placement selects no cluster of the fleet; `fleetbus clusters` shows their labels"
)
_STATE_ORDER: Final = list(State)
_HEALTH_ORDER: Final = list(HealthState)
_ROLLOUT_REASONS: Final[Mapping[str, str]] = {
    Phase.PROGRESSING: "RolloutInProgress",
    Phase.PAUSED: "RolloutPaused",
    Phase.HELD: "RolloutHeld",
    Phase.FAILED: "RolloutFailed",
}
"""Reasons of the condition Ready, and of the summary, while a rollout is not complete."""
_TROUBLES: Final = frozenset(
    {State.FAILED, State.CONFLICT, State.HELD, State.UNREACHABLE, HealthState.DEGRADED}
)
"""Reasons of Ready that say more than that a rollout is in progress."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without times."""

    type: str
    is_true: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the status shows of one round."""

    generation: int
    outcomes: Sequence[ClusterOutcome]
    inventory: Inventory
    left_behind: Sequence[LeftBehind] = ()
    bases: Bases = field(default_factory=dict[str, Basis])
    is_complete: bool = True
    """Whether everything could be rendered; else an open question to a person is kept."""
    hold: Hold | None = None
    held: Share = field(default_factory=dict[str, list[Owned]])
    """Objects whose deletion waits for a person."""
    doubted: Share = field(default_factory=dict[str, list[Owned]])
    """Objects whose deletion waits until the labels of the cluster are confirmed."""
    warnings: Sequence[str] = ()
    unused: Sequence[str] = ()
    """Rules of the spec that select no object."""
    absent: Sequence[str] = ()
    """Changes of the spec for clusters that are not in the fleet."""
    problem: Condition | None = None
    """Replaces Ready if nothing could be done at all."""
    placed: frozenset[str] = field(default_factory=frozenset[str])
    rollout: Status | None = None
    """The value of `status.rollout`, if the spec has a rollout."""


def build(report: Report, old: Mapping[str, Any]) -> Status:
    """Build the status after a round; equal reports give equal trees."""
    outcomes = with_last(report.outcomes, old)
    report = replace(report, outcomes=outcomes)
    status: Status = {"observedGeneration": report.generation}
    status["conditions"] = _conditions(report, old)
    status["summary"] = _summary(report.outcomes, report.rollout)
    status["clusters"] = write_entries(report.outcomes)
    if report.hold:
        status["held"] = _held(report.hold, report.held)
    elif not report.is_complete and "held" in old:
        status["held"] = old["held"]
    if left := _left_behind(report, old):
        status["leftBehind"] = left
    if report.rollout is not None:
        status["rollout"] = report.rollout
    status["intent"] = intent.write(report.inventory, report.bases)
    return status


def refuse(problem: Condition, generation: int, old: Mapping[str, Any]) -> Status:
    """Build the status if the spec is not applied: the entries of clusters stay as they were."""
    conditions = [problem, *_kept_conditions(old, {APPLIED, HELD, WARNED, ORPHANED})]
    timed = _timed(conditions, generation, old)
    summary = {**cast("Status", old.get("summary") or {}), "reason": problem.reason}
    return {**old, "observedGeneration": generation, "conditions": timed, "summary": summary}


def with_intent(
    old: Mapping[str, Any],
    inventory: Inventory,
    bases: Bases,
    *,
    is_answered: bool = False,
    rollout: Status | None = None,
) -> Status:
    """Put a new intent into the old status, before the first apply (rule D2).

    Args:
        old: the status as it is stored.
        inventory: the intent.
        bases: of its clusters.
        is_answered: the intent has a person's answer, so the hold ends.
        rollout: the value of `status.rollout`, if it changes too.
    """
    others = {key: value for key, value in old.items() if key != "held" or not is_answered}
    changed = {} if rollout is None else {"rollout": rollout}
    return {**others, **changed, "intent": intent.write(inventory, bases)}


def read_hold(old: Mapping[str, Any]) -> Hold | None:
    """The hold that the last round left, if any."""
    stored = cast("dict[str, Any]", old.get("held") or {})
    reason = str(stored.get("reason"))
    is_known = reason in tuple(HoldReason)
    if not is_known:
        return None
    nonce = str(stored.get("nonce", ""))
    return Hold(HoldReason(reason), str(stored.get("planHash")), nonce=nonce)


def with_clusters(
    old: Mapping[str, Any],
    generation: int,
    changed: Sequence[ClusterOutcome],
    inventory: Inventory,
    rollout: Status | None,
) -> Status:
    """Put the outcomes of some clusters, and what is on record there, into the old status."""
    inventory = inventory | {outcome.name: outcome.inventory for outcome in changed}
    names = {outcome.name for outcome in changed}
    changed = with_last(changed, old)
    outcomes = [*(last for name, last in read_entries(old).items() if name not in names), *changed]
    kept_conditions = _kept_conditions(old, {HELD, WARNED, ORPHANED})
    progress = old.get("rollout") if rollout is None else rollout
    conditions = [_ready(outcomes, progress), *_applied(outcomes), *kept_conditions]
    return {
        **old,
        **({} if progress is None else {"rollout": progress}),
        "conditions": _timed(conditions, generation, old),
        "summary": _summary(outcomes, progress),
        "clusters": write_entries(outcomes),
        "intent": intent.write(inventory, intent.read_bases(old)),
    }


def with_rollout(old: Mapping[str, Any], rollout: Status) -> Status:
    """Put the state of the rollout into the old status."""
    outcomes = list(read_entries(old).values())
    ready = _timed([_ready(outcomes, rollout)], int(old.get("observedGeneration", 0)), old)
    others = [condition for condition in _old_conditions(old) if condition.get("type") != READY]
    summary = _summary(outcomes, rollout)
    return {**old, "rollout": rollout, "conditions": [*ready, *others], "summary": summary}


def with_orphans(old: Mapping[str, Any], generation: int, message: str) -> Status:
    """Put the result of the orphan sweep into the old status; an empty message for no orphans."""
    orphaned = (
        Condition(ORPHANED, True, "NotOnRecord", message)
        if message
        else Condition(ORPHANED, False, "NoOrphans")
    )
    others = [condition for condition in _old_conditions(old) if condition.get("type") != ORPHANED]
    return {**old, "conditions": [*others, *_timed([orphaned], generation, old)]}


def orphans_message(old: Mapping[str, Any]) -> str:
    """The message of the condition Orphaned; empty if it is absent or false."""
    orphaned = condition(old, ORPHANED)
    return str(orphaned["message"]) if orphaned.get("status") == "True" else ""


def reason_of(old: Mapping[str, Any], kind: str) -> str:
    """The reason of a condition; empty if it is absent."""
    return str(condition(old, kind).get("reason", ""))


def _held(hold: Hold, share: Share) -> Status:
    return {
        "reason": hold.reason.value,
        "planHash": hold.plan_hash,
        "nonce": hold.nonce,
        "objects": count(share),
        "clusters": sorted(share),
    }


def _conditions(report: Report, old: Mapping[str, Any]) -> list[Status]:
    ready = report.problem or _ready(report.outcomes, report.rollout)
    conditions = [ready, *_applied(report.outcomes)]
    if report.hold:
        conditions.append(Condition(HELD, True, report.hold.reason, report.hold.message))
    elif not report.is_complete:
        conditions += _kept_conditions(old, {HELD})
    elif report.doubted:
        names = ", ".join(sorted(report.doubted))
        text = f"the labels of {names}, read live, differ from those that would cause the deletion"
        conditions.append(Condition(HELD, True, HoldReason.LABELS, text))
    elif condition(old, HELD):
        conditions.append(Condition(HELD, False, "NothingHeld"))
    if texts := [*report.unused, *report.absent, *sorted(set(report.warnings))]:
        other = "NoSuchCluster" if report.absent else "CustomizeValue"
        reason = "NoSuchObject" if report.unused else other
        conditions.append(Condition(WARNED, True, reason, "; ".join(texts)))
    elif condition(old, WARNED):
        conditions.append(Condition(WARNED, False, "NoWarnings"))
    conditions += _kept_conditions(old, {ORPHANED})
    return _timed(conditions, report.generation, old)


def _ready(outcomes: Sequence[ClusterOutcome], rollout: Status | None) -> Condition:
    """The condition Ready: a cluster that has to keep an earlier revision is not ready."""
    reason = _reason_of_rollout(rollout)
    if rollout is None or not reason:
        return _ready_now(outcomes)
    message = str(rollout.get("message", ""))
    ready = _ready_now(outcomes, beside=message)
    if rollout["phase"] == Phase.PROGRESSING and not ready.is_true and ready.reason in _TROUBLES:
        reason = ready.reason
    parts = [message, "" if ready.is_true else ready.message]
    return Condition(READY, False, reason, "; ".join(filter(None, parts)))


def _reason_of_rollout(rollout: Status | None) -> str:
    """The reason while it is not complete; else empty."""
    return _ROLLOUT_REASONS.get(str(rollout.get("phase", "")), "") if rollout else ""


def _ready_now(outcomes: Sequence[ClusterOutcome], beside: str = "") -> Condition:
    """The condition of the clusters; what the message beside it says of them is left out."""
    if not outcomes:
        return Condition(READY, False, "NoClusters", _NO_CLUSTERS)
    # By name: rounds for single clusters would otherwise name another one each time (rule R10).
    bad = sorted((o for o in outcomes if o.state is not State.APPLIED), key=lambda o: o.name)
    if not bad:
        return _healthy(outcomes, beside)
    worst = max(bad, key=lambda outcome: list(State).index(outcome.state))
    states = _name_some({each.name: str(each.state) for each in bad}, beside)
    is_said = f" {worst.name}: " in beside and worst.message[:_BEGINNING] in beside
    why = "" if is_said or not worst.message else f"{worst.name}: {worst.message}"
    return Condition(READY, False, worst.state, "; ".join(filter(None, [states, why])))


def _name_some(clusters: Mapping[str, str], beside: str) -> str:
    named = [f"{name}: {text}" for name, text in clusters.items()]
    unsaid = [each for each in named if f" {each[:_BEGINNING]}" not in beside]
    return ", ".join(abridge(unsaid, _MAX_NAMED))


def _applied(outcomes: Sequence[ClusterOutcome]) -> list[Condition]:
    """The condition for who does not wait for the health of the objects."""
    if not outcomes:
        return []
    count = sum(outcome.state is State.APPLIED for outcome in outcomes)
    is_all = count == len(outcomes)
    message = f"applied on {count} of {len(outcomes)} cluster(s)"
    return [Condition(APPLIED, is_all, "Applied" if is_all else "NotApplied", message)]


def _healthy(outcomes: Sequence[ClusterOutcome], beside: str) -> Condition:
    """The condition if everything is applied."""
    unhealthy = [
        outcome for outcome in outcomes if outcome.health is not None and is_unhealthy(outcome)
    ]
    if not unhealthy:
        return Condition(READY, True, "Applied", f"applied on {len(outcomes)} cluster(s)")
    worst = max(
        (outcome.health.state for outcome in unhealthy if outcome.health), key=_HEALTH_ORDER.index
    )
    described = {each.name: each.unhealthy for each in sorted(unhealthy, key=lambda o: o.name)}
    return Condition(READY, False, worst, _name_some(described, beside))


def _first_reason(outcomes: Sequence[ClusterOutcome], rollout: Status | None) -> str:
    """The reason of the worst cluster, for people: the first one by name."""
    waiting = [outcome for outcome in outcomes if not is_ready(outcome)]
    of_rollout = _reason_of_rollout(rollout)
    if of_rollout and all(outcome.reason == WAVE_NOT_OPEN for outcome in waiting):
        return of_rollout
    if not waiting:
        return "Ready" if outcomes else "NoClusters"
    first = max(
        sorted(waiting, key=lambda outcome: outcome.name),
        key=lambda outcome: _STATE_ORDER.index(outcome.state),
    )
    if first.state is State.APPLIED and first.health is not None:
        return first.health.reason or first.health.state.value
    return first.reason or first.state.value


def _old_conditions(old: Mapping[str, Any]) -> list[Status]:
    return cast("list[Status]", old.get("conditions") or [])


def _kept_conditions(old: Mapping[str, Any], kinds: set[str]) -> list[Condition]:
    return [
        Condition(
            condition["type"],
            condition["status"] == "True",
            condition["reason"],
            condition.get("message", ""),
        )
        for condition in _old_conditions(old)
        if condition.get("type") in kinds
    ]


def _timed(
    conditions: Iterable[Condition], generation: int, old: Mapping[str, Any]
) -> list[Status]:
    before = {condition.get("type"): condition for condition in _old_conditions(old)}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    result: list[Status] = []
    for new in conditions:
        status = "True" if new.is_true else "False"
        last = before.get(new.type)
        is_same = last is not None and last.get("status") == status
        since = last.get("lastTransitionTime", now) if last is not None and is_same else now
        result.append(
            {
                "type": new.type,
                "status": status,
                "reason": new.reason,
                "message": cut(new.message, MAX_MESSAGE),
                "observedGeneration": generation,
                "lastTransitionTime": since,
            }
        )
    return result


def _summary(outcomes: Sequence[ClusterOutcome], rollout: Status | None) -> Status:
    counts = dict.fromkeys(State, 0)
    for outcome in outcomes:
        counts[outcome.state] += 1
    named = {state.value.lower(): count for state, count in counts.items()}
    ready = sum(map(is_ready, outcomes))
    return {
        "clusters": len(outcomes),
        "ready": f"{ready}/{len(outcomes)}",
        "reason": _first_reason(outcomes, rollout),
        **named,
    }


def _left_behind(report: Report, old: Mapping[str, Any]) -> list[Status]:
    """Objects given up on clusters; those of a cluster that is placed again are dropped."""
    new = [
        {"cluster": left.cluster, "object": str(left.ref), "reason": left.reason}
        for left in report.left_behind
    ]
    before = cast("list[Status]", old.get("leftBehind") or [])
    older = [
        entry for entry in before if entry["cluster"] not in report.placed and entry not in new
    ]
    return sorted([*older, *new], key=lambda entry: (entry["cluster"], entry["object"]))[
        :_MAX_LEFT_BEHIND
    ]


def abridge(texts: Sequence[str], limit: int) -> list[str]:
    """The first texts, and how many more there are."""
    more = [f"and {len(texts) - limit} more"] if len(texts) > limit else []
    return [*texts[:limit], *more]


def is_changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether a status differs from the stored one."""
    return dict(new) != dict(old)
