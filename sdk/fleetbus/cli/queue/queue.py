"""Runs `fleetbus queue` on Redis itself, so it works while every service is down."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.cli.documents import render_json
from fleetbus.cli.queue.tables import SHOWN, describe, describe_items, render
from fleetbus.cli.target import resolve_target
from fleetbus.cli.unknown import UnknownName, unknown, unknown_cluster
from fleetbus.errors import ConfigError, StoreError
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.items import run_now
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_proto import keys

_PARTS_OF_AN_ITEM: Final = 3


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
            raise _unknown(controller, names)
        chosen = [controller] if controller else names
        shown = [await describe(RedisQueue(redis, one), one) for one in chosen]
        if controller:
            shown[0] |= await describe_items(redis, controller, limit or SHOWN)
        print(render_json(shown) if output == "json" else render(shown))
        return 0

    return _run_on_store(redis_url, show)


def release_items(words: Sequence[str], *, every: bool, redis_url: str | None) -> int:
    """Release items of a controller from quarantine; return the exit status.

    Raises:
        ConfigError: no controller or item is given, or no Redis address is set.
    """
    controller, *items = words or [""]
    if not controller or bool(items) == every:
        raise ConfigError(
            "nothing to release: use `fleetbus queue release CONTROLLER CLUSTER/NAMESPACE/NAME`, or"
            " `fleetbus queue release CONTROLLER --all`"
        )
    requests = [_request(controller, item) for item in items]

    async def release(redis: Redis) -> int:
        queue = await _known_queue(redis, controller)
        if every:
            return await _release_all(queue)
        released = [await _release(redis, queue, request) for request in requests]
        return int(not all(released))

    return _run_on_store(redis_url, release)


def retry_items(words: Sequence[str], *, every: bool, redis_url: str | None) -> int:
    """Make delayed and quarantined items due now, all or some; return the exit status.

    Raises:
        ConfigError: no controller is given, or no Redis address is set.
    """
    controller, *items = words or [""]
    if not controller or every:
        raise ConfigError(
            "nothing to retry: use `fleetbus queue retry CONTROLLER` for all items, or"
            " `fleetbus queue retry CONTROLLER CLUSTER/NAMESPACE/NAME`"
        )
    requests = [_request(controller, item) for item in items]

    async def retry(redis: Redis) -> int:
        queue = await _known_queue(redis, controller)
        if not requests:
            count = await run_now(redis, controller) + await _release_quarantined(queue)
            print(f"due now: {count} item{'' if count == 1 else 's'}")
            return 0
        retried = [await _retry(redis, queue, request) for request in requests]
        return int(not all(retried))

    return _run_on_store(redis_url, retry)


async def _retry(redis: Redis, queue: RedisQueue, request: Request) -> bool:
    is_hastened = await run_now(redis, request.controller, request) > 0
    is_released = await queue.release(request)
    if is_hastened or is_released:
        print(f"due now: {request}")
        return True
    await _refuse(redis, request, "is neither delayed nor in quarantine")
    return False


async def _release_all(queue: RedisQueue) -> int:
    released = await _release_quarantined(queue)
    print(f"released {released} item{'' if released == 1 else 's'}")
    return 0


async def _release_quarantined(queue: RedisQueue) -> int:
    released = 0
    while kept := await queue.quarantined():
        for one in kept:
            released += await queue.release(one.request)
    return released


async def _release(redis: Redis, queue: RedisQueue, request: Request) -> bool:
    is_released = await queue.release(request)
    if is_released:
        print(f"released {request}")
    else:
        await _refuse(redis, request, "is not in quarantine")
    return is_released


async def _refuse(redis: Redis, request: Request, why: str) -> None:
    clusters = {record.name for record in await SnapshotReader(redis).clusters()}
    message = f"{request} {why}"
    if clusters and request.cluster not in clusters:
        message = str(unknown_cluster(request.cluster, clusters))
    print(f"fleetbus: {message}", file=sys.stderr)


def _request(controller: str, item: str) -> Request:
    parts = item.split("/")
    if len(parts) != _PARTS_OF_AN_ITEM or not parts[0] or not parts[2]:
        raise ConfigError(
            f"{item!r} is not CLUSTER/NAMESPACE/NAME; the namespace may be empty, as in eu1//node1"
        )
    cluster, namespace, name = parts
    return Request(controller, cluster, namespace, name)


async def list_controllers(redis: Redis) -> list[str]:
    """List every controller that has, or had, a queue."""
    before, _, after = keys.queue("*", "*").rpartition("*")[0].partition("*")
    names: set[str] = set()
    scan: AsyncIterator[bytes] = cast("Any", redis).scan_iter(keys.queue("*", "*"), count=10_000)
    async for key in scan:
        name, _, _ = key.decode().removeprefix(before).partition(after)
        names.add(name)
    return sorted(names)


def _unknown(controller: str, names: Sequence[str]) -> UnknownName:
    return unknown(f"controller {controller!r} has no queue", controller, names)


async def _known_queue(redis: Redis, controller: str) -> RedisQueue:
    """Open the queue of a controller.

    Raises:
        UnknownName: it has none.
    """
    names = await list_controllers(redis)
    if controller not in names:
        raise _unknown(controller, names)
    return RedisQueue(redis, controller)


def _run_on_store(redis_url: str | None, call: Callable[[Redis], Awaitable[int]]) -> int:
    url = resolve_target(redis_url=redis_url).require("redis_url")

    async def main() -> int:
        redis: Any = await connect(url)
        async with redis:
            return await call(redis)

    try:
        return asyncio.run(main())
    except (StoreError, QueueUnavailableError, RedisError) as e:
        print(f"fleetbus: {e}", file=sys.stderr)
        return 1
