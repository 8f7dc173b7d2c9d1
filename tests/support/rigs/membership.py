"""A query API with users at a hub that has the types of fleetbus, and clusters that may join it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.rigs.secured_api import AUDIENCE, OWN_TOKEN, SecuredApi, grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    import httpx
    from redis.asyncio import Redis

HUB_AUDIENCE = "https://kubernetes.default.svc.cluster.local"
CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
SECRETS = "v1/secrets"
RECORDS = "v1/configmaps"
NAMESPACE = "fleetbus-clusters"
ON_CLUSTERS = rule("get list create delete", "fleetbus.dev", "clusters")
ON_SECRETS = rule("get create delete", "", "secrets")
ON_RECORDS = rule("create patch delete", "", "configmaps")
ON_HUB = rule("get", "", "namespaces", names=("kube-system",))


@dataclass
class MembershipRig:
    """Requests that join and unjoin."""

    api: SecuredApi

    def joiner(self, name: str, *, without: str = "") -> str:
        """A token for both audiences, of a user with the rights to join but for one of them."""
        rights = {"clusters": ON_CLUSTERS, "hub": ON_HUB}
        inside = {"secrets": ON_SECRETS, "records": ON_RECORDS}
        everywhere = [each for key, each in rights.items() if key != without]
        grant(self.api.hub, name, *everywhere)
        grant(
            self.api.hub,
            name,
            *(each for key, each in inside.items() if key != without),
            namespace=NAMESPACE,
        )
        return self.api.user(name, audiences=(AUDIENCE, HUB_AUDIENCE))

    def kubeconfig(self, name: str, **user: Any) -> str:
        """The kubeconfig of somebody who may read the identity of a member."""
        return kubeconfig(self.api.servers.url(name), **(user or {"token": OWN_TOKEN}))

    async def join(
        self, token: str, name: str, content: str, *, headers: Any = (), **query: Any
    ) -> httpx.Response:
        """Send a kubeconfig."""
        return await self.api.client.post(
            "/v1/join",
            params={"cluster": name, **query},
            files={"kubeconfig": ("config", content)},
            headers={**_bearer(token), **dict(headers)},
        )

    async def unjoin(self, token: str, name: str, *, headers: Any = ()) -> httpx.Response:
        """Let a cluster leave."""
        return await self.api.client.delete(
            "/v1/unjoin", params={"cluster": name}, headers={**_bearer(token), **dict(headers)}
        )

    def written(self) -> list[str]:
        """The writes that the hub was asked for since its types exist, without the reviews."""
        return [
            f"{each.verb} {each.path.rsplit('/', 1)[-1]}"
            for each in self.api.hub.requests
            if each.method != "GET" and not each.path.endswith("reviews")
        ]


def kubeconfig(server: str, **user: Any) -> str:
    """A kubeconfig with one context, as JSON."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
    )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@asynccontextmanager
async def membership_rig(
    redis: Redis, redis_url: str, folder: Path
) -> AsyncGenerator[MembershipRig]:
    """The members eu1 and us1 of `secured_api` have not joined by Cluster objects; not started."""
    async with secured_api(redis, redis_url, folder) as api:
        for definition in crds():
            api.hub.create(CRDS, definition)
        api.hub.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield MembershipRig(api)
