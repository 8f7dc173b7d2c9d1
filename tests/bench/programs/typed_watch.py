"""kubernetes_asyncio's Watch with typed models; it only reads. Prints CPU microseconds per event.

python tests/run.py bench.programs.typed_watch KUBECONFIG EVENTS
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from kubernetes_asyncio import client as kube_client
from kubernetes_asyncio import config, watch

_WARM_UP = 100


async def run(kubeconfig: str, events: int) -> None:
    client: Any = kube_client
    await config.load_kube_config(kubeconfig)
    started, count = time.process_time(), 0
    async with client.ApiClient() as api, watch.Watch() as watcher:
        pods = client.CoreV1Api(api).list_pod_for_all_namespaces
        async for _ in watcher.stream(pods, resource_version="1"):
            count += 1
            if count == _WARM_UP:
                started = time.process_time()
            if count == events:
                break
    print((time.process_time() - started) / (events - _WARM_UP) * 1e6)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
