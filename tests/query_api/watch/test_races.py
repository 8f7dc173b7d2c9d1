"""Changes, lists and reads that cross each other, step by step: what a client is shown (rule A5).

The other tests of watches leave the order to chance; here each step is taken by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot import Entry
from fleetbus.snapshot.reads.changed import Change, ObjectState
from fleetbus.snapshot.reads.feed import Feed, Position
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.watch.backlog import Listed
from fleetbus_query_api.watch.broadcaster import Broadcaster
from fleetbus_query_api.watch.events import Event, Settler, Shown, make_bare
from fleetbus_query_api.watch.selection import Matching, Selector
from fleetbus_query_api.watch.shown_keys import KeyCount, ShownKeys
from fleetbus_query_api.watch.subscription import EndReason, Subscription
from support.rows import each_row
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from fleetbus.snapshot import Page
    from fleetbus_query_api.responses.problem import Problem

PODS = "core/pods"
EU1 = Source(cluster="eu1")
WEB = Selector(labels=LabelSelector.parse("app=web"))


def change(version: int, kind: str, name: str = "web", cluster: str = "eu1") -> Change:
    return Change(version, kind, cluster, PODS, "prod", name)


def state(
    version: int, name: str = "web", *, is_live: bool = True, cluster: str = "eu1", app: str = ""
) -> ObjectState:
    """An object as it is after the change of a version."""
    entry = Entry(cluster, "prod", name, "uid", "1", b'{"kind":"Pod"}', version, "", 1)
    return ObjectState(entry, is_live, {"app": app} if app else {})


def event(version: int, name: str = "web", *, existed: bool = True, **fields: Any) -> Event:
    return Event(version, state(version, name, **fields), existed=existed, began=version)


class Lines:
    """An encoder whose lines are `TYPE name@version`."""

    key = "lines"

    def event(self, event_type: str, entry: Entry) -> bytes:
        return f"{event_type} {entry.name}@{entry.counter}\n".encode()

    def listed(self, entry: Entry) -> bytes:
        return self.event("ADDED", entry)

    def bookmark(self, version: int, *, ends_initial: bool) -> bytes:
        return f"BOOKMARK {version} {ends_initial}\n".encode()

    def error(self, problem: Problem) -> bytes:
        return f"ERROR {problem.status}\n".encode()


def subscription(*, since: int = 0, opened: int = 0) -> Subscription:
    return Subscription(
        encoder=Lines(),
        selector=Selector(),
        user="dana",
        clusters=("eu1", "us1"),
        since=since,
        opened=opened,
    )


def shown(sub: Subscription) -> list[str]:
    return sub.take().decode().splitlines()


# --- a change, and an object that is read later ---------------------------------------------------


def test_a5_a_change_that_a_later_one_supersedes_is_left_to_the_later_one():
    settler = Settler()
    first, second = change(3, "added"), change(5, "modified")
    assert settler.settle(first, state(5)) is None
    settled = settler.settle(second, state(5))
    assert settled is not None
    assert (settled.version, settled.existed, settled.began) == (5, False, 3)


def test_a5_the_change_after_one_that_nobody_could_see_stands_for_itself():
    settler = Settler()
    settler.skip(change(3, "added"))
    settler.forget(change(4, "modified"))
    settled = settler.settle(change(5, "modified"), state(5))
    assert settled is not None
    assert (settled.existed, settled.began) == (True, 5)


def test_a5_what_was_deleted_and_created_again_between_two_reads_is_another_object():
    settler = Settler()
    settler.skip(change(3, "deleted"))
    settled = settler.settle(change(4, "added"), state(4))
    assert settled is not None
    assert settled.is_other
    sub = subscription()
    sub.offer(settled, Shown.YES, is_match=True)
    assert shown(sub) == ["DELETED web@3", "ADDED web@4"]


# --- a list, and events beside it -----------------------------------------------------------------


def test_a5_a_list_that_may_be_younger_than_its_version_is_taken_for_shown():
    """The client may have listed an object that was created after the version of its list."""
    deletion = make_bare(("eu1", "prod", "web"), 4, existed=False, began=3)
    sub = subscription(since=1, opened=5)
    sub.offer(deletion, Shown.NO, is_match=False)
    assert shown(sub) == ["DELETED web@4"]
    later = subscription(since=1, opened=2)
    later.offer(deletion, Shown.NO, is_match=False)
    assert shown(later) == []


def test_a5_events_that_a_list_shows_already_are_dropped_and_no_others():
    sub = subscription()
    sub.hold()
    for each in (
        event(5, "old"),  # before the list
        event(7, "late"),  # the list shows it in a later state
        event(8, "late"),  # that state itself, in its place in the order
        event(6, "new", existed=False),
        event(5, "old", cluster="us1"),  # a cluster that was not listed
    ):
        sub.offer(each, Shown.YES if each.existed else Shown.NO, is_match=True)
    sub.skip_listed(["eu1"], 5, {("eu1", "prod", "late"): 8})
    sub.flush(visibility={("eu1", "prod", "late"): Shown.YES})
    assert shown(sub) == ["MODIFIED late@8", "ADDED new@6", "MODIFIED old@5"]


def test_a5_what_is_listed_has_no_version_beyond_the_events_that_are_held_back():
    listed = Listed(["eu1"], 5)
    listed.begin(3)
    assert listed.take(state(9).entry).counter == 5
    assert listed.take(state(2, "old").entry).counter == 2
    assert listed.late == {("eu1", "prod", "web"): 9}
    assert listed.shown() == {("eu1", "prod", "web"): Shown.YES}


@each_row(
    ("kinds", "expected"),
    [
        (["added"], ["MODIFIED web@6"]),
        (["added", "modified"], ["MODIFIED web@7"]),
        (["added", "deleted", "added"], ["DELETED web@7", "ADDED web@8"]),
    ],
)
def test_a5_what_a_list_has_shown_is_not_added_again(kinds: list[str], expected: list[str]):
    """Its rows are read after its version, so the events of what they show may be still to come."""
    *skipped, last = [change(version, kind) for version, kind in enumerate(kinds, 6)]
    sub, listed, settler = subscription(), Listed(["eu1"], 5), Settler()
    sub.hold()
    listed.begin(5)
    listed.take(state(6).entry)
    sub.skip_listed(["eu1"], listed.version, listed.late)
    sub.flush(visibility=listed.shown(), since=listed.version)
    for each in skipped:
        settler.skip(each)
    settled = settler.settle(last, state(last.version))
    assert settled is not None
    sub.offer(settled, Shown.YES if settled.existed else Shown.NO, is_match=True)
    assert shown(sub) == expected


def test_a8_what_was_held_back_counts_until_it_is_shown():
    sub = subscription()
    sub.hold()
    sub.offer(event(1), Shown.NO, is_match=True)
    assert sub.waiting == len(event(1).entry.body)
    sub.flush()
    assert sub.waiting == len(b"ADDED web@1\n")
    assert shown(sub) == ["ADDED web@1"]
    assert sub.waiting == 0


# --- a selection, and events while it is read -----------------------------------------------------


async def test_a5_while_a_selection_is_read_nobody_knows_what_matched_before():
    may_end = asyncio.Event()

    async def read(cluster: str, selector: Selector) -> AsyncIterator[Page]:
        assert (cluster, selector) == ("eu1", WEB)
        await may_end.wait()
        for _ in ():
            yield _

    async def present() -> int:
        return 4

    matching = Matching(WEB, ShownKeys(KeyCount(), TimeSlices()), read, present)
    loading = asyncio.create_task(matching.load("eu1"))
    await asyncio.sleep(0)
    outcomes: list[tuple[Shown, bool]] = []
    for each in (
        event(2, app="web"),
        event(3, app="db"),
        event(3, "new", app="web", existed=False),
        event(4, app="web"),
    ):
        matching.update(each)
        outcomes.append(matching.outcome)
    may_end.set()
    await loading
    matching.update(event(5, app="db"))
    outcomes.append(matching.outcome)
    assert outcomes == [
        (Shown.MAYBE, True),
        (Shown.YES, False),
        (Shown.NO, True),
        (Shown.NO, True),
        (Shown.YES, False),
    ]


# --- the broadcaster ------------------------------------------------------------------------------


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    return snapshot


class _Overtaken(FeedTail):
    """Whoever catches up learns of it when another one has gone further."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(Feed(snapshot.redis, snapshot.keys))
        self._snapshot = snapshot

    async def catch_up(self) -> Position:
        end = await super().catch_up()
        await self._snapshot.apply(EU1.added("between", 1))
        await super().catch_up()
        return end


async def test_a5_a_watch_that_begins_while_another_one_catches_up_misses_nothing(
    snapshot: Snapshot,
):
    tail = _Overtaken(snapshot)
    delivery = _broadcaster(tail)
    async with tail.running():
        end = await delivery.start()
        assert tail.position is not None
        assert end.version < tail.position.version == delivery.joined_at
        delivery.lost("the test ends")


async def test_a5_who_listens_while_the_end_is_asked_for_is_not_passed_over(snapshot: Snapshot):
    names: list[str] = []

    class Listens(Feed):
        """Somebody begins to listen, and something changes, before the end is known."""

        async def end(self) -> Position:
            if tail.position is not None:
                tail.listen("eu1", PODS, cast("Any", Listener()))
                await snapshot.apply(EU1.added("web", 1))
            return await super().end()

    class Listener:
        def changed(self, changes: list[Change]) -> None:
            names.extend(each_change.name for each_change in changes)

    tail = FeedTail(Listens(snapshot.redis, snapshot.keys))
    async with tail.running():
        await tail.catch_up()
        await tail.catch_up()
        assert names == ["web"]


def test_a8_who_is_furthest_behind_is_cut_while_too_much_waits_for_all():
    delivery = _broadcaster(cast("Any", None), max_waiting=100)
    by_size = {size: subscription() for size in (20, 50, 60, 70)}
    for size, sub in by_size.items():
        sub.put(b"x" * size)
        delivery.join(PODS, sub)
    delivery._limit_waiting()  # pyright: ignore[reportPrivateUsage]
    assert {size: one.end_reason for size, one in by_size.items()} == {
        20: None,
        50: None,
        60: EndReason.SLOW,
        70: EndReason.SLOW,
    }
    assert shown(by_size[70]) == ["ERROR 410"]


def _broadcaster(tail: FeedTail, **options: int) -> Broadcaster:
    return Broadcaster(
        tail=tail,
        slices=TimeSlices(),
        listing=cast("Any", None),
        settings=QueryApiSettings(),
        **options,
    )
