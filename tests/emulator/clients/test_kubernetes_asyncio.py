"""kubernetes_asyncio works unchanged: typed clients, DynamicClient, Watch."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from emulator.support import asyncio_client_stories
from emulator.support.asyncio_client_stories import STORIES
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.controllers import simulate
from fleetbus_emulator.generate import fill


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wrong(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """The failures by story; one process plays all, before a cluster full of objects."""
    path = tmp_path_factory.mktemp("asyncio") / "kubeconfig"
    cluster = Cluster("alpha", seed=1, bookmark_interval=timedelta(milliseconds=100))
    fill(cluster, objects=300, seed=1)
    async with serve([cluster]) as servers, simulate(cluster, seed=1):
        servers.write_kubeconfig(path)
        script = str(Path(asyncio_client_stories.__file__))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, script, str(path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        yield json.loads(out)


@pytest.mark.parametrize("story", STORIES)
def test_kubernetes_asyncio(story: str, wrong: dict[str, str]):
    assert story not in wrong, wrong[story]
