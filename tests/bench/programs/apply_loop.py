"""The peer of the distributor's benchmark: server-side applies with kubernetes_asyncio, in a loop.

python tests/run.py bench.programs.apply_loop KUBECONFIG CLUSTERS OBJECTS AT_ONCE

It applies so many ConfigMaps to each of the first clusters, one request for each and nothing else:
no read before, no owner, no record. AT_ONCE is how many clusters are worked on side by side; on
each of them one request follows the other. Prints seconds, CPU and how long each request took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from kubernetes_asyncio import client as kube_client
from kubernetes_asyncio.client import Configuration

from bench.rig.config_maps import config_map

_MANAGER = "apply-loop"
_APPLY = "application/apply-patch+yaml"


async def run(kubeconfig: str, clusters: int, objects: int, at_once: int) -> dict[str, Any]:
    text = Path(kubeconfig).read_text()
    document = yaml.load(text, Loader=yaml.CSafeLoader)
    servers = {cluster["name"]: cluster["cluster"]["server"] for cluster in document["clusters"]}
    names = [name for name in sorted(servers) if name != "hub"][:clusters]
    free, waits = asyncio.Semaphore(at_once), list[float]()
    begun, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(apply_all(servers[name], objects, free, waits))
    return {
        "seconds": time.perf_counter() - begun,
        "cpu_ms_per_object": (time.process_time() - cpu) / len(waits) * 1e3,
        "objects": len(waits),
        "waits": waits,
    }


async def apply_all(server: str, objects: int, free: asyncio.Semaphore, waits: list[float]) -> None:
    client: Any = kube_client
    async with free, client.ApiClient(Configuration(host=server)) as api:
        maps = client.CoreV1Api(api)
        for number in range(objects):
            body = config_map(f"loop-{number}")
            began = time.perf_counter()
            await maps.patch_namespaced_config_map(
                body["metadata"]["name"],
                "default",
                body,
                field_manager=_MANAGER,
                _content_type=_APPLY,
            )
            waits.append(time.perf_counter() - began)


if __name__ == "__main__":
    path, *numbers = sys.argv[1:]
    print(json.dumps(asyncio.run(run(path, *map(int, numbers)))))
