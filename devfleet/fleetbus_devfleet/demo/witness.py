"""Observers of the demo's claims: the API servers, the query API, and the event subjects.

The API servers are asked directly, so that fleetbus is never its own witness.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import nats

from fleetbus.errors import FleetbusError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus_proto.subjects import EventSubject, events_filter, parse_event_subject

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nats.aio.msg import Msg

    from fleetbus_devfleet.stack.stack import Stack

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
        query = {"namespace": namespace, "labelSelector": selector}
        body = await self._get(f"/fleet/v1/resources/{resource}", query)
        return [Item(item["cluster"], item["object"]) for item in body["items"]]

    async def has(self, cluster: str, resource: str, namespace: str, name: str) -> bool:
        """Whether the fleet has this object."""
        path = f"/fleet/v1/objects/{cluster}/{resource}/{namespace}/{name}"
        return bool(await self._get(path, or_none=True))

    async def timeline(
        self, cluster: str, resource: str, namespace: str, name: str
    ) -> list[dict[str, Any]]:
        """The entries of the timeline of one object, the latest last."""
        path = f"/fleet/v1/timeline/{cluster}/{resource}/{namespace}/{name}"
        return list((await self._get(path))["entries"])

    async def _get(
        self, path: str, query: dict[str, str] | None = None, *, or_none: bool = False
    ) -> dict[str, Any]:
        parameters = {name: value for name, value in (query or {}).items() if value}
        try:
            async with self._session.get(self._url + path, params=parameters) as answer:
                if or_none and answer.status == _HTTP_NOT_FOUND:
                    return {}
                if answer.status != _HTTP_OK:
                    raise FleetApiError(f"GET {path}: {answer.status} {await answer.text()}")
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise FleetApiError(f"GET {path}: {error or type(error).__name__}") from error


Identity = tuple[str, str, str]
"""Cluster, name and UID of an object."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as any NATS client sees it: only the subject was read.

    Attributes:
        at: when it arrived, on the clock of `time.perf_counter`.
    """

    at: float
    subject: str
    parts: EventSubject


class Witness:
    """Direct access to everything that can be asked; use it as an async context manager.

    Args:
        stack: the running stack.
        namespace: the namespace whose objects are compared and whose events are collected.
    """

    def __init__(self, stack: Stack, *, namespace: str) -> None:
        self._stack = stack
        self._namespace = namespace
        # What a person would give to the `nats` tool to see the same.
        self.subscription = events_filter(namespace=namespace)
        self._exits = contextlib.AsyncExitStack()
        self._clients: dict[str, KubeClient] = {}
        self.events: list[Seen] = []

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as exits:
            for name in self._stack.plan.names:
                client = _client(self._stack.kubeconfig, name)
                self._clients[name] = await exits.enter_async_context(client)
            self.api = await exits.enter_async_context(FleetApi(self._stack.api_url))
            subscriber = await nats.connect(self._stack.nats_url)
            exits.push_async_callback(subscriber.close)
            await subscriber.subscribe(self.subscription, cb=self._collect)
            await subscriber.flush()
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def cluster(self, name: str) -> KubeClient:
        """The API server of a cluster."""
        return self._clients[name]

    async def truth(
        self, resource: str, clusters: Sequence[str], selector: str = ""
    ) -> set[Identity]:
        """The objects of the API servers."""
        identities: set[Identity] = set()
        for name in clusters:
            client = self._clients[name]
            objects = await client.list(resource, self._namespace, label_selector=selector)
            for obj in objects:
                identities.add((name, obj["metadata"]["name"], obj["metadata"]["uid"]))
        return identities

    async def answer(
        self, resource: str, clusters: Sequence[str], selector: str = ""
    ) -> set[Identity]:
        """The answer of the query API."""
        return {
            (item.cluster, item.obj["metadata"]["name"], item.obj["metadata"]["uid"])
            for item in await self.api.list(resource, self._namespace, selector)
            if item.cluster in clusters
        }

    async def difference(self, resource: str, clusters: Sequence[str], selector: str = "") -> str:
        """Describe how the query API's answer differs from the API servers; empty if equal."""
        truth = await self.truth(resource, clusters, selector)
        answer = await self.answer(resource, clusters, selector)
        missing, extra = len(truth - answer), len(answer - truth)
        return f"{missing} not known yet, {extra} long gone" if missing or extra else ""

    def seen(self, verb: str, resource: str, cluster: str) -> set[str]:
        """The names in the events of one kind that were collected so far."""
        return {
            event.parts.name
            for event in self.events
            if (event.parts.verb, event.parts.resource, event.parts.cluster)
            == (verb, resource, cluster)
        }

    async def _collect(self, message: Msg) -> None:
        parts = parse_event_subject(message.subject)
        self.events.append(Seen(time.perf_counter(), message.subject, parts))


def _client(kubeconfig: Path, context: str) -> KubeClient:
    return KubeClient(read_kube_config(kubeconfig, context), user_agent="fleetbus-demo")
