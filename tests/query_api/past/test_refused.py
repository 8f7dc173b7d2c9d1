"""Events that the snapshot refused are not the past, although they are the last ones (P4, A9)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fleetbus.run.current import ObjectRef
from support.stores.snapshot import PODS, Source

if TYPE_CHECKING:
    from datetime import datetime

    from support.stores.recorded_past import RecordedPast

PODS_OF_EU1 = Source()
CARTS = Source(group="shop.example", resource="carts")


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


async def claim(past: RecordedPast, version: int, source: Source = PODS_OF_EU1) -> Source:
    """The lineage of an epoch that is claimed now, with a time as its id (rule W7)."""
    return replace(source, rank=(version, ms(await past.now())))


async def list_all(past: RecordedPast, source: Source, **objects: int) -> None:
    await past.record(*(source.listed(name, version) for name, version in objects.items()))
    assert (await past.record_end(source.end(len(objects)))).complete


async def versions(past: RecordedPast, at: datetime, *names: str) -> list[str]:
    """The version of each object at a time; empty if it did not exist."""
    refs = [ObjectRef("eu1", PODS, "prod", name) for name in names]
    states = await past.states.at(refs, at)
    events = [states[ref].event if states[ref].is_present else None for ref in refs]
    return [event.resource_version if event is not None else "" for event in events]


async def test_p4_a9_a_late_event_of_an_object_that_a_later_list_lacks_was_refused(
    past: RecordedPast,
):
    old = await claim(past, 10)
    await list_all(past, old, web=9)
    before = await past.record(old.added("early", 12))
    await list_all(past, await claim(past, 20), web=18, early=12)
    at = await past.record(old.added("gone", 15), old.modified("web", 17), old.added("new", 21))
    names = ("web", "early", "gone", "new")
    assert [await past.snapshot.version(name) for name in names] == ["18", "12", "", "21"]
    assert await versions(past, at, *names) == ["18", "12", "", "21"]
    assert await versions(past, before, *names) == ["9", "12", "", ""]


async def test_p4_a9_it_was_refused_also_if_there_was_another_list_since(past: RecordedPast):
    old = await claim(past, 10)
    await list_all(past, old)
    await list_all(past, await claim(past, 20))
    at = await past.record(old.added("gone", 15), old.added("new", 21))
    await list_all(past, await claim(past, 30), new=21)
    assert await versions(past, at, "gone", "new") == ["", "21"]
    assert await versions(past, await past.now(), "gone", "new") == ["", "21"]


async def test_p4_a9_a_late_item_of_an_older_list_was_refused(past: RecordedPast):
    old = await claim(past, 10)
    await list_all(past, await claim(past, 20), web=18)
    at = await past.record(old.listed("web", 8), old.listed("gone", 9))
    assert await versions(past, at, "web", "gone") == ["18", ""]


async def test_p4_a9_what_is_refused_hides_no_earlier_event_of_its_verb(past: RecordedPast):
    old = await claim(past, 10)
    new = await claim(past, 20)
    await list_all(past, new)
    at = await past.record(new.added("web", 22), old.added("web", 12), old.deleted("web", 14))
    assert await past.snapshot.version("web") == "22"
    assert await versions(past, at, "web") == ["22"]


async def test_p4_a9_the_list_of_another_scope_makes_nothing_obsolete(past: RecordedPast):
    source = await claim(past, 10, Source(scope="one"))
    await list_all(past, source)
    await list_all(past, await claim(past, 20, Source(scope="two")))
    at = await past.record(source.added("web", 15))
    assert await versions(past, at, "web") == ["15"]
    assert await past.snapshot.version("web") == "15"


async def test_p5_a9_an_incomplete_list_makes_nothing_obsolete(past: RecordedPast):
    old = await claim(past, 10)
    await list_all(past, old)
    broken = await claim(past, 20)
    assert not (await past.record_end(broken.end(1))).complete
    at = await past.record(old.added("web", 15))
    assert await versions(past, at, "web") == ["15"]
    assert await past.snapshot.version("web") == "15"


async def test_w17_a9_of_a_type_that_was_removed_a_late_event_was_refused(past: RecordedPast):
    old = await claim(past, 10, CARTS)
    await list_all(past, old)
    gone = await claim(past, 20, CARTS)
    assert (await past.record_end(gone.end(0, removed=True))).complete
    at = await past.record(old.added("cart", 15))
    ref = ObjectRef("eu1", "shop.example/carts", "prod", "cart")
    assert not (await past.states.present([ref]))[ref].is_present
    assert not (await past.states.at([ref], at))[ref].is_present


@pytest.mark.parametrize("verb", ["modified", "deleted"])
async def test_p2_a9_a_late_event_from_before_a_restore_of_etcd_was_refused(
    past: RecordedPast, verb: str
):
    old = Source(rank=(90, 1))
    await list_all(past, old, web=80)
    restored = Source(rank=(50, 2), incarnation=2)
    state = await past.record_end(restored.end(0))
    at = await past.record(old.event(verb, "web", 95))
    assert state.complete
    assert await past.snapshot.version("web") == "80"  # until the sweep
    assert await versions(past, at, "web") == ["80"]


async def test_a9_the_stream_is_read_again_only_for_lineages_that_were_replaced(
    past: RecordedPast, monkeypatch: pytest.MonkeyPatch
):
    old = await claim(past, 10)
    await list_all(past, old, web=9, db=8)
    await past.record(old.modified("web", 12))
    before = await past.record(old.added("new", 13))
    requests = list[str]()
    publish = past.bus.publish

    async def counted(subject: str, body: bytes = b"", *, reply: str = "") -> None:
        requests.append(subject)
        await publish(subject, body, reply=reply)

    monkeypatch.setattr(past.bus, "publish", counted)
    assert await versions(past, before, "web", "db", "new") == ["12", "8", "13"]
    assert len(requests) == 1
    await list_all(past, await claim(past, 20), web=12, db=8, new=13)
    requests.clear()
    assert await versions(past, await past.now(), "web", "db", "new") == ["12", "8", "13"]
    assert len(requests) == 1
    requests.clear()
    assert await versions(past, before, "web", "db", "new") == ["12", "8", "13"]
    assert len(requests) == 2  # also the last message of the epochs
