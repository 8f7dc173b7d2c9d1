"""Runs `fleetbus queue`: shows the queue of one controller, or a summary of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from redis.asyncio import Redis

from fleetbus.errors import ConfigError
from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.process import printer
from fleetbus.process.human_time import render_duration, render_time
from fleetbus.workqueue.controllers import list_controllers
from fleetbus.workqueue.describe import View, describe
from fleetbus.workqueue.items import MOST, STATES, Item, list_items
from fleetbus.workqueue.queue import Priority
from fleetbus_cli.documents import render_json
from fleetbus_cli.queue.queues import run_on_store, unknown_controller
from fleetbus_cli.table import render_table

_CLUSTERS: Final = (
    *("CONTROLLER", "CLUSTER", "LIVE", "RETRY", "INITIAL", "OLDEST", "QUARANTINED", "BREAKER"),
)
_PROCESSING: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "WORKER", "LEASE")
_QUARANTINED: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "TIMES", "NEXT TRY")
LONG_WAIT: Final = timedelta(seconds=5)
"""An item that is due for longer has no worker."""
_SHOWN: Final = 20
"""Items listed of each state by default."""
_ITEMS: Final = ("STATE", "CLUSTER", "NAMESPACE", "NAME", "WHEN", "FAILURES", "LAST ERROR")


def show_queues(
    controller: str,
    *,
    extra: Sequence[str],
    every: bool,
    limit: int | None,
    output: str,
    redis_url: str | None,
) -> int:
    """Print one queue with its items, or a summary of all; return the exit status.

    Raises:
        ConfigError: an argument is invalid, or no Redis address is set.
    """
    if extra or every:
        wrong = "--all" if every else repr(extra[0])
        raise ConfigError(f"{wrong} is only valid with `fleetbus queue release CONTROLLER`")

    async def show(redis: Redis) -> int:
        names = await list_controllers(redis)
        if controller and controller not in names:
            raise unknown_controller(controller, names)
        chosen = [controller] if controller else names
        views = [await describe(redis, name) for name in chosen]
        if controller:
            views[0] |= await describe_items(redis, controller, limit or _SHOWN)
        if output == "json":
            printer.json_text(render_json(views))
        else:
            printer.block(render(views))
        return 0

    return run_on_store(redis_url, show)


def render(views: Sequence[View]) -> str:
    """Render tables of the clusters with items, of items being processed and in quarantine.

    If the items of a queue were requested, one table of them replaces the last two.
    """
    if not views:
        return "No controller has a queue."
    blocks = ["\n".join(_summary(view) for view in views)]
    clusters = [_cluster_row(view, cluster) for view in views for cluster in view["clusters"]]
    if clusters:
        blocks.append(render_table(_CLUSTERS, clusters))
    if "items" in views[0]:
        blocks += filter(None, map(render_items, views))
        return "\n\n".join(blocks)
    for head, rows in (
        (
            _PROCESSING,
            [_processing_row(view, item) for view in views for item in view["processingItems"]],
        ),
        (
            _QUARANTINED,
            [_quarantined_row(view, item) for view in views for item in view["quarantinedItems"]],
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


def _cluster_row(view: View, cluster: Mapping[str, Any]) -> list[str]:
    oldest = cluster["oldestSeconds"]
    return [
        view["controller"],
        cluster["cluster"],
        *(str(cluster[band.name.lower()]) for band in Priority),
        "-" if oldest is None else render_duration(oldest),
        str(cluster["quarantined"]),
        _breaker_cell(cluster["breaker"]),
    ]


def _breaker_cell(breaker: Mapping[str, Any] | None) -> str:
    if breaker is None:
        return "closed"
    if breaker["probing"]:
        return f"open after {breaker['failures']} failures, probing"
    span = render_duration(breaker["nextProbeSeconds"])
    return f"open after {breaker['failures']} failures, next probe in {span}"


def _processing_row(view: View, item: Mapping[str, Any]) -> list[str]:
    left = item["leaseSeconds"]
    lease = (
        f"{render_duration(left)} left" if left >= 0 else f"expired {render_duration(-left)} ago"
    )
    names = (item["cluster"], item["namespace"], item["name"])
    return [view["controller"], *names, item["worker"] or "-", lease]


def _quarantined_row(view: View, item: Mapping[str, Any]) -> list[str]:
    names = (item["cluster"], item["namespace"], item["name"])
    return [
        view["controller"],
        *names,
        str(item["times"]),
        f"in {render_duration(item['nextTrySeconds'])}",
    ]


# --- the items of one queue ----------------------------------------------------------------------


async def describe_items(redis: Redis, controller: str, limit: int) -> View:
    """Describe the first items of each state, and count the others.

    Raises:
        QueueUnavailableError: Redis cannot be reached.
        redis.exceptions.RedisError: the connection broke.
    """
    listing = await list_items(redis, controller, limit)
    runs = await LastRuns(redis, controller).get_many([item.request for item in listing.shown])
    shown_counts = {state: sum(item.state == state for item in listing.shown) for state in STATES}
    return {
        "items": [_item(item, run) for item, run in zip(listing.shown, runs, strict=True)],
        "itemsNotShown": {state: listing.counts[state] - shown_counts[state] for state in STATES},
    }


def render_items(view: Mapping[str, Any]) -> str:
    """Render the result of `describe_items` as a table; empty without items."""
    if not view["items"]:
        return ""
    table = render_table(_ITEMS, [_row(item) for item in view["items"]])
    if more := [f"{count} {state}" for state, count in view["itemsNotShown"].items() if count]:
        table += f"\n… and {', '.join(more)}: `--limit` shows up to {MOST} of each state"
    if _is_stalled(view["items"]):
        table += f"\n\nItems are due and none runs: is a worker of {view['controller']} running?"
    return table


def _is_stalled(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether items have been due for longer than a worker takes to notice them, and none runs."""
    late = LONG_WAIT.total_seconds()
    return not any(item["state"] == "processing" for item in items) and any(
        (item["state"] == "ready" and item["waitingSeconds"] > late)
        or (item["state"] == "delayed" and item["remainingSeconds"] < -late)
        for item in items
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


def _row(item: Mapping[str, Any]) -> list[str]:
    names = (item["cluster"], item["namespace"], item["name"])
    return [item["state"], *names, _when(item), str(item["failures"]), item["lastError"] or "-"]


def _when(item: Mapping[str, Any]) -> str:
    if item["waitingSeconds"] is not None:
        return f"for {render_duration(item['waitingSeconds'])} ({item['priority']})"
    left: float = item["remainingSeconds"]
    if item["state"] == "processing":
        by = f"by {item['worker'] or 'a worker'}"
        return by if left >= 0 else f"{by}, lost {render_duration(-left)} ago"
    return f"in {render_duration(left)}" if left >= 0 else f"overdue by {render_duration(-left)}"


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
