"""A query API that authenticates at an emulated hub with RBAC, and what its users may read."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import httpx

from fleetbus_emulator.apiserver import Cluster, serve
from support.rigs.query_api import QueryApi, served
from support.servers.plain_http import http_client
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from fleetbus_emulator.apiserver import ApiServers

AUDIENCE = "fleetbus"
OWN_TOKEN = "token-of-the-query-api"
RBAC = "rbac.authorization.k8s.io/v1"
PODS = "core/pods"


def rule(verbs: str, group: str, *resources: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
    rule_fields = {"verbs": verbs.split(), "apiGroups": [group], "resources": list(resources)}
    return rule_fields | ({"resourceNames": list(names)} if names else {})


def secured_cluster(name: str) -> Cluster:
    """A cluster with RBAC, in which the query API may create reviews and nothing else."""
    cluster = Cluster(name, authorize="rbac", tokens={OWN_TOKEN: "query-api"})
    grant(
        cluster,
        "query-api",
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        rule("get", "", "namespaces", names=("kube-system",)),
    )
    for namespace in ("prod", "test"):
        cluster.create("v1/namespaces", {"metadata": {"name": namespace}})
    return cluster


def grant(cluster: Cluster, user: str, *rules: dict[str, Any], namespace: str = "") -> None:
    """Grant rules to a user, everywhere or in a namespace; several grants add up."""
    kind = "Role" if namespace else "ClusterRole"
    role = {"metadata": {"generateName": f"{user}-"}, "rules": list(rules)}
    created = cluster.create(f"{RBAC}/{kind.lower()}s", role, namespace or None)
    binding = {
        "metadata": {"generateName": f"{user}-"},
        "roleRef": {"kind": kind, "name": created["metadata"]["name"]},
        "subjects": [{"kind": "User", "name": user}],
    }
    cluster.create(f"{RBAC}/{kind.lower()}bindings", binding, namespace or None)


@dataclass
class SecuredApi:
    """The API, its hub and members, and the snapshot behind it."""

    folder: Path
    redis_url: str
    hub: Cluster
    members: dict[str, Cluster]
    servers: ApiServers
    snapshot: Snapshot
    exits: AsyncExitStack = field(repr=False)
    client: httpx.AsyncClient = field(init=False)
    url: str = ""
    begin: str = ""
    """A time before the events that a test has published, if it has."""

    @property
    def shared(self) -> dict[str, Any]:
        """The settings of where the hub and the members are."""
        return {
            "hub_kubeconfig": self.folder / "kubeconfig",
            "hub_context": self.hub.name,
            "hub_cluster": self.hub.name,
            "providers": [{"type": "kubeconfig", "paths": [str(self.folder / "kubeconfig")]}],
        }

    async def start(self, **settings: Any) -> Self:
        """Start the API in this process."""
        options = {"authentication": "token", **settings}
        api = served(self.redis_url, self.folder, shared=self.shared, **options)
        return await self.use(await self.exits.enter_async_context(api))

    async def use(self, url: str) -> Self:
        """Send requests to an API."""
        self.url = url
        self.client = await self.exits.enter_async_context(http_client(url, timeout=20))
        return self

    def user(self, name: str, **options: Any) -> str:
        """A token of a user."""
        token = f"token-of-{name}"
        chosen: dict[str, Any] = {"audiences": (AUDIENCE,), **options}
        self.hub.credentials.add_token(token, name, **chosen)
        return token

    def expired(self, name: str) -> str:
        """A token that is no longer valid."""
        return self.user(name, ends=datetime.now(UTC) - timedelta(minutes=1))

    async def get(self, token: str, path: str, **query: Any) -> httpx.Response:
        """Send a request with a token, or with none if it is empty."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.client.get(path, params=query or None, headers=headers)

    async def names(self, token: str, resource: str = "pods", **query: Any) -> list[str]:
        """`<cluster>/<name>` of the answer to a list."""
        answer = await self.get(token, f"/fleet/v1/resources/{resource}", **query)
        assert answer.status_code == 200, answer.text
        return [f"{i['cluster']}/{i['object']['metadata']['name']}" for i in answer.json()["items"]]

    def reviews(self, kind: str, at: str = "hub") -> int:
        """Return how many reviews of a kind an API server has answered."""
        cluster = self.hub if at == "hub" else self.members[at]
        return sum(each.path.endswith(f"/{kind}") for each in cluster.requests)


@asynccontextmanager
async def secured_api(redis: Redis, redis_url: str, folder: Path) -> AsyncGenerator[SecuredApi]:
    """A hub and the members eu1 and us1 with pods in prod and test; the API is not started."""
    hub = secured_cluster("hub")
    members = {name: secured_cluster(name) for name in ("eu1", "us1")}
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    filling = QueryApi("", httpx.AsyncClient(), snapshot)
    for name in members:
        await filling.add_cluster(name, PODS, "core/configmaps")
        for namespace in ("prod", "test"):
            await filling.add(name, PODS, f"{namespace}-1", namespace=namespace)
            await filling.add(name, "core/configmaps", f"{namespace}-c", namespace=namespace)
    await filling.client.aclose()
    async with AsyncExitStack() as exits:
        servers = await exits.enter_async_context(serve([hub, *members.values()]))
        servers.write_kubeconfig(folder / "kubeconfig", OWN_TOKEN)
        yield SecuredApi(folder, redis_url, hub, members, servers, snapshot, exits)
