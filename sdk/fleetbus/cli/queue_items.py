"""The items of one controller's queue, as data and as a table: what waits, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fleetbus.cli.human_time import render_moment, render_span
from fleetbus.cli.table import render_table
from fleetbus.intake.last_runs import LastRuns
from fleetbus.workqueue.items import MOST, STATES, list_items

if TYPE_CHECKING:
    from datetime import timedelta

    from redis.asyncio import Redis

    from fleetbus.intake.last_runs import LastRun
    from fleetbus.workqueue.items import Item

View: TypeAlias = dict[str, Any]

SHOWN: Final = 20
"""Items of each state, unless more are asked for."""
_HEAD: Final = ("STATE", "CLUSTER", "NAMESPACE", "NAME", "WHEN", "FAILURES", "LAST ERROR")


async def describe_items(redis: Redis, controller: str, limit: int) -> View:
    """The items that come first of each state, and how many more there are of each.

    Raises:
        QueueUnavailableError: the store is away; so for the next.
        redis.exceptions.RedisError: it went away meanwhile.
    """
    found = await list_items(redis, controller, limit)
    runs = await LastRuns(redis, controller).get_many([item.request for item in found.shown])
    shown = {state: sum(item.state == state for item in found.shown) for state in STATES}
    return {
        "items": [_item(item, run) for item, run in zip(found.shown, runs, strict=True)],
        "itemsNotShown": {state: found.counts[state] - shown[state] for state in STATES},
    }


def render_items(view: Mapping[str, Any]) -> str:
    """The table of what `describe_items` tells, and what it leaves out; empty without items."""
    if not view["items"]:
        return ""
    table = render_table(_HEAD, [_row(one) for one in view["items"]])
    more = [f"{count} {state}" for state, count in view["itemsNotShown"].items() if count]
    if not more:
        return table
    return f"{table}\n… and {', '.join(more)}: `--limit` shows up to {MOST} of each state"


def _item(item: Item, run: LastRun | None) -> View:
    request = item.request
    return {
        "state": item.state,
        "cluster": request.cluster,
        "namespace": request.namespace,
        "name": request.name,
        "failures": item.failures,
        "waitingSeconds": _seconds(item.waited),
        "priority": None if item.priority is None else item.priority.name.lower(),
        "remainingSeconds": _seconds(item.remaining),
        "worker": item.worker,
        "quarantines": item.times,
        "lastOutcome": run.outcome.value if run is not None else "",
        "lastError": run.error if run is not None else "",
        "lastEndedAt": render_moment(run.ended) if run is not None else None,
    }


def _row(one: Mapping[str, Any]) -> list[str]:
    names = (one["cluster"], one["namespace"], one["name"])
    return [one["state"], *names, _when(one), str(one["failures"]), one["lastError"] or "-"]


def _when(one: Mapping[str, Any]) -> str:
    if one["waitingSeconds"] is not None:
        return f"for {render_span(one['waitingSeconds'])} ({one['priority']})"
    left: float = one["remainingSeconds"]
    if one["state"] == "processing":
        by = f"by {one['worker'] or 'a worker'}"
        return by if left >= 0 else f"{by}, gone for {render_span(-left)}"
    return f"in {render_span(left)}" if left >= 0 else f"overdue by {render_span(-left)}"


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
