"""`/fleet/v1/queues` and `/fleet/v1/held-deletions`: as `fleetbus queue` and `fleetbus fuse`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.deletions.budget import Deletion, DeletionBudget, OwnerLimits
from fleetbus.reconcile import Request
from fleetbus.workqueue import Add, Priority
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_query_api.operations.models import HeldDeletionsModel, QueueListModel
from support.rigs.secured_api import grant, rule, secured_api
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.query_api import QueryApi
    from support.rigs.secured_api import SecuredApi

QUEUES = "/fleet/v1/queues"
HELD = "/fleet/v1/held-deletions"
MCR = "fleetbus.dev/multiclusterresources"


@pytest.fixture
async def copier(redis: Redis) -> AsyncGenerator[RedisQueue]:
    queue = RedisQueue(redis, "copier")
    yield queue
    await queue.aclose()


def item(name: str, cluster: str = "eu1") -> Request:
    return Request("copier", cluster, "prod", name)


async def read(api: QueryApi, path: str) -> dict[str, Any]:
    answer = await api.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_queues_show_what_waits_and_what_runs(api: QueryApi, copier: RedisQueue):
    assert (await read(api, QUEUES))["items"] == []
    await copier.add([Add(item("a"))])
    (lease,) = await copier.take(1)
    await copier.add([Add(item("b")), Add(item("c", "us1"), Priority.INITIAL)])
    await copier.add_after(item("later"), timedelta(hours=1))

    body = await read(api, QUEUES)

    QueueListModel.model_validate(body)
    datetime.fromisoformat(body["askedAt"])
    (queue,) = body["items"]
    assert queue["controller"] == "copier"
    assert [queue[key] for key in ("ready", "delayed", "processing", "quarantined")] == [2, 1, 1, 0]
    depth = {entry["cluster"]: (entry["live"], entry["initial"]) for entry in queue["clusters"]}
    assert depth == {"eu1": (1, 0), "us1": (0, 1)}
    (running,) = queue["processingItems"]
    assert (running["cluster"], running["namespace"], running["name"]) == ("eu1", "prod", "a")
    assert running["leaseSeconds"] > 0
    await copier.done([lease])


async def hub_with(api: QueryApi, name: str, status: dict[str, Any]) -> None:
    await api.add("hub", MCR, name, namespace="shop", status=status)


async def test_d8_held_deletions_are_those_of_the_hub(api: QueryApi, redis: Redis):
    """Rule D8: what is held, why, and how much of the fleet's budget is used."""
    await api.add_cluster("hub", MCR, hub=True)
    await api.add_cluster("eu1", MCR)
    hold = {"reason": "ManyClusters", "planHash": "abc", "objects": 7, "clusters": ["eu1", "us1"]}
    conditions = [{"type": "DeletionHeld", "status": "True", "message": "7 objects on 2 clusters"}]
    await hub_with(api, "web", {"held": hold, "conditions": conditions})
    await hub_with(api, "db", {})
    await api.add("eu1", MCR, "foreign", status={"held": hold})
    limits = OwnerLimits(uid="u", clusters=9, objects=99, percent=99, on_record=99)
    deletions = [Deletion(cluster="eu1", object=str(n)) for n in range(3)]
    await DeletionBudget(redis).spend(limits, deletions, allowed=50)

    body = await read(api, HELD)

    HeldDeletionsModel.model_validate(body)
    assert body["budget"] == {"used": 3, "allowed": 50, "windowSeconds": 600}
    (entry,) = body["held"]
    assert (entry["namespace"], entry["name"], entry["objects"]) == ("shop", "web", 7)
    assert entry["message"] == "7 objects on 2 clusters"
    assert list(body["freshness"]) == ["hub"]


@each_row(
    "body",
    [
        b'{"metadata":{},"status":{"held":{"objects":"x","clusters":5},"conditions":[5]}}',
        b'{"metadata":{"name":"b"},"status":5}',
        b'{"metadata":{"name":"b"},"status":{"held":5,"conditions":null,"intent":[1]}}',
        b'{"metadata":{"annotations":null},"status":{"held":{"objects":1e999}}}',
        b"[1]",
    ],
)
async def test_d8_a_malformed_multiclusterresource_hides_no_other(api: QueryApi, body: bytes):
    await api.add_cluster("hub", MCR, hub=True)
    await api.add_body("hub", MCR, "broken", body)
    await hub_with(api, "web", {"held": {"objects": 7, "clusters": ["eu1"]}})
    holds = (await read(api, HELD))["held"]
    assert ("shop", "web", 7) in [
        (entry["namespace"], entry["name"], entry["objects"]) for entry in holds
    ]


async def test_the_keys_of_the_store_are_not_walked_for_each_question(
    api: QueryApi, copier: RedisQueue, redis: Redis
):
    await copier.add([Add(item("a"))])
    await read(api, QUEUES)
    before = (await redis.info("commandstats"))["cmdstat_scan"]["calls"]
    for _ in range(5):
        assert len((await read(api, QUEUES))["items"]) == 1
    assert (await redis.info("commandstats"))["cmdstat_scan"]["calls"] == before


async def test_a4_a_hub_that_does_not_answer_is_named(api: QueryApi):
    """Rule A4: then deletions may be held that this does not show."""
    await api.add_cluster("hub", MCR, hub=True, reported_ago=500)
    assert (await read(api, HELD))["incomplete"] == ["hub"]


async def test_a_hub_whose_multiclusterresources_are_not_watched_is_named(api: QueryApi):
    await api.add_cluster("hub", "core/pods", hub=True)
    assert (await read(api, HELD))["incomplete"] == ["hub"]


async def test_a_fleet_without_its_hub_says_who_knows(api: QueryApi):
    await api.add_cluster("eu1", "core/pods")
    answer = await api.get(HELD)
    assert answer.status_code == 404
    assert "`fleetbus fuse` asks the hub" in answer.json()["detail"]


@pytest.mark.parametrize("path", [QUEUES, HELD])
async def test_parameters_are_refused(api: QueryApi, path: str):
    assert (await api.get(path, cluster="eu1")).status_code == 400


@pytest.fixture
async def secured(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield server


@pytest.mark.parametrize("authority", ["hub", "member"])
async def test_a1_each_takes_its_own_right_on_the_hub(secured: SecuredApi, authority: str):
    """Rule A1: rights on the fleet are none on the hub, nor is a right in one namespace."""
    await secured.start(authority=authority)
    everything = rule("get list watch", "fleetbus.dev", "clusters", "clusters/pods")
    resource_of = {QUEUES: "queues", HELD: "multiclusterresources"}
    for path, resource in resource_of.items():
        user = f"user-of-{resource}"
        token = secured.user(user)
        grant(secured.hub, user, everything)
        grant(secured.hub, user, rule("list", "fleetbus.dev", resource), namespace="prod")
        refused = await secured.get(token, path)
        assert refused.status_code == 403
        assert f"list {resource}.fleetbus.dev" in refused.json()["detail"]

        granted = f"other-of-{resource}"
        token = secured.user(granted)
        grant(secured.hub, granted, rule("list", "fleetbus.dev", resource))
        for other in resource_of:
            status = (await secured.get(token, other)).status_code
            assert (status == 403) is (other != path), (path, other)
