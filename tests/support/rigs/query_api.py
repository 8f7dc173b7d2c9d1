"""A query API on a real socket, over a snapshot that a test fills."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpx
import msgspec

from fleetbus.process.settings import SharedSettings
from fleetbus.snapshot import ClusterRecord, ResourceRecord, ResourceState
from fleetbus_query_api.main import run
from fleetbus_query_api.settings import QueryApiSettings
from support.eventually import eventually
from support.servers.health_probes import read_probe
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import pytest
    from redis.asyncio import Redis

KINDS = {
    "core/pods": "Pod",
    "core/configmaps": "ConfigMap",
    "apps/deployments": "Deployment",
    "batch/jobs": "Job",
    "networking.k8s.io/ingresses": "Ingress",
}


class Ended(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @classmethod
    def read(cls, status: int, capsys: pytest.CaptureFixture[str]) -> Self:
        """Take what was printed."""
        printed = capsys.readouterr()
        return cls(status, printed.out, printed.err)

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines()]


@asynccontextmanager
async def served(
    redis_url: str, folder: Path, *, shared: dict[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[str]:
    """A query API in this process; yields its URL.

    Unless the settings say else, nobody authenticates, and tests may ask as often as they like;
    history is on if there is a NATS.
    """
    port_file = folder / "query-api.port"
    often: dict[str, Any] = {
        "user_requests_per_second": 1e6,
        "authentication": "none",
        "history": "nats_url" in (shared or {}),
        **settings,
    }
    chosen = QueryApiSettings(port_file=port_file, **often)
    reach = SharedSettings(redis_url=redis_url, **(shared or {}))
    running = asyncio.create_task(run(reach, chosen))
    try:
        await eventually(lambda: running.done() or port_file.exists())
        if running.done():
            running.result()
        scheme = "https" if chosen.tls_cert_file else "http"
        yield f"{scheme}://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def ago(seconds: float) -> str:
    """A time so long ago, as records have it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


@dataclass
class QueryApi:
    """The API, a client of it, and the snapshot behind it."""

    url: str
    client: httpx.AsyncClient
    snapshot: Snapshot
    version: int = 100

    async def add_cluster(
        self,
        name: str,
        *resources: str,
        reported_ago: float = 1,
        state: ResourceState = ResourceState.SYNCED,
        **record: Any,
    ) -> None:
        """A cluster whose watcher watches these resources (all that tests know, if none)."""
        reported = {"reported_at": ago(reported_ago), "last_answer": ago(reported_ago)}
        fields: dict[str, Any] = {"connected": True, **reported, **record}
        await self.snapshot.writer.put_cluster(name, ClusterRecord(name=name, **fields))
        for key in resources or KINDS:
            group, _, plural = key.partition("/")
            known = ResourceRecord(
                group=group,
                version="v1",
                plural=plural,
                kind=KINDS.get(key, ""),
                state=state,
                last_received=ago(reported_ago),
            )
            await self.snapshot.writer.put_resource_state(name, known)

    async def add(
        self,
        cluster: str,
        resource: str,
        name: str,
        *,
        namespace: str = "prod",
        uid: str = "",
        created: str = "2026-01-01T00:00:00Z",
        labels: dict[str, str] | None = None,
        **parts: Any,
    ) -> dict[str, Any]:
        """Put an object into the snapshot, as its watcher would; answers its tree."""
        self.version += 1
        tree = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid or f"uid-{cluster}-{name}",
                "resourceVersion": str(self.version),
                "creationTimestamp": created,
                "labels": labels or {},
                "managedFields": [{"manager": "test"}],
            },
            **parts,
        }
        body = msgspec.json.encode(tree)
        await self.add_body(cluster, resource, name, body, namespace=namespace, uid=uid)
        return tree

    async def add_body(
        self, cluster: str, resource: str, name: str, body: bytes | None, **fields: Any
    ) -> None:
        """Put an object of these bytes into the snapshot, or one without."""
        self.version += 1
        group, _, plural = resource.partition("/")
        source = Source(cluster=cluster, group=group, resource=plural)
        await self.snapshot.apply(source.added(name, self.version, body=body, **fields))

    async def remove(
        self, cluster: str, resource: str, name: str, *, namespace: str = "prod"
    ) -> None:
        """Delete an object, as its watcher would report."""
        self.version += 1
        group, _, plural = resource.partition("/")
        source = Source(cluster=cluster, group=group, resource=plural)
        await self.snapshot.apply(source.deleted(name, self.version, namespace=namespace))

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """Ask."""
        return await self.client.get(path, params=query or None)

    async def names(self, resource: str = "pods", **query: Any) -> list[str]:
        """`<cluster>/<name>` of what a list answers."""
        answer = await self.get(f"/fleet/v1/resources/{resource}", **query)
        assert answer.status_code == 200, answer.text
        return [f"{i['cluster']}/{i['object']['metadata']['name']}" for i in answer.json()["items"]]


@asynccontextmanager
async def query_api(redis: Redis, redis_url: str, folder: Path) -> AsyncGenerator[QueryApi]:
    """A query API with an empty fleet."""
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    async with (
        served(redis_url, folder, shared={"health_port_file": folder / "health.port"}) as url,
        http_client(url, timeout=10) as client,
    ):
        # It logs that it has found its store; a command's output must not be mixed with that.
        await eventually(lambda: _is_ready(folder / "health.port"))
        yield QueryApi(url, client, snapshot)


async def _is_ready(port_file: Path) -> bool:
    status, _ = await read_probe(port_file, "/readyz")
    return status == HTTPStatus.OK
