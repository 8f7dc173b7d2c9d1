"""Answers about the past: lists as of a time, deletions, timelines, changes (rule A9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.bus.jetstream import ensure_distribution
from fleetbus.process.clock import rfc3339
from fleetbus_proto.distribution import (
    AffectedObject,
    DistributionEvent,
    encode_distribution_event,
)
from fleetbus_proto.subjects import DistributionVerb, distribution_subject
from support.eventually import eventually
from support.rigs.query_api import served
from support.servers.plain_http import http_client
from support.stores.recorded_past import LIMITS, pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from pathlib import Path

    from support.rigs.past_api import PastApi

EU1, US1 = Source(), Source(cluster="us1")
DEPLOYMENTS = {
    name: Source(cluster=name, group="apps", resource="deployments") for name in ("eu1", "us1")
}


@pytest.fixture(autouse=True)
async def clusters(past_api: PastApi) -> None:
    for name in ("eu1", "us1"):
        await past_api.add_cluster(name, "core/pods", "apps/deployments")


def deployment(name: str, version: int, image: str, **status: object) -> bytes:
    tree = {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "resourceVersion": str(version),
            "uid": name,
        },
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
        "status": status,
    }
    return msgspec.json.encode(tree)


def deleted_by(name: str, cluster: str, affected: AffectedObject) -> tuple[str, bytes]:
    """The subject and the body of a distributor's report."""
    event = DistributionEvent(
        namespace="shop",
        name=name,
        uid="u",
        generation=1,
        cluster=cluster,
        event=DistributionVerb.DELETED,
        objects=[affected],
        time="2026-01-02T03:04:05.000000Z",
    )
    subject = distribution_subject("shop", name, cluster, DistributionVerb.DELETED)
    return subject, encode_distribution_event(event)


async def as_of(api: PastApi, at: datetime, **query: Any) -> list[str]:
    return await api.names(asOf=rfc3339(at), **query)


async def test_a9_a_list_as_of_a_time_has_what_was_there(past_api: PastApi):
    first = await past_api.past.record(
        EU1.added("old", 5, body=pod("old", 5)),
        EU1.added("web", 10, body=pod("web", 10, labels={"app": "web"})),
        US1.added("web", 7, body=pod("web", 7)),
    )
    second = await past_api.past.record(
        EU1.deleted("web", 11),
        US1.modified("web", 8, body=pod("web", 8, "b", labels={"app": "web"})),
    )
    await past_api.past.record(EU1.added("new", 12, body=pod("new", 12)), US1.deleted("web", 9))
    assert await as_of(past_api, first) == ["eu1/old", "eu1/web", "us1/web"]
    assert await as_of(past_api, second) == ["eu1/old", "us1/web"]
    assert await past_api.names() == ["eu1/new", "eu1/old"]
    assert await as_of(past_api, first, labelSelector="app=web") == ["eu1/web"]
    assert await as_of(past_api, second, labelSelector="app=web") == ["us1/web"]
    image = "spec.containers[*].image=b"
    assert await as_of(past_api, first, fieldSelector=image) == []
    assert await as_of(past_api, second, fieldSelector=image, cluster="us1") == ["us1/web"]
    answer = (await past_api.get("/fleet/v1/resources/pods", asOf=rfc3339(first))).json()
    assert answer["asOf"] == rfc3339(first)
    assert answer["undetermined"] == []
    assert answer["window"]["from"] < answer["asOf"] < answer["window"]["to"]


async def test_w6_a_list_as_of_a_time_has_what_left_the_selection_since(past_api: PastApi):
    chosen = Source(scope="chosen")
    at = await past_api.past.record(chosen.added("web", 10, body=pod("web", 10)))
    start = rfc3339(at)
    await past_api.past.record(chosen.deleted("web", 11, body=pod("web", 11), left_selection=True))
    assert await past_api.names() == []
    assert await as_of(past_api, at) == ["eu1/web"]
    assert (await past_api.get("/fleet/v1/deleted/pods", since=start)).json()["items"] == []
    answer = (await past_api.get("/fleet/v1/changes", since=start)).json()
    assert answer["groups"] == [], "it may still exist as it was"


async def test_a9_all_pages_are_of_the_same_time(past_api: PastApi):
    names = [f"pod-{number}" for number in range(9)]
    at = await past_api.past.record(
        *(EU1.added(name, 10 + n, body=pod(name, 10 + n)) for n, name in enumerate(names))
    )
    await past_api.past.record(
        *(EU1.deleted(name, 30) for name in names[::2]), EU1.added("pod-x", 40)
    )
    listed: list[str] = []
    token = ""
    while True:
        query = {"limit": 2, **({"continue": token} if token else {"asOf": rfc3339(at)})}
        query |= {"asOf": "0s"} if token else {}
        answer = (await past_api.get("/fleet/v1/resources/pods", **query)).json()
        assert answer["asOf"] == rfc3339(at)
        listed += [item["object"]["metadata"]["name"] for item in answer["items"]]
        assert len(answer["items"]) <= 2
        token = answer["continue"]
        if not token:
            break
    assert listed == names
    other = await past_api.get("/fleet/v1/resources/pods", asOf="0s", limit=1)
    broken = await past_api.get(
        "/fleet/v1/resources/pods",
        **{"asOf": "0s", "namespace": "x", "continue": other.json()["continue"] or "x"},
    )
    assert broken.status_code == 400


async def test_a9_a_table_as_of_a_time(past_api: PastApi):
    at = await past_api.past.record(EU1.added("web", 10, body=pod("web", 10)))
    await past_api.past.record(EU1.deleted("web", 11))
    answer = await past_api.get("/fleet/v1/resources/pods", view="table", asOf=rfc3339(at))
    head, row, end = map(msgspec.json.decode, answer.text.splitlines())
    assert head["asOf"] == rfc3339(at)
    assert row[:3] == ["eu1", "prod", "web"]
    assert end["end"]["rows"] == 1


@pytest.mark.slow
async def test_a9_the_ages_of_a_table_are_those_of_its_time(past_api: PastApi):
    created = {"name": "web", "namespace": "prod", "uid": "web", "resourceVersion": "10"}
    created["creationTimestamp"] = rfc3339(datetime.now(UTC) - timedelta(minutes=1))
    body = msgspec.json.encode({"metadata": created})
    at = await past_api.past.record(EU1.added("web", 10, body=body))

    async def age(**query: str) -> str:
        answer = await past_api.get("/fleet/v1/resources/pods", view="table", **query)
        head, row, _end = map(msgspec.json.decode, answer.text.splitlines())
        return row[[column["name"] for column in head["columns"]].index("Age")]

    then = await age(asOf=rfc3339(at))
    await eventually(lambda: datetime.now(UTC) > at + timedelta(seconds=1.1))
    assert await age(asOf=rfc3339(at)) == then


async def test_a9_times_outside_the_window_and_no_times_are_refused(past_api: PastApi):
    async def refused(path: str, status: int, **query: Any) -> str:
        answer = await past_api.get(path, **query)
        assert answer.status_code == status, answer.text
        return answer.json()["detail"]

    pods = "/fleet/v1/resources/pods"
    assert "the stream was created at" in await refused(pods, 410, asOf="1d")
    assert "neither a duration" in await refused(pods, 400, asOf="yesterday")
    assert "in the future" in await refused(pods, 400, asOf="2999-01-01T00:00:00Z")
    assert "neither a duration" in await refused(pods, 400, asOf="2026-01-01T00:00:00")
    assert "leave `sort` out" in await refused(pods, 400, asOf="0s", sort="metadata.name")
    assert "before the first event" in await refused("/fleet/v1/changes", 410, since="1d")
    assert "`until` is before" in await refused("/fleet/v1/changes", 400, since="0s", until="1s")
    assert "is not watched in any cluster" in await refused("/fleet/v1/deleted/nothing", 404)
    assert "no such object" in await refused("/fleet/v1/timeline/eu1/pods/prod/none", 404)


async def test_a9_deletions_have_the_last_state_and_the_cause(past_api: PastApi):
    await past_api.past.record(
        EU1.added("web", 10, body=pod("web", 10, labels={"app": "web"})),
        EU1.deleted("web", 11, body=pod("web", 10, labels={"app": "web"})),
        EU1.added("web", 12, body=pod("web", 12)),
        US1.deleted("db", 5, body=pod("db", 4), final_state_unknown=True),
        US1.deleted("left", 6, body=pod("left", 6), left_selection=True),
    )
    await past_api.add_cluster("hub", "fleetbus.dev/multiclusterresources")
    await ensure_distribution(past_api.past.bus, LIMITS)
    affected = AffectedObject(object="Pod prod/db")
    await past_api.past.bus.request(*deleted_by("all", "us1", affected))
    answer = (await past_api.get("/fleet/v1/deleted/pods", since="5m")).json()
    db, web = answer["items"]
    assert (db["name"], db["foundByList"], db["existsAgain"]) == ("db", True, False)
    assert db["deletedBy"] == {"kind": "MultiClusterResource", "namespace": "shop", "name": "all"}
    assert (web["name"], web["deletedBy"], web["existsAgain"]) == ("web", None, True)
    assert web["object"]["metadata"]["labels"] == {"app": "web"}
    selected = (
        await past_api.get("/fleet/v1/deleted/pods", labelSelector="app=web", limit=1)
    ).json()
    assert [item["name"] for item in selected["items"]] == ["web"]
    last = (await past_api.get("/fleet/v1/deleted/pods", limit=1)).json()
    assert ([item["name"] for item in last["items"]], last["remaining"]) == (["db"], 1)


async def test_a9_the_cause_of_a_deletion_is_that_of_its_group(past_api: PastApi):
    """It was found by kind and name; and never for an object that is in no namespace."""
    first, two, nodes = (
        Source(cluster="us1", group=f"{group}.example", resource="pods")
        for group in ("one", "two", "nodes")
    )
    await past_api.add_cluster("us1", "one.example/pods", "two.example/pods", "nodes.example/pods")
    await past_api.past.record(
        *(source.deleted("web", 5, body=pod("web", 4)) for source in (first, two)),
        nodes.deleted("web", 6, body=pod("web", 4), namespace=""),
    )
    await past_api.add_cluster("hub", "fleetbus.dev/multiclusterresources")
    await ensure_distribution(past_api.past.bus, LIMITS)

    async def causes(version: str, name: str) -> list[str]:
        """Report that an object of this version was deleted; return the causes after that."""
        affected = AffectedObject(object="Pod prod/web", api_version=version)
        await past_api.past.bus.request(*deleted_by(name, "us1", affected))
        causers: list[str] = []
        for group in ("one", "two", "nodes"):
            path = f"/fleet/v1/deleted/pods.{group}.example"
            (item,) = (await past_api.get(path)).json()["items"]
            causers.append((item["deletedBy"] or {"name": ""})["name"])
        return causers

    assert await causes("v1", "a-core-pod") == ["", "", ""]
    assert await causes("one.example/v2", "first") == ["first", "", ""]
    assert await causes("nodes.example/v1", "second") == ["first", "", "second"]
    # an earlier release does not say a group
    assert await causes("", "earlier") == ["first", "earlier", "second"]


async def test_a9_a_timeline_shows_what_each_change_changed(past_api: PastApi):
    source = DEPLOYMENTS["eu1"]
    await past_api.past.record(
        source.added("web", 10, body=deployment("web", 10, "a")),
        source.modified("web", 11, body=deployment("web", 11, "b")),
        source.modified("web", 12, body=deployment("web", 12, "b", readyReplicas=2)),
        source.deleted("web", 13, body=deployment("web", 12, "b")),
    )
    path = "/fleet/v1/timeline/eu1/deployments/prod/web"
    answer = (await past_api.get(path)).json()
    entries = answer["entries"]
    assert [entry["verb"] for entry in entries] == ["added", "modified", "modified", "deleted"]
    image = "spec.template.spec.containers[0].image"
    assert entries[1]["differences"] == [{"path": image, "before": "a", "after": "b"}]
    assert entries[2]["differences"] == [
        {"path": "status.readyReplicas", "before": None, "after": 2}
    ]
    assert entries[1]["storedAfterSeconds"] > 0
    last = (await past_api.get(path, limit=2)).json()
    assert [entry["verb"] for entry in last["entries"]] == ["modified", "deleted"]
    assert last["hasMore"]
    assert last["entries"][0]["differences"] == entries[2]["differences"]


async def test_a9_changes_are_grouped_over_clusters(past_api: PastApi):
    names = ("eu1", "us1")
    start = await past_api.past.record(
        *(DEPLOYMENTS[name].added("web", 10, body=deployment("web", 10, "a")) for name in names),
        *(DEPLOYMENTS[name].added("api", 11, body=deployment("api", 11, "a")) for name in names),
        EU1.added("p", 3, body=pod("p", 3, ownerReferences=[{"uid": "x"}])),
    )
    changed = await past_api.past.record(
        *(DEPLOYMENTS[name].modified("web", 12, body=deployment("web", 12, "b")) for name in names),
        DEPLOYMENTS["eu1"].modified("api", 13, body=deployment("api", 13, "c")),
        DEPLOYMENTS["us1"].modified("api", 14, body=deployment("api", 14, "a", readyReplicas=1)),
        DEPLOYMENTS["eu1"].added("brief", 15, body=deployment("brief", 15, "a")),
        DEPLOYMENTS["eu1"].deleted("brief", 16),
        EU1.deleted("p", 5, body=pod("p", 3, ownerReferences=[{"uid": "x"}])),
    )
    await past_api.past.record(
        DEPLOYMENTS["us1"].deleted("api", 20, body=deployment("api", 14, "a"))
    )

    async def changes(**query: Any) -> dict[str, Any]:
        answer = await past_api.get("/fleet/v1/changes", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = await changes(since=rfc3339(start), until=rfc3339(changed))
    groups = [(g["name"], g["change"], g["clusters"], g["others"]) for g in found["groups"]]
    assert groups == [
        ("web", "modified", ["eu1", "us1"], []),
        ("api", "modified", ["eu1"], []),
    ]
    image = "spec.template.spec.containers[0].image"
    assert found["groups"][0]["differences"] == [{"path": image, "before": "a", "after": "b"}]
    assert (found["changedObjects"], found["ownedObjects"]) == (3, 1)
    now = await changes(since=rfc3339(start))
    groups = [(g["name"], g["change"], g["clusters"], g["others"]) for g in now["groups"]]
    assert groups == [
        ("web", "modified", ["eu1", "us1"], []),
        ("api", "deleted", ["us1"], ["eu1"]),
        ("api", "modified", ["eu1"], []),
    ]
    owned = await changes(since=rfc3339(start), owned="true", resource="pods")
    assert [(g["name"], g["change"]) for g in owned["groups"]] == [("p", "deleted")]


async def test_without_nats_the_present_is_served_and_the_past_is_503(
    past_api: PastApi, tmp_path: Path, valkey_url: str
):
    (tmp_path / "second").mkdir()
    async with served(valkey_url, tmp_path / "second") as url, http_client(url) as client:
        assert (await client.get("/fleet/v1/resources/pods")).status_code == 200
        refused = await client.get("/fleet/v1/history")
        assert refused.status_code == 503
        assert "switched off" in refused.json()["detail"]
    assert (await past_api.get("/fleet/v1/history")).status_code == 200
