"""A hub whose objects are clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from fleetbus.kube.connection.config import KubeConfig
from fleetbus_emulator.apiserver import Cluster, serve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.fixture
def hub() -> Cluster:
    return Cluster("hub")


@pytest.fixture
async def access(hub: Cluster) -> AsyncGenerator[KubeConfig]:
    async with serve([hub]) as servers:
        yield KubeConfig(yaml.safe_dump(servers.kubeconfig()))
