"""Opens the queues in Redis itself, so that the commands work while every service is down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.errors import ConfigError, StoreError
from fleetbus.process import printer
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus.workqueue.controllers import list_controllers
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.redis import RedisQueue
from fleetbus.workqueue.stored_format import check_format
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import UnknownName, unknown, unknown_cluster

_PARTS_OF_AN_ITEM: Final = 3


def run_on_store(redis_url: str | None, call: Callable[[Redis], Awaitable[int]]) -> int:
    """Run a call with a connection to Redis; return its exit status, 1 if the store fails.

    Raises:
        ConfigError: no Redis address is set.
    """
    access = resolve_target(redis_url=redis_url).require_store()

    async def main() -> int:
        redis: Any = await connect_store(access)
        async with redis:
            return await call(redis)

    try:
        return asyncio.run(main())
    except StoreError as e:
        printer.note(f"fleetbus: {e}")
    except (QueueUnavailableError, RedisError) as e:
        printer.note(f"fleetbus: the store does not answer, or refuses: {e}")
    return 1


def count_items(count: int) -> str:
    """Say how many items, like "1 item"."""
    return f"{count} item{'' if count == 1 else 's'}"


async def open_queue(redis: Redis, controller: str) -> RedisQueue:
    """Open the queue of a controller.

    Raises:
        UnknownName: it has none.
        StoreError: a newer release has written it.
    """
    names = await list_controllers(redis)
    if controller not in names:
        raise unknown_controller(controller, names)
    await check_format(redis, controller)
    return RedisQueue(redis, controller)


def unknown_controller(controller: str, names: Sequence[str]) -> UnknownName:
    """Make the error about a controller that has no queue; it suggests one that has."""
    return unknown(f"controller {controller!r} has no queue", controller, names)


def read_request(controller: str, item: str) -> Request:
    """Parse CLUSTER/NAMESPACE/NAME.

    Raises:
        ConfigError: it has another form.
    """
    parts = item.split("/")
    if len(parts) != _PARTS_OF_AN_ITEM or not parts[0] or not parts[2]:
        raise ConfigError(
            f"{item!r} is not CLUSTER/NAMESPACE/NAME; the namespace may be empty, as in eu1//node1"
        )
    cluster, namespace, name = parts
    return Request(controller, cluster, namespace, name)


async def refuse(redis: Redis, request: Request, why: str) -> None:
    """Print why nothing was done for an item; that its cluster is unknown comes first."""
    clusters = {
        record.name for record in await SnapshotReader(redis, await find_shards(redis)).clusters()
    }
    message = f"{request} {why}"
    if clusters and request.cluster not in clusters:
        message = str(unknown_cluster(request.cluster, clusters))
    printer.note(f"fleetbus: {message}")
