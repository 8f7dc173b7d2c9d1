"""Runs `fleetbus queue`: shows the queue of one controller, or a summary of all."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.workqueue.controllers import list_controllers
from fleetbus.workqueue.describe import describe
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_cli.documents import render_json
from fleetbus_cli.queue.queues import run_on_store, unknown_controller
from fleetbus_cli.queue.tables import SHOWN, describe_items, render


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
        views = [await describe(RedisQueue(redis, name), name) for name in chosen]
        if controller:
            views[0] |= await describe_items(redis, controller, limit or SHOWN)
        if output == "json":
            printer.json_text(render_json(views))
        else:
            printer.block(render(views))
        return 0

    return run_on_store(redis_url, show)
