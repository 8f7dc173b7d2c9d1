"""How many lists run at once: of one cluster (rule W19), and of one process (rules W14, W22).

A list holds pages in memory, so a process that watches many clusters runs few at a time. Clusters
whose last list failed wait in a line of their own: lists that hang until they are given up must
not keep the others from theirs.
"""

from __future__ import annotations

import asyncio

from fleetbus.errors import KubeError


class ProcessLists:
    """The turns of one process.

    Args:
        at_once: how many lists may run in all; of clusters that fail, a quarter of that besides.
    """

    def __init__(self, at_once: int) -> None:
        self.healthy = asyncio.Semaphore(at_once)
        self.failing = asyncio.Semaphore(max(at_once // 4, 1))


class ClusterLists:
    """The turns of one cluster, each of which also is one of the process: `async with lists`.

    Args:
        at_once: how many lists of the cluster may run.
        process: the turns of all clusters.
    """

    def __init__(self, at_once: int, process: ProcessLists) -> None:
        self._own = asyncio.Semaphore(at_once)
        self._process = process
        self._is_failing = False
        # In which line each task of ours has its turn.
        self._lines: dict[asyncio.Task[object] | None, asyncio.Semaphore] = {}

    async def __aenter__(self) -> None:
        await self._own.acquire()
        line = self._process.failing if self._is_failing else self._process.healthy
        try:
            await line.acquire()
        except asyncio.CancelledError:
            self._own.release()
            raise
        self._lines[asyncio.current_task()] = line

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._lines.pop(asyncio.current_task()).release()
        self._own.release()
        if kind is None or issubclass(kind, KubeError):
            self._is_failing = kind is not None
