"""Limits of the lists that run at once in a process of many clusters: rules W14, W19, W22."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fleetbus.errors import KubeError
from fleetbus_watcher.follow.list_limits import ClusterLists, ProcessLists


async def hold(lists: ClusterLists, let_go: asyncio.Event, begun: list[str], name: str) -> None:
    async with lists:
        begun.append(name)
        await let_go.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def fail(lists: ClusterLists) -> None:
    with suppress(KubeError):
        async with lists:
            raise KubeError(503, "ServiceUnavailable", "")


async def test_w22_a_process_lists_few_at_once_and_a_cluster_fewer():
    process, let_go, begun = ProcessLists(3), asyncio.Event(), list[str]()
    clusters = {name: ClusterLists(2, process) for name in "abc"}
    async with asyncio.TaskGroup() as group:
        for name in "aaabbc":
            group.create_task(hold(clusters[name], let_go, begun, name))
        await settle()
        assert begun == ["a", "a", "b"]
        let_go.set()
    assert sorted(begun) == list("aaabbc")


async def test_w22_lists_that_hang_do_not_keep_healthy_clusters_from_theirs():
    """Clusters whose last list failed have turns of their own, until one succeeds."""
    process, let_go, begun = ProcessLists(4), asyncio.Event(), list[str]()
    bad = {f"bad-{number}": ClusterLists(2, process) for number in range(4)}
    for lists in bad.values():
        await fail(lists)
    async with asyncio.TaskGroup() as group:
        for name, lists in bad.items():
            group.create_task(hold(lists, let_go, begun, name))
        await settle()
        assert begun == ["bad-0"]
        group.create_task(hold(ClusterLists(2, process), let_go, begun, "good"))
        await settle()
        assert begun == ["bad-0", "good"]
        let_go.set()
    begun.clear()
    async with asyncio.TaskGroup() as group:
        let_go.clear()
        for name, lists in bad.items():
            group.create_task(hold(lists, let_go, begun, name))
        await settle()
        assert len(begun) == 4, "their last lists were complete"
        let_go.set()


async def test_w22_a_list_that_is_given_up_while_it_waits_takes_no_turn():
    process, let_go, begun = ProcessLists(1), asyncio.Event(), list[str]()
    first_lists, given_up = ClusterLists(1, process), ClusterLists(1, process)
    first = asyncio.create_task(hold(first_lists, let_go, begun, "first"))
    await settle()
    waiting = asyncio.create_task(hold(given_up, let_go, begun, "waiting"))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    let_go.set()
    await first
    for lists in (first_lists, given_up):
        async with asyncio.timeout(1), lists:
            pass
    assert begun == ["first"]
