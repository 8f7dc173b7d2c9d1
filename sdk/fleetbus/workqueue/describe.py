"""Describes the queues of controllers, for `fleetbus queue` and the query API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Breaker, Priority, Stats
from fleetbus.workqueue.redis import RedisQueue
from fleetbus.workqueue.stored_format import check_format

if TYPE_CHECKING:
    from redis.asyncio import Redis

View: TypeAlias = dict[str, Any]


async def describe(redis: Redis, controller: str) -> View:
    """Describe the queue of a controller; durations are in seconds.

    Raises:
        NewerQueue: a newer release has written it.
        QueueUnavailableError: the store does not answer.
        redis.exceptions.RedisError: the store is away.
    """
    await check_format(redis, controller)
    queue = RedisQueue(redis, controller)
    stats = await queue.stats()
    processing = [
        {
            **_names(item.request),
            "worker": item.worker,
            "fence": item.fence,
            "leaseSeconds": item.remaining.total_seconds(),
        }
        for item in await queue.processing()
    ]
    quarantined = [
        {
            **_names(item.request),
            "times": item.times,
            "nextTrySeconds": item.remaining.total_seconds(),
        }
        for item in await queue.quarantined()
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
