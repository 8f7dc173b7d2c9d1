"""Clients of the query API: lists, and watches that come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Final

import httpx

from soak.fleet import SoakFleet
from support.servers.plain_http import http_client

WATCHES: Final = 4
_PATIENCE: Final = 30.0
_LISTS: Final = (
    "/fleet/v1/resources/configmaps?namespace=default&limit=50",
    "/fleet/v1/resources/configmaps?labelSelector=soak.fleetbus.dev/part=copy&limit=20",
    "/fleet/v1/counts/configmaps?by=cluster",
    "/fleet/v1/resources/serviceaccounts?sort=-metadata.creationTimestamp&limit=20",
    "/fleet/v1/clusters",
    "/fleet/v1/queues",
    "/kube/-/api/v1/namespaces/default/configmaps?limit=20",
)
_WATCHES: Final = (
    "/kube/-/api/v1/configmaps?watch=1",
    "/kube/-/api/v1/namespaces/default/serviceaccounts?watch=1",
    "/fleet/v1/events?resource=configmaps",
)


class Readers:
    """Asks all the time.

    Args:
        fleet: that is asked.
        random: the choices.

    Attributes:
        answers: how many of which kind there were; `list 200`, `watch events`.
    """

    def __init__(self, fleet: SoakFleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with (
            http_client(self._fleet.stack.api_url, timeout=_PATIENCE) as client,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._lists(client), name="lists")
            for number in range(WATCHES):
                group.create_task(self._watches(client), name=f"watches-{number}")

    async def _lists(self, client: httpx.AsyncClient) -> None:
        while True:
            cluster = self._random.choice(self._fleet.clusters)
            one = f"/kube/{cluster}/api/v1/namespaces/default/configmaps?limit=50"
            try:
                answer = await client.get(self._random.choice([*_LISTS, one]))
            except httpx.HTTPError:
                self.answers["list failed"] += 1
            else:
                self.answers[f"list {answer.status_code}"] += 1
            await asyncio.sleep(1)  # the pace of the load

    async def _watches(self, client: httpx.AsyncClient) -> None:
        while True:
            path = self._random.choice(_WATCHES)
            try:
                async with asyncio.timeout(self._random.uniform(2, 30)):
                    await self._watch(client, path)
            except TimeoutError:
                self.answers["watch left"] += 1
            except httpx.HTTPError:
                self.answers["watch failed"] += 1
            await asyncio.sleep(self._random.uniform(0, 2))  # the pace of the load

    async def _watch(self, client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("GET", path, timeout=None) as answer:
            self.answers[f"watch {answer.status_code}"] += 1
            async for line in answer.aiter_lines():
                self.answers["watch lines"] += bool(line)
