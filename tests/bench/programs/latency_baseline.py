"""The peer of the latency benchmarks: kubernetes_asyncio's Watch, typed, a queue in memory."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Any, cast

from kubernetes_asyncio import client, config, watch

AT = "bench.fleetbus.dev/at"


async def main(kubeconfig: str) -> None:
    await config.load_kube_config(kubeconfig)
    latencies: list[tuple[float, float]] = []
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    marks: dict[tuple[str, str], str] = {}

    async def work() -> None:
        while True:
            key = await queue.get()
            started = time.time()
            changed = float(marks[key])
            latencies.append((changed, started - changed))

    async with cast("Any", client.ApiClient)() as api:
        pods = cast("Any", client.CoreV1Api)(api)
        version = (await pods.list_pod_for_all_namespaces(limit=1)).metadata.resource_version
        worker = asyncio.create_task(work())
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        print("watching", flush=True)
        try:
            async with cast("Any", watch.Watch)().stream(
                pods.list_pod_for_all_namespaces, resource_version=version
            ) as events:
                async for event in events:
                    metadata = event["object"].metadata
                    key = (metadata.namespace, metadata.name)
                    marks[key] = metadata.annotations.get(AT, "0")
                    queue.put_nowait(key)
        except asyncio.CancelledError:
            worker.cancel()
    for changed, latency in latencies:
        print(repr(changed), repr(latency))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
