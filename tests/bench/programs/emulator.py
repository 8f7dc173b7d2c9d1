"""The emulated API server, for the benchmark of API servers.

python tests/run.py bench.programs.emulator serve PODS
python tests/run.py bench.programs.emulator start CLUSTERS
python tests/run.py bench.programs.emulator fill PODS
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any, Final

import uvloop

from bench.rig.processes import rss_mb
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.generate import fill

NAMESPACE: Final = "bench"


def sample_config_map() -> dict[str, Any]:
    data = {f"KEY_{n}": "some value of a setting" for n in range(8)}
    return {"metadata": {"labels": {"app": "bench", "team": "core"}}, "data": data}


def cluster_with_pods(count: int) -> Cluster:
    """The cluster that is measured has these, in this order."""
    cluster = Cluster("bench")
    cluster.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
    fill(cluster, objects=count, seed=1, only=["v1/pods"])
    return cluster


async def serve_pods(count: int) -> None:
    """Serve a cluster with so many pods and config maps, and a namespace to write into."""
    cluster = cluster_with_pods(count)
    settings = sample_config_map()
    for number in range(count):
        metadata = {**settings["metadata"], "name": f"c{number}", "namespace": "default"}
        cluster.restore([("v1/configmaps", {**settings, "metadata": metadata})])
    cluster.create("apiextensions.k8s.io/v1/customresourcedefinitions", _definition())
    gc.collect()
    gc.freeze()
    async with serve([cluster]) as servers:
        print(servers.url("bench"), flush=True)
        await asyncio.Event().wait()


def _definition() -> dict[str, Any]:
    integer = {"type": "integer", "minimum": 0, "default": 1}
    spec = {"type": "object", "properties": {"size": integer, "text": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }


async def start_clusters(count: int) -> None:
    """Print what starting clusters takes."""
    async with serve([Cluster("warm")]):
        pass
    begun = time.perf_counter()
    async with serve([Cluster(name) for name in "abc"]):
        three = time.perf_counter() - begun
    gc.collect()
    begun, before = time.perf_counter(), rss_mb()
    async with serve([Cluster(f"c{n}") for n in range(count)]):
        many, grown = time.perf_counter() - begun, rss_mb() - before
    print(json.dumps({"three": three, "many": many, "grown": grown}), flush=True)


async def fill_cluster(count: int) -> None:
    """Print what loading pods takes."""
    cluster = Cluster("full")
    begun, before = time.perf_counter(), rss_mb()
    fill(cluster, objects=count, seed=1, only=["v1/pods"])
    print(json.dumps({"seconds": time.perf_counter() - begun, "grown": rss_mb() - before}))


if __name__ == "__main__":
    jobs = {"serve": serve_pods, "start": start_clusters, "fill": fill_cluster}
    uvloop.run(jobs[sys.argv[1]](int(sys.argv[2])))
