"""A controller's queue as data and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from fleetbus.cli.human_time import render_span
from fleetbus.cli.queue_items import render_items
from fleetbus.cli.table import render_table
from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Breaker, Priority, Queue, Stats

View: TypeAlias = dict[str, Any]

_CLUSTERS: Final = (
    *("CONTROLLER", "CLUSTER", "LIVE", "RETRY", "INITIAL", "OLDEST", "QUARANTINED", "BREAKER"),
)
_PROCESSING: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "WORKER", "LEASE")
_QUARANTINED: Final = ("CONTROLLER", "CLUSTER", "NAMESPACE", "NAME", "TIMES", "NEXT TRY")


async def describe(queue: Queue, controller: str) -> View:
    """Everything that is known of a queue; spans of time are in seconds."""
    stats = await queue.stats()
    processing = [
        {
            **_names(one.request),
            "worker": one.worker,
            "fence": one.fence,
            "leaseSeconds": one.remaining.total_seconds(),
        }
        for one in await queue.processing()
    ]
    quarantined = [
        {
            **_names(one.request),
            "times": one.times,
            "nextTrySeconds": one.remaining.total_seconds(),
        }
        for one in await queue.quarantined()
    ]
    return {
        "controller": controller,
        "ready": sum(stats.depth.values()),
        "delayed": stats.delayed,
        "processing": stats.processing,
        "quarantined": stats.quarantined,
        "oldestSeconds": stats.oldest.total_seconds() if stats.oldest is not None else None,
        "clusters": _clusters(stats),
        "processingItems": processing,
        "quarantinedItems": quarantined,
    }


def render(views: Sequence[View]) -> str:
    """Tables: clusters with something in the queue, what is worked on, what is kept back.

    Of a queue whose items were asked for, they are in the place of the last two.
    """
    if not views:
        return "No controller has a queue here."
    blocks = ["\n".join(_summary(view) for view in views)]
    clusters = [_cluster_row(view, one) for view in views for one in view["clusters"]]
    if clusters:
        blocks.append(render_table(_CLUSTERS, clusters))
    if "items" in views[0]:
        blocks += filter(None, map(render_items, views))
        return "\n\n".join(blocks)
    for head, rows in (
        (_PROCESSING, [_held_row(view, one) for view in views for one in view["processingItems"]]),
        (
            _QUARANTINED,
            [_kept_row(view, one) for view in views for one in view["quarantinedItems"]],
        ),
    ):
        if rows:
            blocks.append(render_table(head, rows))
    if any(view[count] for view in views for count in ("ready", "delayed", "processing")):
        blocks.append("`fleetbus queue CONTROLLER` lists the items, with their last errors.")
    return "\n\n".join(blocks)


def _names(request: Request) -> View:
    return {"cluster": request.cluster, "namespace": request.namespace, "name": request.name}


def _clusters(stats: Stats) -> list[View]:
    breakers = {breaker.cluster: breaker for breaker in stats.breakers}
    names = {cluster for cluster, _ in stats.depth} | stats.kept.keys() | breakers.keys()
    return [
        {
            "cluster": name,
            **{band.name.lower(): stats.depth.get((name, band), 0) for band in Priority},
            "oldestSeconds": stats.ages[name].total_seconds() if name in stats.ages else None,
            "quarantined": stats.kept.get(name, 0),
            "breaker": _breaker(breakers.get(name)),
        }
        for name in sorted(names)
    ]


def _breaker(breaker: Breaker | None) -> View | None:
    if breaker is None:
        return None
    return {
        "failures": breaker.failures,
        "opened": breaker.opened,
        "probing": breaker.is_probing,
        "nextProbeSeconds": breaker.remaining.total_seconds(),
    }


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
        "-" if oldest is None else render_span(oldest),
        str(one["quarantined"]),
        _breaker_cell(one["breaker"]),
    ]


def _breaker_cell(breaker: Mapping[str, Any] | None) -> str:
    if breaker is None:
        return "closed"
    if breaker["probing"]:
        return f"open after {breaker['failures']} failures, probing"
    span = render_span(breaker["nextProbeSeconds"])
    return f"open after {breaker['failures']} failures, next probe in {span}"


def _held_row(view: View, one: Mapping[str, Any]) -> list[str]:
    left = one["leaseSeconds"]
    lease = f"{render_span(left)} left" if left >= 0 else f"expired {render_span(-left)} ago"
    names = (one["cluster"], one["namespace"], one["name"])
    return [view["controller"], *names, one["worker"] or "-", lease]


def _kept_row(view: View, one: Mapping[str, Any]) -> list[str]:
    names = (one["cluster"], one["namespace"], one["name"])
    return [
        view["controller"],
        *names,
        str(one["times"]),
        f"in {render_span(one['nextTrySeconds'])}",
    ]
