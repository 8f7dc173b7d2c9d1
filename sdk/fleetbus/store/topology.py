"""The masters of a Redis or Valkey Cluster, and the slots of keys that each holds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import redis.exceptions as errors
import structlog

from fleetbus.store.address import Place
from fleetbus.store.multiplexing import MultiplexingRedis

log = structlog.get_logger()

SLOTS: Final = 16384
_REFRESH_AFTER: Final = timedelta(milliseconds=200)
"""The shortest time between two readings of the topology while commands fail."""
ANSWER_WITHIN: Final = timedelta(seconds=3)
"""Time that a node has to name the owners of the slots."""
SILENT_AFTER: Final = timedelta(seconds=3)
"""A node whose answer is due for so long may have been replaced. If it hangs it sends no error, and
the commands that wait for it would wait until they are given up."""


class Topology:
    """Knows which node to ask for a slot; reads the topology again when a node does not answer.

    Args:
        seeds: nodes to begin with; others are found by them.
        make: makes the client of a node.
    """

    def __init__(self, seeds: Sequence[Place], make: Callable[[Place], MultiplexingRedis]) -> None:
        self._seeds = seeds
        self._make = make
        self._clients: dict[Place, MultiplexingRedis] = {}
        self._owners: dict[int, Place] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = float("-inf")
        self._closing: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def masters(self) -> list[MultiplexingRedis]:
        """The clients of all masters."""
        return [self.client(place) for place in dict.fromkeys(self._owners.values())]

    @property
    def is_complete(self) -> bool:
        """Whether every slot has a master."""
        return len(self._owners) == SLOTS

    def owner(self, slot: int | None) -> MultiplexingRedis:
        """The client of the master of a slot; of any master for None.

        Raises:
            redis.exceptions.ClusterDownError: none is known.
        """
        if slot is None:
            slot = random.choice(list(self._owners)) if self._owners else 0  # noqa: S311
        place = self._owners.get(slot)
        if place is None:
            self.suspect()
            raise errors.ClusterDownError(f"no server of the Cluster holds slot {slot}")
        return self.client(place)

    def client(self, place: Place) -> MultiplexingRedis:
        """The client of a node."""
        node = self._clients.get(place)
        if node is None:
            self._clients[place] = node = self._make(place)
        return node

    def move(self, slot: int, place: Place) -> MultiplexingRedis:
        """Note that another node holds a slot now; returns its client."""
        self._owners[slot] = place
        self.suspect()
        return self.client(place)

    def suspect(self) -> None:
        """Read the topology again in the background: a node failed, or refused a command."""
        due = self._refreshed_at + _REFRESH_AFTER.total_seconds()
        if self._refreshing is None and time.monotonic() >= due:
            self._refreshing = asyncio.create_task(self._refresh_quietly(), name="redis topology")

    def watch(self) -> None:
        """Read the topology again while a node is silent, from now on."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="redis silent nodes")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SILENT_AFTER.total_seconds())
            if any(client.is_silent(SILENT_AFTER) for client in self._clients.values()):
                self.suspect()

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except errors.RedisError as e:
            log.warning("cluster_topology_not_read", error=str(e))
        finally:
            self._refreshed_at = time.monotonic()
            self._refreshing = None

    async def refresh(self) -> None:
        """Read the topology from the first node that answers.

        Raises:
            redis.exceptions.RedisError: no node answers.
        """
        places = list(dict.fromkeys([*self._clients, *self._seeds]))
        random.shuffle(places)
        problem: Exception = errors.ClusterDownError("no node of the Cluster answers")
        for place in places:
            try:
                async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
                    # Raw: redis-py parses it for its own client only.
                    [reply] = await self.client(place).execute_together([("CLUSTER SLOTS",)])
            except (errors.RedisError, OSError, TimeoutError) as e:
                problem = e
                continue
            if isinstance(reply, Exception):
                problem = reply
                continue
            owners = _read_slots(reply, place)
            if owners:
                self._replace(owners)
                return
            problem = errors.ClusterDownError("no slot of the Cluster has a server")
        if isinstance(problem, (OSError, TimeoutError)):
            problem = errors.ConnectionError(str(problem) or type(problem).__name__)
        raise problem

    def _replace(self, owners: dict[int, Place]) -> None:
        self._owners = owners
        for place in self._clients.keys() - set(owners.values()):
            self._close(self._clients.pop(place))

    def _close(self, client: MultiplexingRedis) -> None:
        task = asyncio.create_task(client.aclose(), name="redis node")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close the clients of all nodes."""
        tasks = [task for task in (self._watching, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            self._close(client)
        self._clients.clear()
        self._owners.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)


def _read_slots(reply: Iterable[Sequence[Any]], own_place: Place) -> dict[int, Place]:
    """Decode CLUSTER SLOTS: ranges of slots with the master of each first."""
    owners: dict[int, Place] = {}
    for first, last, master, *_replicas in reply:
        host, port = cast("bytes | None", master[0]), int(master[1])
        name = host.decode() if host else ""
        place = (name if name not in {"", "?"} else own_place[0], port)
        owners.update(dict.fromkeys(range(int(first), int(last) + 1), place))
    return owners
