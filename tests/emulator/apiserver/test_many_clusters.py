"""Many clusters in one process: what they share, what each costs, and what is each one's own."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc

import aiohttp
import pytest

from emulator.support.kube_calls import (
    CONFIGMAPS,
    CRDS,
    WIDGETS,
    Calls,
    changes,
    config_map,
    events,
    widget_definition,
)
from fleetbus_emulator.apiserver import Cluster, serve


async def test_an_empty_cluster_with_its_listener_takes_far_less_than_two_megabytes():
    async with serve([Cluster("warm")]):
        pass
    gc.collect()
    tracemalloc.start()
    try:
        async with serve([Cluster(f"c{number}") for number in range(10)]):
            traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traced / 10 < 200_000


async def test_three_clusters_start_within_300_milliseconds():
    begun = time.perf_counter()
    async with serve([Cluster("a"), Cluster("b"), Cluster("c")]):
        assert time.perf_counter() < begun + 0.3


async def test_a_hundred_clusters_in_one_process_each_answer_for_themselves():
    clusters = [Cluster(f"c{number}") for number in range(100)]
    for cluster in clusters:
        cluster.create("v1/configmaps", config_map(f"of-{cluster.name}"), "default")

    async with serve(clusters) as servers, aiohttp.ClientSession() as session:

        async def names(cluster: str) -> list[str]:
            async with session.get(servers.url(cluster) + CONFIGMAPS) as answer:
                items = (await answer.json())["items"]
            return [item["metadata"]["name"] for item in items]

        names_of_all = await asyncio.gather(*(names(cluster.name) for cluster in clusters))
    assert names_of_all == [[f"of-{cluster.name}"] for cluster in clusters]


def test_clusters_share_the_types_that_they_all_have():
    first, other = Cluster("one"), Cluster("other")
    assert first.served("v1/pods") is other.served("v1/pods")


def test_clusters_with_the_same_definition_share_what_is_made_of_it():
    first, other = Cluster("one"), Cluster("other")
    for cluster in (first, other):
        Calls(cluster).post(CRDS, widget_definition())
    gvr = "example.com/v1/widgets"
    assert first.served(gvr).version is other.served(gvr).version


def test_a_type_of_one_cluster_is_not_served_by_another():
    first, other = Calls(Cluster("one")), Calls(Cluster("other"))
    first.post(CRDS, widget_definition())
    assert first.get(WIDGETS).status == 200
    assert other.get(WIDGETS).status == 404


def test_a_watch_from_before_the_first_object_of_its_type_sees_that_object():
    calls = Calls(Cluster("alpha"))
    before = str(calls.cluster.resource_version)
    calls.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    calls.post(CONFIGMAPS, config_map("a"))
    assert changes(calls.watch(CONFIGMAPS, resourceVersion=before)) == ["ADDED:a"]


@pytest.mark.parametrize("compacted_first", [True, False])
def test_a_compaction_counts_for_types_that_had_no_object_yet(*, compacted_first: bool):
    calls = Calls(Cluster("alpha"))
    before = str(calls.cluster.resource_version)
    if not compacted_first:
        calls.get(CONFIGMAPS)
    calls.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    calls.cluster.compact()
    [event] = events(calls.watch(CONFIGMAPS, resourceVersion=before))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    exact = {"resourceVersion": before, "resourceVersionMatch": "Exact"}
    assert calls.get(CONFIGMAPS, **exact).status == 410
