"""Watches with selectors: objects that start or stop matching, and cuts of what is shown."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY

from support.eventually import eventually
from support.rigs.watch_client import WatchClient, watching
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "core/pods"
EU1 = "/kube/eu1/api/v1/pods"
FLEET = "/kube/-/api/v1/pods"
WEB = {"app": "web"}
DB = {"app": "db"}
OPEN_WATCHES = "fleetbus_query_api_watches"


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    """Two clusters; eu1 with a web pod and a db pod."""
    await api.add_cluster("eu1", PODS)
    await api.add_cluster("us1", PODS)
    await api.add("eu1", PODS, "web", labels=WEB, status={"phase": "Running"})
    await api.add("eu1", PODS, "db", labels=DB, status={"phase": "Pending"})
    return api


async def version_of(api: QueryApi, path: str = EU1) -> str:
    return (await api.get(path)).json()["metadata"]["resourceVersion"]


async def delete(api: QueryApi, cluster: str, name: str, **fields: Any) -> None:
    api.version += 1
    await api.snapshot.apply(Source(cluster=cluster).deleted(name, api.version, **fields))


SELECTORS: list[tuple[dict[str, str], dict[str, Any], dict[str, Any]]] = [
    ({"labelSelector": "app=web"}, {"labels": WEB}, {"labels": DB}),
    ({"labelSelector": "app notin (db)"}, {"labels": WEB}, {"labels": DB}),
    (
        {"fieldSelector": "status.phase=Running"},
        {"status": {"phase": "Running"}},
        {"status": {"phase": "Pending"}},
    ),
    (
        {"fieldSelector": "status.phase!=Pending", "labelSelector": "app"},
        {"status": {"phase": "Running"}, "labels": WEB},
        {"status": {"phase": "Pending"}, "labels": DB},
    ),
]


@pytest.mark.parametrize(("query", "inside", "outside"), SELECTORS)
async def test_a5_entering_a_selection_is_added_and_leaving_it_deleted(
    fleet: QueryApi, query: dict[str, str], inside: dict[str, Any], outside: dict[str, Any]
):
    since = await version_of(fleet)
    async with watching(fleet.client, EU1, resourceVersion=since, **query) as watch:
        expected_lines: list[str] = []
        steps: list[tuple[str, dict[str, Any], str]] = [
            ("db", inside, "ADDED db"),
            ("db", inside | {"spec": {}}, "MODIFIED db"),
            ("web", outside, "DELETED web"),
            ("web", outside | {"spec": {}}, ""),
            ("new", outside, ""),
            ("db", outside, "DELETED db"),
            ("new", inside, "ADDED new"),
        ]
        for name, state, expected in steps:
            await fleet.add("eu1", PODS, name, **state)
            expected_lines += filter(None, [expected])
            await watch.has(*expected_lines)
        await delete(fleet, "eu1", "db")
        await delete(fleet, "eu1", "new")
        await watch.has(*expected_lines, "DELETED new")
        assert watch.versions == sorted(watch.versions)


async def test_a5_two_watches_with_one_selector_agree_whenever_they_began(fleet: QueryApi):
    query = {"labelSelector": "app=web"}
    since = await version_of(fleet)
    async with watching(fleet.client, EU1, resourceVersion=since, **query) as early:
        await fleet.add("eu1", PODS, "new", labels=WEB)
        await early.has("ADDED new")
        later = await version_of(fleet)
        async with watching(fleet.client, EU1, resourceVersion=later, **query) as late:
            await fleet.add("eu1", PODS, "web", labels=DB)
            await late.has("DELETED web")
            await early.has("ADDED new", "DELETED web")


async def test_a5_what_left_a_selection_before_the_watch_began_is_deleted(fleet: QueryApi):
    """Nobody knows what a list of this version has shown: others may be deleted, too."""
    query = {"labelSelector": "app=web"}
    await fleet.add("eu1", PODS, "other", labels=DB)
    since = await version_of(fleet)
    await fleet.add("eu1", PODS, "web", labels=DB)
    await fleet.add("eu1", PODS, "never", labels=DB)
    await delete(fleet, "eu1", "db")
    await fleet.add("eu1", PODS, "new", labels=WEB)
    await fleet.add("eu1", PODS, "other", labels=WEB)
    async with watching(fleet.client, EU1, resourceVersion=since, **query) as watch:
        await watch.has("DELETED web", "DELETED never", "DELETED db", "ADDED new", "ADDED other")


async def test_a5_one_object_by_its_name(fleet: QueryApi):
    query = {"fieldSelector": "metadata.name=web"}
    async with watching(fleet.client, FLEET, resourceVersion="0", **query) as watch:
        await watch.has("ADDED web")
        await fleet.add("eu1", PODS, "db", labels=WEB)
        await fleet.add("us1", PODS, "web", labels=DB)
        await watch.has("ADDED web", "ADDED web")


def apply_to(objects: dict[str, str], watch: WatchClient) -> dict[str, str]:
    """The cache of a client that has listed, and takes the events."""
    objects = dict(objects)
    for event in watch.events:
        metadata = event["object"]["metadata"]
        if event["type"] == "DELETED":
            objects.pop(metadata["name"], None)
        elif event["type"] in ("ADDED", "MODIFIED"):
            objects[metadata["name"]] = metadata["labels"]["at"]
    return objects


async def listed(api: QueryApi, **query: str) -> tuple[dict[str, str], str]:
    answer = (await api.get(EU1, **query)).json()
    items = {i["metadata"]["name"]: i["metadata"]["labels"]["at"] for i in answer["items"]}
    return items, answer["metadata"]["resourceVersion"]


@pytest.mark.slow
@pytest.mark.parametrize("query", [{}, {"labelSelector": "app=web"}, {"fieldSelector": "x=1"}])
async def test_a5_a_list_and_its_watch_are_the_state_at_any_time(
    fleet: QueryApi, query: dict[str, str]
):
    """Random changes while clients list and watch; each cache equals the snapshot at the end."""
    dice = random.Random(str(query))
    await delete(fleet, "eu1", "web")
    await delete(fleet, "eu1", "db")

    async def write(rounds: int) -> None:
        for number in range(rounds):
            name = f"w{dice.randrange(12)}"
            if dice.random() < 0.3:
                await delete(fleet, "eu1", name, uid=f"{dice.random()}")
            else:
                labels = {"app": dice.choice(["web", "db"]), "at": str(number)}
                uid = str(dice.random())
                await fleet.add("eu1", PODS, name, labels=labels, x=dice.randrange(2), uid=uid)

    async def follow(delay: float) -> None:
        await asyncio.sleep(delay)  # each begins at another time
        objects, since = await listed(fleet, **query)
        await asyncio.sleep(delay / 3)  # the list gets older
        async with watching(fleet.client, EU1, resourceVersion=since, **query) as watch:
            expected = await written
            await eventually(
                lambda: set(apply_to(objects, watch).items()) ^ set(expected.items()) == set()
            )
            assert watch.versions == sorted(watch.versions)

    written: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    followers = [asyncio.create_task(follow(delay / 40)) for delay in range(6)]
    await write(200)
    written.set_result((await listed(fleet, **query))[0])
    await asyncio.gather(*followers)


async def test_a5_what_enters_a_selection_unseen_leaves_it_as_deleted_for_who_comes_back(
    fleet: QueryApi,
):
    """The watch of another cluster with the same selector goes on meanwhile."""
    since, query = await version_of(fleet), {"labelSelector": "app=web"}
    us1 = "/kube/us1/api/v1/pods"
    async with watching(fleet.client, us1, resourceVersion=since, **query) as other:
        async with watching(fleet.client, EU1, resourceVersion=since, **query) as watch:
            await fleet.add("eu1", PODS, "web", labels=WEB, spec={})
            await eventually(lambda: watch.events)
        await eventually(lambda: REGISTRY.get_sample_value(OPEN_WATCHES) == 1)
        await fleet.add("eu1", PODS, "db", labels=WEB)
        await fleet.add("us1", PODS, "passes-by", labels=WEB)
        await other.has("ADDED passes-by")
        again = await version_of(fleet)
        async with watching(fleet.client, EU1, resourceVersion=again, **query) as watch:
            await fleet.add("eu1", PODS, "db", labels=DB)
            await watch.has("DELETED db")
