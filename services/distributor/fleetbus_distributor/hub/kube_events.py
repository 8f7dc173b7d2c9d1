"""Builds Kubernetes Events about a round, for changes only.

Their reasons are those of multi_resource_operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fleetbus_distributor.hub.document import KubeEvent
from fleetbus_distributor.targets.outcome import Change, ClusterOutcome, State

_MAX_NAMED: Final = 10
_REPORTED: Final = (State.FAILED, State.CONFLICT)
_OWN_REASONS: Final = ("PatchFailed", "DeleteFailed")


def events_of(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[KubeEvent]:
    """Build the events of a round.

    Args:
        outcomes: of its clusters.
        old: the status before it; failures that it shows already are left out.
    """
    changes = (Change.CREATED, Change.UPDATED, Change.DELETED)
    found = [event for change in changes for event in _changed(outcomes, change)]
    return [*found, *_failures(outcomes, old)]


def _changed(outcomes: Sequence[ClusterOutcome], change: Change) -> list[KubeEvent]:
    clusters: dict[str, list[str]] = {}
    pairs = [(one, ref) for one in outcomes for found, ref in one.changes if found is change]
    for outcome, ref in pairs:
        clusters.setdefault(str(ref), []).append(outcome.name)
    if not clusters:
        return []
    parts = [f"{ref} on {_join(names)}" for ref, names in sorted(clusters.items())]
    return [KubeEvent(change.value, _join(parts, "; "))]


def _failures(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[KubeEvent]:
    entries = cast("list[dict[str, str]]", old.get("clusters") or [])
    before = {one["name"]: (one.get("state"), one.get("message")) for one in entries}
    return [
        KubeEvent(
            one.reason if one.reason in _OWN_REASONS else "ApplyFailed",
            f"{one.name}: {one.message}",
            is_warning=True,
        )
        for one in outcomes
        if one.state in _REPORTED and before.get(one.name) != (one.state.value, one.message)
    ]


def _join(names: Sequence[str], separator: str = ", ") -> str:
    more = [f"and {len(names) - _MAX_NAMED} more"] if len(names) > _MAX_NAMED else []
    return separator.join([*names[:_MAX_NAMED], *more])
