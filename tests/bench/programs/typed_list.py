"""kubernetes_asyncio lists pods with typed models, page by page. Prints CPU seconds.

python tests/run.py bench.programs.typed_list KUBECONFIG
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from kubernetes_asyncio import client as kube_client
from kubernetes_asyncio import config

_PAGE = 500


async def run(kubeconfig: str) -> None:
    client: Any = kube_client
    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        begun, token = time.process_time(), ""
        while True:
            page = await core.list_pod_for_all_namespaces(limit=_PAGE, _continue=token)
            token = page.metadata._continue
            if not token:
                break
    print(time.process_time() - begun)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
