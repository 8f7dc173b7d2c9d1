"""States that changes replace, of objects that had not changed for long (rule A9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.snapshot.prior_states import PriorStates
from support.stores.snapshot import PODS, Snapshot, Source, body_of, full_store

if TYPE_CHECKING:
    from redis.asyncio import Redis

EU1 = Source()
NOW = datetime(2026, 1, 2, tzinfo=UTC)
DAYS = timedelta(days=2)


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    prepared = Snapshot(redis)
    await prepared.set_up("eu1")
    return prepared


async def settle(snapshot: Snapshot) -> PriorStates:
    """From now on what there is has not changed for long."""
    states = PriorStates(snapshot.redis, snapshot.keys)
    await states.note_clock(0, NOW, kept=DAYS)
    await states.settle(0, NOW)
    return states


async def kept(states: PriorStates) -> list[tuple[str, str, str, bytes]]:
    priors = [prior_entry.prior for prior_entry in await states.read(0, most=10)]
    return [
        (prior.name, prior.resource_version, prior.replaced_by, prior.object) for prior in priors
    ]


async def test_a9_the_state_of_a_settled_object_is_kept_when_it_changes(snapshot: Snapshot):
    await snapshot.apply(EU1.added("web", 1), EU1.added("db", 2))
    states = await settle(snapshot)
    await snapshot.apply(EU1.modified("web", 5), EU1.modified("web", 6), EU1.added("new", 7))
    await snapshot.apply(EU1.modified("new", 8), EU1.deleted("db", 9))
    assert await kept(states) == [("web", "1", "5", body_of("web", 1))]
    first = await states.read(0, most=10)
    assert first[0].prior.cluster == "eu1"
    assert (first[0].prior.group, first[0].prior.resource) == ("core", "pods")
    assert first[0].prior.namespace == "prod"
    assert await states.drop(0, first)
    assert not await states.drop(0, first), "another process has dropped it"
    assert await kept(states) == []


async def test_a9_a_list_that_finds_nothing_new_keeps_nothing(snapshot: Snapshot):
    await snapshot.apply(EU1.added("web", 1))
    states = await settle(snapshot)
    later = Source(rank=(9, 2))
    await snapshot.apply(later.listed("web", 1))
    assert await kept(states) == []
    await snapshot.apply(Source(incarnation=2).modified("web", 1, body=b"{}"))
    assert await kept(states) == [], "another history of the cluster has other versions"


async def test_a9_before_anything_is_settled_nothing_is_kept(snapshot: Snapshot):
    await snapshot.apply(EU1.added("web", 1), EU1.modified("web", 2))
    assert await kept(PriorStates(snapshot.redis, snapshot.keys)) == []


async def test_a9_what_waits_is_bounded(snapshot: Snapshot):
    names = [f"pod-{number}" for number in range(2100)]
    for start in range(0, 2100, 300):
        numbered = enumerate(names[start : start + 300], start + 1)
        await snapshot.apply(*(EU1.added(name, version) for version, name in numbered))
    states = await settle(snapshot)
    for start in range(0, 2100, 300):
        numbered = enumerate(names[start : start + 300], start + 5000)
        await snapshot.apply(*(EU1.modified(name, version) for version, name in numbered))
    assert len(await states.read(0, most=5000)) == 2000


async def test_a9_a_full_store_keeps_nothing(snapshot: Snapshot):
    await snapshot.apply(EU1.added("web", 1, body=b"x" * 100))
    states = await settle(snapshot)
    async with full_store(snapshot.redis):
        await snapshot.apply(EU1.modified("web", 2, body=b"{}"))
    assert await kept(states) == []


LABELS = {"app": "web", "tier": "x", "fleetbus.dev/other": "m"}


async def test_a9_what_changed_since_a_time_is_found_by_the_clock(snapshot: Snapshot):
    owner = [{"uid": "x", "kind": "ReplicaSet", "name": "x", "apiVersion": "apps/v1"}]
    await snapshot.apply(EU1.added("old", 1), EU1.added("gone", 2))
    await settle(snapshot)
    await snapshot.apply(
        EU1.added("new", 3),
        EU1.added("pod", 4, metadata={"ownerReferences": owner}),
        EU1.added("copy", 5, metadata={"labels": {**LABELS, OWNER_UID_LABEL: "m"}}),
        EU1.added("both", 6, metadata={"labels": {OWNER_UID_LABEL: "m"}, "ownerReferences": owner}),
        EU1.deleted("gone", 7),
    )
    states = PriorStates(snapshot.redis, snapshot.keys)
    later = NOW + timedelta(minutes=1)
    await states.note_clock(0, later, kept=DAYS)
    past = snapshot.reader.past

    async def changed(since: datetime) -> list[tuple[str, bool, bool]]:
        pages = [page async for page in past.changed_since("eu1", PODS, since)]
        return sorted(
            (object_change.name, object_change.is_owned, object_change.is_marked)
            for page in pages
            for object_change in page
        )

    assert await changed(NOW) == [
        ("both", True, False),
        ("copy", False, True),
        ("new", False, False),
        ("pod", True, False),
    ]
    entries = await snapshot.reader.known(
        "eu1", PODS, [("prod", name) for name in ("both", "copy", "new", "pod")]
    )
    async for page in past.changed_since("eu1", PODS, NOW):
        for one in page:
            assert one.size == len(entries[one.namespace, one.name].entry.body)
    assert await changed(later) == []
    earlier = await changed(NOW - timedelta(minutes=1))
    assert [object_change[0] for object_change in earlier] == ["both", "copy", "new", "old", "pod"]
    await states.note_clock(0, later + timedelta(hours=1), kept=DAYS)
    assert await changed(later) == [], "the version was the last one before, too"
    await states.note_clock(0, later + DAYS, kept=timedelta(hours=1))
    assert len(await changed(later)) == 5, "what is no longer noted is not known"


async def test_a9_odd_names_are_kept_as_they_are(snapshot: Snapshot):
    """Names of roles may have any character but a slash and a percent sign."""
    names = ["a\x1fb", "\x1f", "\x00", "|", "\u2028", "x" * 5000]
    await snapshot.apply(*(EU1.added(name, 1, uid="u", body=b"{}") for name in names))
    states = await settle(snapshot)
    await snapshot.apply(*(EU1.modified(name, 5, uid="u", body=b"{ }") for name in names))
    assert await kept(states) == [(name, "1", "5", b"{}") for name in names]
