"""The little of the query API that the demo asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import aiohttp

from fleetbus.errors import FleetbusError

_PATIENCE = timedelta(seconds=5)
_HTTP_OK, _HTTP_NOT_FOUND = 200, 404


class FleetApiError(FleetbusError):
    """The query API refused a question, or did not answer; the message has the reason."""


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

    async def clusters(self) -> list[dict[str, Any]]:
        """The clusters of the fleet.

        Raises:
            FleetApiError: it did not answer 200; the same holds for the other questions.
        """
        return list((await self._get("/fleet/v1/clusters"))["items"])

    async def list(self, resource: str, namespace: str, selector: str = "") -> list[Item]:
        """The objects of a resource in one namespace of every cluster."""
        asked = {"namespace": namespace, "labelSelector": selector}
        body = await self._get(f"/fleet/v1/resources/{resource}", asked)
        return [Item(item["cluster"], item["object"]) for item in body["items"]]

    async def has(self, cluster: str, resource: str, namespace: str, name: str) -> bool:
        """Whether the fleet has this object."""
        path = f"/fleet/v1/objects/{cluster}/{resource}/{namespace}/{name}"
        return bool(await self._get(path, or_none=True))

    async def _get(
        self, path: str, asked: dict[str, str] | None = None, *, or_none: bool = False
    ) -> dict[str, Any]:
        given = {name: value for name, value in (asked or {}).items() if value}
        try:
            async with self._session.get(self._url + path, params=given) as answer:
                if or_none and answer.status == _HTTP_NOT_FOUND:
                    return {}
                if answer.status != _HTTP_OK:
                    raise FleetApiError(f"GET {path}: {answer.status} {await answer.text()}")
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise FleetApiError(f"GET {path}: {error or type(error).__name__}") from error
