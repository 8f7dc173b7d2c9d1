"""Pages of large fleets and of sparse selectors: whole, in order, read in few steps (P16)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot import Entry, ListQuery
from fleetbus.snapshot.write import MAX_BATCH
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

MANY = 1_100
"""More than a label set that is read as a whole."""


_LARGE = {"annotations": {"note": "x" * 1_000}}


async def list_all(snapshot: Snapshot, **query: Any) -> list[tuple[str, str, str]]:
    places: list[tuple[str, str, str]] = []
    async for page in snapshot.reader.pages(ListQuery(resource=PODS, **query)):
        assert len(page.entries) <= query["limit"]
        places += [(entry.cluster, entry.namespace, entry.name) for entry in page.entries]
    return places


async def commands(redis: Redis) -> int:
    """Return how often the server was asked for anything, apart from what scripts asked for."""
    stats: Any = await redis.info("commandstats")
    names = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_mget", "cmdstat_exec")
    return sum(stats[name]["calls"] for name in names if name in stats)


@pytest.fixture
async def large(redis: Redis) -> Snapshot:
    """Two clusters with as many objects in three namespaces; every third one has a label."""
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    for cluster in ("eu1", "us1"):
        events = [_event(Source(cluster=cluster), number) for number in range(MANY)]
        for at in range(0, MANY, MAX_BATCH):
            await snapshot.apply(*events[at : at + MAX_BATCH])
    return snapshot


def _event(source: Source, number: int) -> Any:
    labels = {"all": "yes"} | ({"third": "yes"} if number % 3 == 0 else {})
    metadata = {"labels": labels, "ownerReferences": [{"uid": "owner"}]}
    return source.added(f"w{number:04}", number + 1, namespace=f"n{number % 4}", metadata=metadata)


def _expected(step: int = 1, namespace: str = "") -> list[tuple[str, str, str]]:
    places = sorted((f"n{n % 4}", f"w{n:04}") for n in range(0, MANY, step))
    return [
        (cluster, *place)
        for cluster in ("eu1", "us1")
        for place in places
        if namespace in {"", place[0]}
    ]


@pytest.mark.parametrize("limit", [333, 5_000])
@pytest.mark.parametrize(
    ("selector", "step"), [("all=yes", 1), ("all=yes,third=yes", 3), ("all=yes,third", 3)]
)
async def test_objects_of_large_label_sets_are_listed_once_and_in_order(
    large: Snapshot, selector: str, step: int, limit: int
):
    labels, clusters = LabelSelector.parse(selector), ["us1", "eu1", "mars"]
    places = await list_all(large, clusters=clusters, labels=labels, limit=limit)
    assert places == _expected(step)
    places = await list_all(large, clusters=clusters, labels=labels, namespace="n2", limit=limit)
    assert places == _expected(step, "n2")


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_a_name_is_found_in_every_namespace_that_has_it(large: Snapshot, limit: int):
    events = [
        Source(cluster=cluster).added("same", 9_000, namespace=namespace, metadata=metadata)
        for cluster in ("eu1", "us1")
        for namespace, metadata in (("", {}), ("n1", {"labels": {"all": "yes"}}), ("n3", {}))
    ]
    await large.apply(*events)
    query = {"clusters": ["eu1", "us1"], "name": "same", "limit": limit}
    places = [(name, space) for name in ("eu1", "us1") for space in ("", "n1", "n3")]
    assert [place[:2] for place in await list_all(large, **query)] == places
    labels = LabelSelector.parse("all=yes")
    found = await list_all(large, **query, labels=labels)
    assert found == [("eu1", "n1", "same"), ("us1", "n1", "same")]
    assert await list_all(large, **query, labels=LabelSelector.parse("all!=yes")) == [
        (name, space, "same") for name, space in places if space != "n1"
    ]


async def test_a2_a_made_up_token_does_not_lead_out_of_the_namespace(
    large: Snapshot, subtests: pytest.Subtests
):
    queries: list[dict[str, Any]] = [
        {},
        {"labels": LabelSelector.parse("third=yes")},
        {"labels": LabelSelector.parse("all=yes")},
        {"labels": LabelSelector.parse("third")},
        {"name": "w0002"},
        {"owner": "owner"},
    ]
    for query in queries:
        with subtests.test(query=query):
            list_query = ListQuery(
                clusters=["eu1"], resource=PODS, namespace="n2", limit=5_000, **query
            )
            page = await large.reader.list(list_query)
            assert {item.namespace for item in page.entries} <= {"n2"}
            for namespace, name in (("n1", "w"), ("", ""), ("\0", "\0"), ("n2", "")):
                entry = Entry("eu1", namespace, name, "", "", b"", 0, "", 0)
                forged = replace(list_query, continue_token=page.token_after(entry))
                assert (await large.reader.list(forged)).entries == page.entries


async def test_a8_a_page_ends_before_its_bodies_are_too_large(snapshot: Snapshot):
    for name in ("eu1", "us1"):
        source = Source(cluster=name)
        await snapshot.apply(*(source.added(f"w{n}", n + 1, metadata=_LARGE) for n in range(4)))
    query = ListQuery(clusters=["eu1", "us1"], resource=PODS, limit=100, max_bytes=3_500)
    pages = [page async for page in snapshot.reader.pages(query)]
    assert [len(page.entries) for page in pages] == [3, 3, 2]
    assert [page.remaining for page in pages] == [5, 2, 0]
    tiny = replace(query, max_bytes=10)
    for labels in (None, LabelSelector.parse("app!=web")):
        pages = [page async for page in snapshot.reader.pages(replace(tiny, labels=labels))]
        assert [len(page.entries) for page in pages] == [1] * 8


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    return snapshot


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"labels": LabelSelector.parse("app=web")},
        {"labels": LabelSelector.parse("app")},
        {"namespace": "prod", "name": "w1"},
        {"name": "w1"},
        {"count": False},
    ],
    ids=["all", "label", "guards", "place", "name", "uncounted"],
)
async def test_a_page_takes_three_steps_however_many_clusters_there_are(
    redis: Redis, query: dict[str, Any]
):
    snapshot, clusters = Snapshot(redis), [f"c{number:02}" for number in range(40)]
    await snapshot.set_up(*clusters)
    metadata = {"labels": {"app": "web"}}
    await snapshot.apply(
        *(
            Source(cluster=cluster).added(f"w{n}", n + 1, metadata=metadata)
            for cluster in clusters
            for n in range(3)
        )
    )
    list_query = ListQuery(clusters=clusters, resource=PODS, limit=100, **query)
    await snapshot.reader.list(list_query)  # loads the script
    await redis.config_resetstat()
    page = await snapshot.reader.list(list_query)
    assert len(page.entries) == (40 if "name" in query else 100)
    assert await commands(redis) == 3, "the version, the keys and the objects"
