"""Access data in a Secret are reloaded after a 401 without interrupting a request (rule W19)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from fleetbus import errors
from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.settings import ProviderSettings
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from fleetbus_emulator.apiserver.faults import Delay, DropEvents, Fail, Hang
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.rows import each_row

NAMESPACE = "fleet"
SECRETS, MAPS, CLUSTERS = "v1/secrets", "v1/configmaps", "fleetbus.dev/v1alpha1/clusters"
LABELS = {"fleetbus.dev/kubeconfig": "true", "cluster.x-k8s.io/cluster-name": "zoo"}
FIRST, SECOND = "first-t0ken", "second-t0ken"


@dataclass
class Fleet:
    """A member that lets nobody in without a token, and the hub that has its Secret."""

    hub: Cluster
    zoo: Cluster
    servers: ApiServers
    clusters: Clusters

    @property
    def client(self) -> KubeClient:
        return self.clusters.client("zoo")

    def revoke(self) -> None:
        self.zoo.credentials.revoke_token(FIRST)
        self.zoo.credentials.add_token(SECOND, "somebody")

    def put(self, token: str, **cluster: Any) -> None:
        """Write the Secret; in place of what leads to the member, what is given."""
        self.hub.patch(SECRETS, NAMESPACE, "zoo", {"data": data(self.servers, token, **cluster)})

    def rotate(self) -> None:
        """The old token is refused, and the Secret has another one."""
        self.revoke()
        self.put(SECOND)

    def secrets_read(self) -> int:
        """Return how often the one Secret was asked for."""
        return sum(r.query.get("fieldSelector") == "metadata.name=zoo" for r in self.hub.requests)

    def statuses(self) -> list[int]:
        return [r.status for r in self.zoo.requests if r.path.endswith("/configmaps")]


def data(servers: ApiServers, token: str, **cluster: Any) -> dict[str, str]:
    document: dict[str, Any] = servers.kubeconfig(token)
    document["current-context"] = "zoo"
    if cluster:
        document["clusters"] = [{**e, "cluster": cluster} for e in document["clusters"]]
    return {"kubeconfig": base64.b64encode(json.dumps(document).encode()).decode()}


@asynccontextmanager
async def fleet(kind: str = "secrets") -> AsyncGenerator[Fleet]:
    options = {"namespace": NAMESPACE} if kind == "secrets" else {}
    hub, zoo = Cluster("hub"), Cluster("zoo", tokens={FIRST: "somebody"})
    async with serve([hub, zoo], tls=True) as servers:
        hub.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        body = {"metadata": {"name": "zoo", "labels": LABELS}, "data": data(servers, FIRST)}
        hub.create(SECRETS, body, NAMESPACE)
        for definition in crds() if kind == "cluster" else ():
            hub.create(CRDS, definition)
        if kind == "cluster":
            reference = {"kubeconfigSecretRef": {"namespace": NAMESPACE, "name": "zoo"}}
            hub.create(CLUSTERS, {"metadata": {"name": "zoo"}, "spec": reference})
        settings = ProviderSettings.model_validate({"type": kind, **options})
        config = KubeConfig(json.dumps(servers.kubeconfig()), context="hub")
        clusters = Clusters([build_provider(settings, config)])
        following = asyncio.create_task(clusters.run())
        try:
            await clusters.known()
            yield Fleet(hub, zoo, servers, clusters)
            assert not following.done(), following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("kind", ["secrets", "cluster"])
async def test_w19_a_401_reads_the_secret_at_once_while_its_watch_is_silent(kind: str):
    async with fleet(kind) as f:
        await f.client.list(MAPS)
        f.hub.faults.add(DropEvents(), resource="secrets")
        f.rotate()
        await f.client.list(MAPS)
        assert f.statuses()[-2:] == [401, 200]
        requests = [r for r in f.hub.requests if "fieldSelector" in r.query]
        assert [r.query["labelSelector"] for r in requests] == ["fleetbus.dev/kubeconfig=true"]


async def test_w19_many_that_are_refused_together_ask_the_hub_once():
    async with fleet() as f:
        await f.client.list(MAPS)
        f.hub.faults.add(DropEvents(), resource="secrets")
        f.revoke()
        refused = await asyncio.gather(
            *[f.client.list(MAPS) for _ in range(30)], return_exceptions=True
        )
        assert {type(e) for e in refused} == {errors.Unauthorized}
        assert f.secrets_read() == 1


@pytest.mark.slow
async def test_w19_a_secret_that_is_late_is_asked_for_again_but_no_faster_than_the_back_off():
    async with fleet() as f:
        await f.client.list(MAPS)
        f.hub.faults.add(DropEvents(), resource="secrets")
        f.revoke()
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(errors.Unauthorized):
                await f.client.list(MAPS)
        assert f.secrets_read() <= 1 + (time.monotonic() - began) / 0.8
        f.put(SECOND)

        async def is_let_in() -> bool:
            try:
                await f.client.list(MAPS)
            except errors.Unauthorized:
                return False
            return True

        await eventually(is_let_in, timedelta(seconds=10))


@pytest.mark.parametrize("fault", [Fail(403), Fail(500), Hang()])
async def test_w19_a_hub_that_does_not_tell_changes_nothing_of_what_the_member_said(
    fault: Fail | Hang, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.clusters.access.ANSWERS_WITHIN", timedelta(seconds=0.1))
    async with fleet() as f:
        await f.client.list(MAPS)
        f.hub.faults.add(fault, resource="secrets", verb="list")
        f.revoke()
        with pytest.raises(errors.Unauthorized):
            await f.client.list(MAPS)
        f.put(SECOND)  # its watch tells
        await eventually(lambda: token_of(f.clusters) == SECOND)
        await f.client.list(MAPS)


def token_of(clusters: Clusters) -> str:
    info = clusters.get("zoo")
    assert info is not None
    assert info.config is not None
    return json.loads(info.config.document)["users"][0]["user"]["token"]


async def test_w19_a_rotated_token_cuts_no_request_that_is_on_its_way():
    async with fleet() as f:
        before = f.client
        f.zoo.faults.add(Delay(timedelta(seconds=0.5)), verb="create", count=1)
        creation = asyncio.create_task(before.create(MAPS, {"metadata": named("a")}))
        await eventually(lambda: f.zoo.requests)
        f.zoo.credentials.add_token(SECOND, "somebody")
        f.put(SECOND)
        await eventually(lambda: token_of(f.clusters) == SECOND)
        f.zoo.credentials.revoke_token(FIRST)
        await before.list(MAPS)
        await creation
        assert 401 not in f.statuses()


def named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}


@each_row("server", ["https://169.254.169.254", "http://eu1.example.com"])
@each_row("kind", ["secrets", "cluster"])
async def test_s7_access_data_that_are_read_anew_lead_no_further_than_others(
    kind: str, server: str
):
    async with fleet(kind) as f:
        await f.client.list(MAPS)
        f.hub.faults.add(DropEvents(), resource="secrets")
        f.revoke()
        f.put(SECOND, server=server)
        with pytest.raises(errors.Unauthorized):
            await f.client.list(MAPS)
        assert f.secrets_read() == 1
