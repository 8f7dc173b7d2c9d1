"""An address behind which another cluster may answer than before."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fleetbus.kube.connection.config import KubeConfig
from fleetbus_emulator.apiserver import Cluster, serve
from support.hostile.chaos_proxy import Link, chaos_link


@dataclass
class Address:
    """A link to one cluster that can be led to another one.

    Attributes:
        right: the cluster to which it leads first.
        wrong: the other one.
        link: between them and a client.
        config: access data that name the link.
        wrong_port: where the other one listens.
    """

    right: Cluster
    wrong: Cluster
    link: Link
    config: KubeConfig
    wrong_port: int

    def lead_new_connections_elsewhere(self) -> None:
        """From now on new connections lead to the wrong cluster; those that stand stay."""
        self.link.target = self.wrong_port

    async def lead_elsewhere(self) -> None:
        """From now on it leads to the wrong cluster; all connections end."""
        await self.link.turn_to(self.wrong_port)


def config_of(server: str) -> KubeConfig:
    """Access data for a server that wants no credentials."""
    document: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    return KubeConfig(json.dumps(document))


@asynccontextmanager
async def shared_address() -> AsyncGenerator[Address]:
    """The address of a new cluster, and another cluster beside it."""
    right, wrong = Cluster("right"), Cluster("wrong")
    async with serve([right, wrong]) as servers:
        entries: list[dict[str, Any]] = servers.kubeconfig()["clusters"]
        urls = {str(entry["name"]): urlsplit(str(entry["cluster"]["server"])) for entry in entries}
        async with chaos_link(urls["right"].port or 0, speaks_nats=False) as link:
            config = config_of(f"{urls['right'].scheme}://127.0.0.1:{link.port}")
            yield Address(right, wrong, link, config, urls["wrong"].port or 0)
