"""No answer about the past shows what the rights of today do not allow (rules A1, A2, A9)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_distribution, ensure_stream
from fleetbus.intake.last_runs import LastRun, LastRuns
from fleetbus.process.clock import rfc3339
from fleetbus.reconcile import Outcome, Request
from fleetbus.workqueue.redis import RedisQueue
from fleetbus.workqueue.scripts import Ending
from fleetbus_proto.distribution import (
    AffectedObject,
    DistributionEvent,
    encode_distribution_event,
)
from fleetbus_proto.subjects import DistributionVerb, distribution_subject
from support.eventually import eventually
from support.rigs.query_api import QueryApi, served
from support.rigs.secured_api import grant, rule, secured_api
from support.stores.recorded_past import LIMITS, RecordedPast, pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus
    from support.rigs.secured_api import SecuredApi

EU1 = Source()
FLEET = "fleetbus.dev/v1alpha1"
DISTRIBUTED = "fleetbus.dev/multiclusterresources"
TIMELINE = "/fleet/v1/timeline/eu1/pods/prod/web"


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test-rights") as bus_client:
        yield bus_client


@pytest.fixture
async def api(
    redis: Redis, valkey_url: str, nats_url: str, tmp_path: Path, bus: Bus
) -> AsyncGenerator[SecuredApi]:
    """A fleet in which anna may get the pods of prod in eu1, and list them."""
    await ensure_stream(bus, LIMITS)
    await ensure_distribution(bus, LIMITS)
    async with secured_api(redis, valkey_url, tmp_path) as server:
        for cluster in (server.hub, server.members["eu1"]):
            grant(cluster, "anna", rule("get list", "", "pods"), namespace="prod")
        grant(server.hub, "anna", rule("get", "fleetbus.dev", "clusters"))
        shared = {**server.shared, "nats_url": nats_url}
        settings: dict[str, Any] = {"authentication": "token", "authority": "member"}
        settings |= {"allow_cache": timedelta(0), "deny_cache": timedelta(0)}
        async with served(valkey_url, tmp_path, shared=shared, **settings) as url:
            await server.use(url)
            token = server.user("anna")
            await eventually(lambda: _is_connected(server, token))
            yield server


async def _is_connected(api: SecuredApi, token: str) -> bool:
    return (await api.get(token, "/fleet/v1/history")).status_code == 200


def marked(kind: str, api_version: str, cluster: str, namespace: str, name: str) -> bytes:
    """A pod whose annotation claims an owner, as whoever may write the pod can."""
    owner = {
        "apiVersion": api_version,
        "kind": kind,
        "clusterName": cluster,
        "namespace": namespace,
        "name": name,
        "uid": "u",
    }
    text = msgspec.json.encode(owner).decode()
    return pod("web", 10, namespace="prod", annotations={"fleetbus.dev/owner": text})


async def end_run(
    redis: Redis, controller: str, cluster: str, namespace: str, name: str, *resources: str
) -> None:
    run = LastRun(
        outcome=Outcome.RETRIED,
        attempt=1,
        queued=1,
        started=2,
        ended=3,
        worker="w",
        error=f"{controller}: {cluster}/{namespace}/{name}",
        resources=resources,
    )
    rows = LastRuns(redis, controller).rows([(Request(controller, cluster, namespace, name), run)])
    await RedisQueue(redis, controller).done_recorded(Ending(runs=rows))


async def report(bus: Bus, cluster: str, verb: DistributionVerb, *objects: str) -> None:
    event = DistributionEvent(
        namespace="team",
        name="all",
        uid="u",
        generation=1,
        cluster=cluster,
        event=verb,
        message="the message of team/all",
        objects=[AffectedObject(object=affected) for affected in objects],
        time="2026-01-02T03:04:05.000000Z",
    )
    subject = distribution_subject("team", "all", cluster, verb)
    await bus.request(subject, encode_distribution_event(event))


async def entries(api: SecuredApi, token: str) -> set[str]:
    """Errors and messages in the timeline of the pod."""
    answer = await api.get(token, TIMELINE)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["entries"]
    return {row.get("error") or row["message"] for row in rows if row["stage"] != "change"}


async def test_a1_a_forged_owner_shows_nothing_that_the_user_may_not_get(
    api: SecuredApi, redis: Redis, bus: Bus
):
    past = RecordedPast(bus, api.snapshot)
    await end_run(redis, "copier", "eu1", "prod", "web", "core/pods")
    # A ConfigMap of the same namespace and name as the pod is another object.
    await end_run(redis, "keeper", "eu1", "prod", "web", "core/configmaps")
    await end_run(redis, "mapper", "eu1", "prod", "web")
    await end_run(redis, "copier", "us1", "team", "secret", "core/configmaps")
    await end_run(redis, "copier", "eu1", "team", "secret", "core/configmaps")
    await end_run(redis, "distributor", "hub", "team", "all")
    await end_run(redis, "distributor-targets", "eu1", "team", "all")
    # A MultiClusterResource of the same namespace and name as the pod is another object.
    await end_run(redis, "distributor-targets", "eu1", "prod", "web")
    await report(bus, "eu1", DistributionVerb.DELETED)
    token = api.user("anna")
    version = 10
    for owner in (
        ("ConfigMap", "v1", "us1", "team", "secret"),
        ("ConfigMap", "v1", "eu1", "team", "secret"),
        ("MultiClusterResource", FLEET, "hub", "team", "all"),
        ("MultiClusterResource", FLEET, "eu1", "team", "all"),
        ("MultiClusterResource", "example.com/v1", "us1", "team", "all"),
        ("Nothing", "example.com/v1", "hub", "team", "all"),
    ):
        version += 1
        await past.record(EU1.modified("web", version, body=marked(*owner)))
        assert await entries(api, token) == {"copier: eu1/prod/web"}, owner


async def test_a1_whoever_may_get_the_owner_sees_what_was_done_for_it(
    api: SecuredApi, redis: Redis, bus: Bus
):
    past = RecordedPast(bus, api.snapshot)
    await end_run(redis, "copier", "us1", "team", "base", "core/configmaps")
    await end_run(redis, "distributor", "hub", "team", "all")
    await end_run(redis, "distributor-targets", "eu1", "team", "all")
    await report(bus, "eu1", DistributionVerb.DELETED)
    api.members["us1"].create("v1/namespaces", {"metadata": {"name": "team"}})
    grant(api.members["us1"], "berta", rule("get", "", "configmaps"), namespace="team")
    grant(api.members["eu1"], "berta", rule("get", "", "pods"))
    grant(
        api.hub,
        "berta",
        rule("get", "fleetbus.dev", "clusters"),
        rule("get", "", "pods", "configmaps"),
        rule("get", "fleetbus.dev", "multiclusterresources"),
    )
    token = api.user("berta")
    await past.record(
        EU1.modified("web", 11, body=marked("ConfigMap", "v1", "us1", "team", "base"))
    )
    assert await entries(api, token) == {"copier: us1/team/base"}
    mark = marked("MultiClusterResource", FLEET, "hub", "team", "all")
    await past.record(EU1.modified("web", 12, body=mark))
    assert await entries(api, token) == {
        "distributor: hub/team/all",
        "distributor-targets: eu1/team/all",
        "the message of team/all",
    }


async def test_a1_a_members_multiclusterresource_shows_nothing_of_the_hubs_namesake(
    api: SecuredApi, redis: Redis, bus: Bus
):
    """A request of distributor-targets names the cluster, but an object of the hub."""
    fleet = QueryApi(api.url, api.client, api.snapshot)
    await fleet.add_cluster("eu1", DISTRIBUTED)
    past = RecordedPast(bus, api.snapshot)
    source = Source(group="fleetbus.dev", resource="multiclusterresources")
    since = rfc3339(await past.record(source.added("old", 1, namespace="team")))
    await past.record(source.deleted("old", 2, namespace="team"))
    await fleet.add("eu1", DISTRIBUTED, "all", namespace="team")
    await end_run(redis, "distributor", "hub", "team", "all")
    await end_run(redis, "distributor-targets", "eu1", "team", "all", DISTRIBUTED)
    await report(bus, "eu1", DistributionVerb.FAILED, "MultiClusterResource team/all")
    await report(bus, "eu1", DistributionVerb.DELETED, "MultiClusterResource team/old")
    grant(api.members["eu1"], "anna", rule("get list", "fleetbus.dev", "multiclusterresources"))
    token = api.user("anna")
    plural = "multiclusterresources.fleetbus.dev"
    for path in (
        f"/fleet/v1/timeline/eu1/{plural}/team/all",
        f"/fleet/v1/changes?resource={plural}&since={since}",
        f"/fleet/v1/deleted/{plural}",
        f"/fleet/v1/resources/{plural}",
        f"/fleet/v1/objects/eu1/{plural}/team/all",
        f"/fleet/v1/owners/eu1/{plural}/team/all",
        f"/fleet/v1/children/eu1/{plural}/team/all",
        "/fleet/v1/where?name=all",
        "/fleet/v1/held-deletions",
        "/kube/-/apis/fleetbus.dev/v1/multiclusterresources",
        "/kube/eu1/apis/fleetbus.dev/v1/namespaces/team/multiclusterresources/all",
    ):
        answer = await api.get(token, path)
        assert answer.status_code in (200, 403, 404), (path, answer.text)
        assert "distributor" not in answer.text, path
        assert "the message of" not in answer.text, path
        assert '"hub"' not in answer.text, path
    direct = await api.get(token, f"/fleet/v1/timeline/eu1/{plural}/team/all")
    assert direct.status_code == 200, direct.text


async def test_a1_only_the_rights_on_the_hub_show_which_object_of_it_deleted_another(
    api: SecuredApi, bus: Bus
):
    past = RecordedPast(bus, api.snapshot)
    await past.record(EU1.deleted("web", 11, body=pod("web", 10, namespace="prod")))
    await report(bus, "eu1", DistributionVerb.DELETED, "Pod prod/web")
    path = "/fleet/v1/deleted/pods?namespace=prod"
    token = api.user("anna")

    async def cause() -> Any:
        (item,) = (await api.get(token, path)).json()["items"]
        return item["deletedBy"]

    fleet = QueryApi(api.url, api.client, api.snapshot)
    await fleet.add_cluster("eu1", "core/pods", "fleetbus.dev/multiclusterresources")
    # Anna's own cluster decides about objects there, not about those of the hub.
    grant(api.members["eu1"], "anna", rule("list", "fleetbus.dev", "multiclusterresources"))
    assert await cause() is None
    grant(api.hub, "anna", rule("list", "fleetbus.dev", "multiclusterresources"))
    await eventually(cause)


async def test_a1_changes_show_the_distributors_part_to_who_may_list_its_resources(
    api: SecuredApi, bus: Bus
):
    past = RecordedPast(bus, api.snapshot)
    start = await past.record(EU1.added("web", 9))
    await past.record(EU1.modified("web", 10, body=written_by_the_distributor()))
    await report(bus, "eu1", DistributionVerb.CORRECTED, "Pod prod/web")
    token = api.user("anna")

    async def shown() -> tuple[list[Any], list[Any]]:
        answer = await api.get(token, f"/fleet/v1/changes?since={rfc3339(start)}&namespace=prod")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        writers = [group["writtenBy"] for group in found["groups"]]
        return writers, [row["owner"]["name"] for row in found["distribution"]]

    assert await shown() == ([None], [])
    right = rule("list", "fleetbus.dev", "multiclusterresources")
    grant(api.hub, "anna", right, namespace="prod")
    assert await shown() == ([None], [])
    api.hub.create("v1/namespaces", {"metadata": {"name": "team"}}, None)
    grant(api.hub, "anna", right, namespace="team")
    (writer,), reports = await shown()
    assert (writer["namespace"], writer["name"], reports) == ("team", "all", ["all"])


def written_by_the_distributor() -> bytes:
    body = msgspec.json.decode(marked("MultiClusterResource", FLEET, "hub", "team", "all"))
    body["metadata"]["labels"] = {"fleetbus.dev/owner-uid": "u"}
    return msgspec.json.encode(body)
