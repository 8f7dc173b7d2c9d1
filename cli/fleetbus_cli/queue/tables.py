"""Renders queues as tables, and describes the items of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from redis.asyncio import Redis

from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.process.human_time import render_duration, render_time
from fleetbus.workqueue.describe import View
from fleetbus.workqueue.items import MOST, STATES, Item, list_items
from fleetbus.workqueue.queue import Priority
from fleetbus_cli.table import render_table

_CLUSTERS: Final = (
    *("CONTROLLER", "CLUSTER", "LIVE", "RETRY", "INITIAL", "OLDEST", "QUARANTINED", "BREAKER"),
)
_PROCESSING: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "WORKER", "LEASE")
_QUARANTINED: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "TIMES", "NEXT TRY")
_LONG_WAIT: Final = timedelta(seconds=5)
SHOWN: Final = 20
"""Items listed of each state by default."""
_ITEMS: Final = ("STATE", "CLUSTER", "NAMESPACE", "NAME", "WHEN", "FAILURES", "LAST ERROR")


def render(views: Sequence[View]) -> str:
    """Render tables of the clusters with items, of items being processed and in quarantine.

    If the items of a queue were requested, one table of them replaces the last two.
    """
    if not views:
        return "No controller has a queue."
    blocks = ["\n".join(_summary(view) for view in views)]
    clusters = [_cluster_row(view, one) for view in views for one in view["clusters"]]
    if clusters:
        blocks.append(render_table(_CLUSTERS, clusters))
    if "items" in views[0]:
        blocks += filter(None, map(render_items, views))
        return "\n\n".join(blocks)
    for head, rows in (
        (
            _PROCESSING,
            [_processing_row(view, one) for view in views for one in view["processingItems"]],
        ),
        (
            _QUARANTINED,
            [_quarantined_row(view, one) for view in views for one in view["quarantinedItems"]],
        ),
    ):
        if rows:
            blocks.append(render_table(head, rows))
    if any(view[count] for view in views for count in ("ready", "delayed", "processing")):
        blocks.append("`fleetbus queue CONTROLLER` lists the items, with their last errors.")
    return "\n\n".join(blocks)


def _summary(view: View) -> str:
    return (
        f"{view['controller']}: {view['ready']} ready, {view['delayed']} delayed,"
        f" {view['processing']} processing, {view['quarantined']} in quarantine"
    )


def _cluster_row(view: View, one: Mapping[str, Any]) -> list[str]:
    oldest = one["oldestSeconds"]
    return [
        view["controller"],
        one["cluster"],
        *(str(one[band.name.lower()]) for band in Priority),
        "-" if oldest is None else render_duration(oldest),
        str(one["quarantined"]),
        _breaker_cell(one["breaker"]),
    ]


def _breaker_cell(breaker: Mapping[str, Any] | None) -> str:
    if breaker is None:
        return "closed"
    if breaker["probing"]:
        return f"open after {breaker['failures']} failures, probing"
    span = render_duration(breaker["nextProbeSeconds"])
    return f"open after {breaker['failures']} failures, next probe in {span}"


def _processing_row(view: View, one: Mapping[str, Any]) -> list[str]:
    left = one["leaseSeconds"]
    lease = (
        f"{render_duration(left)} left" if left >= 0 else f"expired {render_duration(-left)} ago"
    )
    names = (one["cluster"], one["namespace"], one["name"])
    return [view["controller"], *names, one["worker"] or "-", lease]


def _quarantined_row(view: View, one: Mapping[str, Any]) -> list[str]:
    names = (one["cluster"], one["namespace"], one["name"])
    return [
        view["controller"],
        *names,
        str(one["times"]),
        f"in {render_duration(one['nextTrySeconds'])}",
    ]


# --- the items of one queue ----------------------------------------------------------------------


async def describe_items(redis: Redis, controller: str, limit: int) -> View:
    """Describe the first items of each state, and count the others.

    Raises:
        QueueUnavailableError: Redis cannot be reached.
        redis.exceptions.RedisError: the connection broke.
    """
    found = await list_items(redis, controller, limit)
    runs = await LastRuns(redis, controller).get_many([item.request for item in found.shown])
    shown = {state: sum(item.state == state for item in found.shown) for state in STATES}
    return {
        "items": [_item(item, run) for item, run in zip(found.shown, runs, strict=True)],
        "itemsNotShown": {state: found.counts[state] - shown[state] for state in STATES},
    }


def render_items(view: Mapping[str, Any]) -> str:
    """Render the result of `describe_items` as a table; empty without items."""
    if not view["items"]:
        return ""
    table = render_table(_ITEMS, [_row(one) for one in view["items"]])
    if more := [f"{count} {state}" for state, count in view["itemsNotShown"].items() if count]:
        table += f"\n… and {', '.join(more)}: `--limit` shows up to {MOST} of each state"
    if _is_stalled(view["items"]):
        table += f"\n\nItems are due and none runs: is a worker of {view['controller']} running?"
    return table


def _is_stalled(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether items have been due for longer than a worker takes to notice them, and none runs."""
    late = _LONG_WAIT.total_seconds()
    return not any(one["state"] == "processing" for one in items) and any(
        (one["state"] == "ready" and one["waitingSeconds"] > late)
        or (one["state"] == "delayed" and one["remainingSeconds"] < -late)
        for one in items
    )


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
        "lastEndedAt": render_time(run.ended) if run is not None else None,
    }


def _row(one: Mapping[str, Any]) -> list[str]:
    names = (one["cluster"], one["namespace"], one["name"])
    return [one["state"], *names, _when(one), str(one["failures"]), one["lastError"] or "-"]


def _when(one: Mapping[str, Any]) -> str:
    if one["waitingSeconds"] is not None:
        return f"for {render_duration(one['waitingSeconds'])} ({one['priority']})"
    left: float = one["remainingSeconds"]
    if one["state"] == "processing":
        by = f"by {one['worker'] or 'a worker'}"
        return by if left >= 0 else f"{by}, lost {render_duration(-left)} ago"
    return f"in {render_duration(left)}" if left >= 0 else f"overdue by {render_duration(-left)}"


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
