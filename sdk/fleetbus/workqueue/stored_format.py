"""Refuses a queue that a newer release has written in a format of its own.

The mark is read at the start of a process and by commands, not at each call: a release changes the
format only once the release before can read it, too, so no process meets a change while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.process.stored_format import why_newer
from fleetbus.process.waiting import wait_until_usable
from fleetbus_proto.keys import queue_format

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.process.health import Health


class NewerQueue(StoreError):
    """A newer release has written the queue in a format of its own. Nothing was written."""


async def check_format(redis: Redis, controller: str) -> None:
    """Make sure that this release knows the format of a controller's queue.

    Raises:
        NewerQueue: it does not.
        redis.exceptions.RedisError: the store is away.
    """
    mark = cast("bytes | None", await cast("Any", redis.get(queue_format(controller)))) or b""
    back = (
        "to go on with this one, stop every process of the controller, delete the keys"
        f" fleetbus:{{q:{controller}}}:*, and start this release: all its objects are reconciled"
        " again"
    )
    what = f"the queue of controller {controller}"
    if newer := why_newer(what, mark.decode(errors="replace"), back=back):
        raise NewerQueue(newer)


async def wait_for_format(redis: Redis, controllers: Iterable[str], health: Health) -> None:
    """Wait until this release knows the format of all these queues; it is not ready meanwhile."""
    names = sorted(controllers)

    async def check() -> None:
        for name in names:
            await check_format(redis, name)

    await wait_until_usable("queues", check, health=health, failures=(StoreError, RedisError))
