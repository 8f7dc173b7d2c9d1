"""The little of the query API that the demo asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import aiohttp

from fleetbus.errors import FleetbusError

_PATIENCE = timedelta(seconds=5)
_HTTP_OK = 200


class FleetApiError(FleetbusError):
    """The query API refused a question; the message has its answer."""


@dataclass(frozen=True, slots=True)
class Item:
    """One object of the fleet and the cluster it is in."""

    cluster: str
    obj: dict[str, Any]


class FleetApi:
    """A client of `/fleet/v1`; use it as an async context manager.

    Args:
        url: where the query API is.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        timeout = aiohttp.ClientTimeout(total=_PATIENCE.total_seconds())
        self._session = aiohttp.ClientSession(timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def list(self, resource: str, namespace: str) -> list[Item]:
        """The objects of a resource in one namespace of every cluster.

        Raises:
            FleetApiError: it did not answer 200.
        """
        path = f"/fleet/v1/resources/{resource}"
        async with self._session.get(self._url + path, params={"namespace": namespace}) as answer:
            if answer.status != _HTTP_OK:
                raise FleetApiError(f"GET {path}: {answer.status} {await answer.text()}")
            body = await answer.json()
        return [Item(item["cluster"], item["object"]) for item in body["items"]]
