"""The last correction of drift on a cluster, in the status of a MultiClusterResource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from fleetbus_distributor.targets.outcome import ClusterOutcome

_KEY: Final = "lastCorrection"
_MAX: Final = 400
_MIN: Final = 60
_MAX_ALL: Final = 60_000
"""Characters for all clusters together: a thousand of them share one status."""


def with_last_correction(
    outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
) -> list[ClusterOutcome]:
    """Give clusters where nothing was corrected in this round what is on record for them."""
    entries = cast("list[Mapping[str, Any]]", old.get("clusters") or [])
    before = {entry["name"]: entry for entry in entries}
    return [
        outcome
        if outcome.last_correction
        else replace(outcome, last_correction=read_correction(before.get(outcome.name, {})))
        for outcome in outcomes
    ]


def read_correction(entry: Mapping[str, Any]) -> str:
    """The correction in a stored entry; "" if it has none."""
    return str(entry.get(_KEY, ""))


def write_correction(outcome: ClusterOutcome, clusters: int) -> dict[str, Any]:
    """The part of a cluster's entry; `clusters` share the room."""
    text = outcome.last_correction
    limit = max(_MIN, min(_MAX, _MAX_ALL // max(1, clusters)))
    message = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return {_KEY: message} if text else {}
