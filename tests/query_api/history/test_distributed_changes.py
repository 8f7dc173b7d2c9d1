"""Changes show what the distributor did, and who may know it (rule A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fleetbus.bus.jetstream import ensure_distribution
from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL
from fleetbus.process.clock import rfc3339
from fleetbus_proto.distribution import (
    AffectedObject,
    DistributionEvent,
    encode_distribution_event,
)
from fleetbus_proto.subjects import DistributionVerb, distribution_subject
from fleetbus_query_api.history.distributed import NOBODY, Writer, read_ownership
from support.rows import each_row
from support.stores.recorded_past import LIMITS, pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi

EU1 = Source()
MCR = {"kind": "MultiClusterResource", "namespace": "shop", "name": "all"}


def mark(**fields: str) -> dict[str, Any]:
    owner = {"apiVersion": "fleetbus.dev/v1alpha1", **MCR, "clusterName": "hub", "uid": "m"}
    text = msgspec.json.encode({**owner, **fields}).decode()
    return {"labels": {OWNER_UID_LABEL: "m"}, "annotations": {OWNER_ANNOTATION: text}}


REFERENCE: dict[str, Any] = {"ownerReferences": [{"uid": "r", "kind": "ReplicaSet", "name": "r"}]}
CASES: dict[str, tuple[dict[str, Any], bool, Writer]] = {
    "nobody": ({}, False, NOBODY),
    "a ReplicaSet": (REFERENCE, True, NOBODY),
    "a MultiClusterResource": (mark(), False, Writer("shop", "all")),
    "both": ({**mark(), **REFERENCE}, True, NOBODY),
    "an object of a reconciler": (mark(kind="Deployment", apiVersion="apps/v1"), True, NOBODY),
    "the kind of another group": (mark(apiVersion="x.io/v1"), True, NOBODY),
    "another uid": (mark(uid="other"), True, NOBODY),
    "labels that a Service's Endpoints copied": ({"labels": mark()["labels"]}, True, NOBODY),
    "no JSON": ({**mark(), "annotations": {OWNER_ANNOTATION: "{"}}, True, NOBODY),
    "annotations that a ReplicaSet copied": ({**mark(), "labels": {}, **REFERENCE}, True, NOBODY),
}


@each_row("case", CASES)
def test_a9_what_a_multiclusterresource_wrote_is_nobodys_child(case: str):
    metadata, is_owned, writer = CASES[case]
    assert read_ownership(pod("web", 1, **metadata)) == (is_owned, writer)


async def publish(past_api: PastApi, verb: DistributionVerb, cluster: str, **fields: Any) -> None:
    event = DistributionEvent(
        namespace="shop",
        name="all",
        uid="m",
        generation=1,
        cluster=cluster,
        event=verb,
        time="2026-01-02T03:04:05.000000Z",
        **fields,
    )
    subject = distribution_subject("shop", "all", cluster, verb)
    await past_api.past.bus.request(subject, encode_distribution_event(event))


async def test_a9_changes_name_the_multiclusterresource_and_its_reports(past_api: PastApi):
    for name in ("eu1", "us1"):
        await past_api.add_cluster(name, "core/pods")
    await past_api.add_cluster("hub", "fleetbus.dev/multiclusterresources")
    await ensure_distribution(past_api.past.bus, LIMITS)
    start = await past_api.past.record(
        EU1.added("web", 10, body=pod("web", 10, **mark())),
        EU1.added("gone", 11, body=pod("gone", 11, **mark())),
    )
    await past_api.past.record(
        EU1.modified("web", 12, body=pod("web", 12, "b", **mark())),
        EU1.added("child", 13, body=pod("child", 13, **REFERENCE)),
        EU1.added("copy", 14, body=pod("copy", 14, **mark(kind="Pod", apiVersion="v1"))),
        EU1.deleted("gone", 15, body=pod("gone", 11, **mark())),
    )
    drift = [AffectedObject(object="Pod prod/web", field=".spec.x", manager="kubectl")]
    namesake = AffectedObject(object="Pod prod/web", api_version="pods.example/v1")
    for cluster in ("eu1", "us1", "eu1"):
        await publish(past_api, DistributionVerb.CORRECTED, cluster, objects=drift)
    await publish(past_api, DistributionVerb.APPLIED, "eu1", objects=drift)
    await publish(past_api, DistributionVerb.WAVE_FAILED, "", wave="canary", revision=2)
    await publish(past_api, DistributionVerb.UNDONE, "", revision=1, message="back to 1")

    async def changes(**query: Any) -> dict[str, Any]:
        answer = await past_api.get("/fleet/v1/changes", since=rfc3339(start), **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = await changes()
    by_name = {group["name"]: (group["change"], group["writtenBy"]) for group in found["groups"]}
    assert by_name == {"web": ("modified", MCR), "gone": ("deleted", MCR)}
    assert (found["changedObjects"], found["ownedObjects"]) == (2, 2)
    reports = [
        (entry["event"], entry["clusters"], entry["count"]) for entry in found["distribution"]
    ]
    assert reports == [
        ("undone", [], 1),
        ("wave-failed", [], 1),
        ("corrected", ["eu1", "us1"], 3),
    ]
    (corrected,) = [entry for entry in found["distribution"] if entry["event"] == "corrected"]
    assert corrected["owner"] == MCR
    assert corrected["objects"] == [
        {"object": "Pod prod/web", "field": ".spec.x", "manager": "kubectl"}
    ]
    assert found["distributionCount"] == 3
    everything = await changes(owned=True)
    assert {group["name"] for group in everything["groups"]} == {"web", "gone", "child", "copy"}

    async def events(**query: Any) -> list[str]:
        return [entry["event"] for entry in (await changes(**query))["distribution"]]

    assert await events(resource="pods") == ["corrected"], "only of objects of that type"
    await publish(past_api, DistributionVerb.CONFLICT, "eu1", objects=[namesake])
    assert await events(resource="pods") == ["corrected"], "not of another group's"
    assert await events(namespace="prod") == ["conflict", "corrected"]
    assert await events(cluster="us1") == ["undone", "wave-failed", "corrected"]
    assert await events(until=rfc3339(start)) == [], "only of the period"
