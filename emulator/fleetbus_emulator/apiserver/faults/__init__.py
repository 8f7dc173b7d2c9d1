"""Faults: rules that make one cluster answer wrongly on purpose.

A rule is a `Match` (which requests), an action (what happens) and a budget (how often). An action
counts only requests that it can affect: a list is no hit for `CutWatch`. Actions on watches also
apply to watches that are already open when the rule is added.

    cluster.faults.add(Fail(status=429, retry_after=timedelta(seconds=1)), verb="list", count=2)
    cluster.faults.add(Abort(after_commit=True), verb="create", resource="pods")
    stall = cluster.faults.add(StallWatch(), resource="configmaps")
    stall.remove()

`actions` lists what there is and where each acts, `rules` match and count, `streams` and
`connections` act on watches and connections, `documents` reads and writes rules as JSON.
"""

from fleetbus_emulator.apiserver.faults.actions import (
    Abort,
    Action,
    Compact,
    CutAnswer,
    CutWatch,
    Delay,
    Drip,
    DropEvents,
    EndWatch,
    Expire,
    Fail,
    FieldError,
    Garble,
    GroupDown,
    Hang,
    HideBookmarks,
    LagWatch,
    PartialList,
    StaleList,
    StallWatch,
    WatchAction,
)
from fleetbus_emulator.apiserver.faults.rules import Faults, Match, RequestAttributes, Rule
from fleetbus_emulator.apiserver.faults.streams import Break, WatchFault

__all__ = [
    "Abort",
    "Action",
    "Break",
    "Compact",
    "CutAnswer",
    "CutWatch",
    "Delay",
    "Drip",
    "DropEvents",
    "EndWatch",
    "Expire",
    "Fail",
    "Faults",
    "FieldError",
    "Garble",
    "GroupDown",
    "Hang",
    "HideBookmarks",
    "LagWatch",
    "Match",
    "PartialList",
    "RequestAttributes",
    "Rule",
    "StaleList",
    "StallWatch",
    "WatchAction",
    "WatchFault",
]
