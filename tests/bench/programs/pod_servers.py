"""Emulated API servers that have the pods of the benchmark of the query API.

    python tests/run.py bench.programs.pod_servers PODS CLUSTERS

Prints their URLs as a line of JSON, and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys

import uvloop

from bench.rig.query_fleet import cluster_names
from bench.rig.realistic_pods import NAMESPACES, make_pod
from fleetbus_emulator.apiserver import Cluster, serve


def make_cluster(name: str, number: int, pods: int, clusters: int) -> Cluster:
    cluster = Cluster(name)
    for team in range(NAMESPACES):
        cluster.create("v1/namespaces", {"metadata": {"name": f"team-{team}"}})
    cluster.restore([("v1/pods", make_pod(index)) for index in range(number, pods, clusters)])
    return cluster


async def run(pods: int, clusters: int) -> None:
    names = cluster_names(clusters)
    pod_clusters = [make_cluster(name, at, pods, clusters) for at, name in enumerate(names)]
    gc.collect()
    gc.freeze()
    async with serve(pod_clusters) as servers:
        print(json.dumps([servers.url(name) for name in names]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
