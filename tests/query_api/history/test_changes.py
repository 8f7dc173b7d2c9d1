"""Comparisons of many objects, and of what was deleted meanwhile (rule A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus.process.clock import rfc3339
from support.stores.recorded_past import pod
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from support.rigs.past_api import PastApi

EU1 = Source()


async def test_a9_all_changes_are_found_however_many_are_read_at_a_time(past_api: PastApi):
    await past_api.add_cluster("eu1", "core/pods")
    names = [f"p{n}" for n in range(150)]
    start = await past_api.past.record(
        *(EU1.added(name, 10 + n, body=pod(name, 10 + n)) for n, name in enumerate(names))
    )
    await past_api.past.record(
        *(EU1.modified(name, 500 + n, body=pod(name, 500 + n, "b")) for n, name in enumerate(names))
    )
    answer = (await past_api.get("/fleet/v1/changes", since=rfc3339(start), limit=500)).json()
    assert answer["changedObjects"] == len(names)
    assert sorted(group["name"] for group in answer["groups"]) == sorted(names)


async def test_a9_what_is_deleted_again_and_again_counts_once(past_api: PastApi):
    await past_api.add_cluster("eu1", "core/pods")
    owner = {"ownerReferences": [{"uid": "x", "kind": "ReplicaSet", "name": "x"}]}
    names, owned = ("gone", "back"), ("owned-gone", "owned-back")
    start = await past_api.past.record(
        *(EU1.added(name, 10, body=pod(name, 10)) for name in names),
        *(EU1.added(name, 10, metadata=owner) for name in owned),
    )
    for version in (20, 30):
        for one, more in (*((name, {}) for name in names), *((name, owner) for name in owned)):
            await past_api.past.record(
                EU1.deleted(one, version, metadata=more), EU1.added(one, version + 1, metadata=more)
            )
    await past_api.past.record(
        EU1.deleted("gone", 40), EU1.deleted("owned-gone", 40, metadata=owner)
    )
    answer = (await past_api.get("/fleet/v1/changes", since=rfc3339(start))).json()
    assert sorted((group["name"], group["change"]) for group in answer["groups"]) == [
        ("back", "modified"),
        ("gone", "deleted"),
    ]
    assert (answer["changedObjects"], answer["ownedObjects"]) == (2, 2)
