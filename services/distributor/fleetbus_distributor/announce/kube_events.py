"""Builds Kubernetes Events about a round, for changes only: one for all clusters alike.

The reasons Applied, Patched, Delete, ApplyFailed, UpdateFailed, PatchFailed and DeleteFailed are
those of multi_resource_operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fleetbus_distributor.hub.document import KubeEvent
from fleetbus_distributor.hub.status import abridge
from fleetbus_distributor.rollout.changes import RolloutChange
from fleetbus_distributor.targets.outcome import Change, ClusterOutcome, State
from fleetbus_proto.subjects import DistributionVerb

_MAX_NAMED: Final = 10
_REASONS: Final = {
    State.HELD: "Held",
    State.WAITING: "Waiting",
    State.CONFLICT: "Conflict",
    State.FAILED: "ApplyFailed",
}
"""Reasons of the states that are announced, once, when they begin or their message changes."""
_OF_ROLLOUTS: Final = {
    DistributionVerb.WAVE_OPEN: "WaveOpened",
    DistributionVerb.WAVE_PASSED: "WavePassed",
    DistributionVerb.WAVE_FAILED: "WaveFailed",
    DistributionVerb.PAUSED: "Paused",
    DistributionVerb.RESUMED: "Resumed",
    DistributionVerb.HELD: "RolloutHeld",
    DistributionVerb.COMPLETE: "RolloutComplete",
    DistributionVerb.UNDONE: "Undone",
}
_ROLLOUT_WARNINGS: Final = (DistributionVerb.WAVE_FAILED, DistributionVerb.HELD)
_OWN_REASONS: Final = ("PatchFailed", "DeleteFailed")


def events_of(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[KubeEvent]:
    """Build the events of a round.

    Args:
        outcomes: of its clusters.
        old: the status before it; failures that it shows already are left out.
    """
    changes = (Change.CREATED, Change.UPDATED, Change.DELETED)
    events = [event for change in changes for event in _changed(outcomes, change)]
    return [*events, *_corrections(outcomes), *_failures(outcomes, old)]


def rollout_events(changes: Sequence[RolloutChange]) -> list[KubeEvent]:
    """Build the events of what has happened in a rollout."""
    return [
        KubeEvent(
            _OF_ROLLOUTS[change.verb],
            change.message or _OF_ROLLOUTS[change.verb],
            is_warning=change.verb in _ROLLOUT_WARNINGS,
        )
        for change in changes
        if change.verb in _OF_ROLLOUTS
    ]


def _corrections(outcomes: Sequence[ClusterOutcome]) -> list[KubeEvent]:
    """One for each cluster: the times of the changes that were taken back differ."""
    texts = [
        f"{outcome.name}: {outcome.last_correction}" for outcome in outcomes if outcome.corrected
    ]
    return [KubeEvent("Corrected", text) for text in abridge(texts, _MAX_NAMED)]


def _changed(outcomes: Sequence[ClusterOutcome], change: Change) -> list[KubeEvent]:
    clusters: dict[str, list[str]] = {}
    pairs = [
        (outcome, ref) for outcome in outcomes for kind, ref in outcome.changes if kind is change
    ]
    if corrected := {
        (outcome.name, each.ref) for outcome in outcomes for each in outcome.corrected
    }:
        pairs = [(outcome, ref) for outcome, ref in pairs if (outcome.name, ref) not in corrected]
    for outcome, ref in pairs:
        clusters.setdefault(str(ref), []).append(outcome.name)
    if not clusters:
        return []
    parts = [f"{ref} on {_join(names)}" for ref, names in sorted(clusters.items())]
    return [KubeEvent(change.value, _join(parts, "; "))]


def _failures(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[KubeEvent]:
    entries = cast("list[dict[str, str]]", old.get("clusters") or [])
    before = {entry["name"]: entry for entry in entries}
    groups: dict[tuple[State, str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.state in _REASONS and not _is_known(outcome, before.get(outcome.name, {})):
            reason = _reason_of(outcome, before.get(outcome.name, {}))
            groups.setdefault((outcome.state, reason, outcome.message), []).append(outcome.name)
    return [
        KubeEvent(reason, f"{_join(names)}: {message}", is_warning=state is not State.WAITING)
        for (state, reason, message), names in groups.items()
    ]


def _reason_of(outcome: ClusterOutcome, entry: Mapping[str, str]) -> str:
    if outcome.state is not State.FAILED:
        return _REASONS[outcome.state]
    if outcome.reason in _OWN_REASONS:
        return outcome.reason
    return "UpdateFailed" if entry.get("revision") else _REASONS[outcome.state]


def _is_known(outcome: ClusterOutcome, entry: Mapping[str, str]) -> bool:
    """Whether the status shows an outcome already; of a long message only the beginning."""
    message = entry.get("message", "").removesuffix("…")
    return entry.get("state") == outcome.state.value and outcome.message.startswith(message)


def _join(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(abridge(names, _MAX_NAMED))
