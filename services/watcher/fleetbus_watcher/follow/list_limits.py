"""Limits of lists: how many run at once, and how many objects are on a page.

A list holds pages in memory, so a process that watches many clusters runs few lists at a time
(rules W14, W19, W22). Clusters whose last list failed wait in a queue of their own: lists that hang
until they are given up must not hold up the others.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fleetbus.errors import KubeError

_LARGER: Final = 4


class ProcessLists:
    """The list slots of one process.

    Args:
        at_once: how many lists may run in all; clusters that fail have a quarter of that besides.
    """

    def __init__(self, at_once: int) -> None:
        self.healthy = asyncio.Semaphore(at_once)
        self.failing = asyncio.Semaphore(max(at_once // 4, 1))


class ClusterLists:
    """The list slots of one cluster, each of which takes one of the process: `async with lists`.

    Args:
        at_once: how many lists of the cluster may run.
        process: the slots of all clusters.
    """

    def __init__(self, at_once: int, process: ProcessLists) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._process = process
        self._is_failing = False
        # The process slot that each task of the cluster holds.
        self._taken: dict[asyncio.Task[object] | None, asyncio.Semaphore] = {}

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        slots = self._process.failing if self._is_failing else self._process.healthy
        try:
            await slots.acquire()
        except asyncio.CancelledError:
            self._slots.release()
            raise
        self._taken[asyncio.current_task()] = slots

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._taken.pop(asyncio.current_task()).release()
        self._slots.release()
        if kind is None or issubclass(kind, KubeError):
            self._is_failing = kind is not None


class PageSizes:
    """The page sizes of one resource: larger after each 410, and in the end unpaged (rule W2).

    Args:
        first: objects per page while no list expires.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._expired = 0

    @property
    def limit(self) -> int:
        """The page size of the next list; 0 means unpaged."""
        return {0: self._first, 1: self._first * _LARGER}.get(self._expired, 0)

    def expired(self) -> None:
        """Note that the continue token of a list expired."""
        self._expired += 1

    def listed(self) -> None:
        """Note that a list was read to its end."""
        self._expired = 0
