"""Kubernetes Events about a round, only when something changed.

The reasons are those of multi_resource_operator, for whoever has alerts on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fleetbus_distributor.hub.document import Notice
from fleetbus_distributor.targets.outcome import Change, ClusterOutcome, State

_NAMED: Final = 10
_REPORTED: Final = (State.FAILED, State.CONFLICT)
_OWN_REASONS: Final = ("PatchFailed", "DeleteFailed")


def notices_of(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[Notice]:
    """What a person watching the MultiClusterResource wants to be told of."""
    return [*_changes(outcomes), *_failures(outcomes, old)]


def _changes(outcomes: Sequence[ClusterOutcome]) -> list[Notice]:
    notices: list[Notice] = []
    for change in (Change.CREATED, Change.UPDATED, Change.DELETED):
        found: dict[str, list[str]] = {}
        for outcome in outcomes:
            for what, ref in outcome.changes:
                if what is change:
                    found.setdefault(str(ref), []).append(outcome.name)
        if found:
            texts = [f"{ref} on {_named(names)}" for ref, names in sorted(found.items())]
            notices.append(Notice(change.value, _named(texts, "; ")))
    return notices


def _failures(outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]) -> list[Notice]:
    entries = cast("list[dict[str, str]]", old.get("clusters") or [])
    before = {one["name"]: (one.get("state"), one.get("message")) for one in entries}
    return [
        Notice(
            one.reason if one.reason in _OWN_REASONS else "ApplyFailed",
            f"{one.name}: {one.message}",
            is_warning=True,
        )
        for one in outcomes
        if one.state in _REPORTED and before.get(one.name) != (one.state.value, one.message)
    ]


def _named(names: Sequence[str], separator: str = ", ") -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return separator.join([*names[:_NAMED], *more])
