"""The assignment of clusters to pool members, as pure computation: rule W22."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbus_watcher.pool.assignment import Step, assign, capacity, next_step, weigh
from fleetbus_watcher.pool.records import MemberRecord, MemberTracker
from support.full import examples
from support.rows import each_row

NAMES = st.lists(st.text("abcdefgh0123456789-", min_size=1, max_size=12), max_size=60, unique=True)
MEMBERS = st.lists(
    st.text("pr-0123456789", min_size=1, max_size=6), min_size=1, max_size=9, unique=True
)
FLEET = [f"cluster-{number}" for number in range(200)]


def members(count: int) -> list[str]:
    return [f"r-{number}" for number in range(count)]


def unevenness(owners: dict[str, str], count: int) -> float:
    return max(Counter(owners.values()).values()) / (len(owners) / count)


@given(NAMES, MEMBERS)
@settings(max_examples=examples(50))
def test_w22_every_cluster_has_one_owner_and_no_member_more_than_its_capacity(
    clusters: list[str], pool: list[str]
):
    owners = assign(clusters, pool)
    assert owners.keys() == set(clusters)
    assert set(owners.values()) <= set(pool)
    limit = capacity(len(clusters), len(pool))
    assert all(count <= limit for count in Counter(owners.values()).values())
    assert limit <= max(-(-len(clusters) // len(pool)), 1.25 * len(clusters) / len(pool))


@given(NAMES, MEMBERS, st.randoms())
@settings(max_examples=examples(30))
def test_w22_every_member_comes_to_the_same_answer(
    clusters: list[str], pool: list[str], random: Random
):
    mixed, others = random.sample(clusters, len(clusters)), random.sample(pool, len(pool))
    assert assign(clusters, pool) == assign(mixed, others)


@each_row("count", [2, 3, 5, 9, 20])
def test_w22_no_member_has_much_more_than_the_mean(count: int):
    assert unevenness(assign(FLEET, members(count)), count) <= 1.3


@each_row("count", [3, 5, 9])
def test_w22_names_that_differ_in_one_digit_get_equal_shares_of_the_hash(count: int):
    """With FNV one of 9 such names got half of everything."""
    pool = members(count)
    clusters = [f"c{number}" for number in range(3000)]
    best = Counter(max(pool, key=lambda member: weigh(name, member)) for name in clusters)
    assert max(best.values()) <= 1.15 * len(clusters) / count


@each_row("count", [1, 2, 3, 5, 8])
def test_w22_who_joins_takes_his_share_and_little_else_moves(count: int):
    before, after = assign(FLEET, members(count)), assign(FLEET, members(count + 1))
    newcomer = f"r-{count}"
    moved = [name for name in FLEET if before[name] != after[name]]
    to_others = [name for name in moved if after[name] != newcomer]
    assert len(to_others) <= 0.06 * len(FLEET)
    assert len(moved) <= 1.3 * len(FLEET) / (count + 1) + len(to_others)


@each_row("count", [2, 3, 5, 9])
def test_w22_who_leaves_leaves_his_clusters_and_little_else_moves(count: int):
    before, after = assign(FLEET, members(count)), assign(FLEET, members(count)[1:])
    moved = [name for name in FLEET if before[name] != after[name] and before[name] != "r-0"]
    assert len(moved) <= 0.06 * len(FLEET)


def test_w22_one_more_cluster_moves_hardly_any_other():
    before, after = assign(FLEET, members(3)), assign([*FLEET, "new"], members(3))
    assert sum(before[name] != after[name] for name in FLEET) <= 2


def test_w22_without_members_nobody_owns_anything():
    assert assign(FLEET, []) == {}


# --- what follows for one cluster -------------------------------------------------------------


@each_row(
    ("holder", "is_held", "assigned", "is_running", "step"),
    [
        ("me", True, "me", True, Step.WORK),
        ("me", True, "you", True, Step.WORK),  # until you take it
        (None, False, "me", False, Step.CLAIM),
        (None, False, "you", False, Step.NONE),
        (None, False, "you", True, Step.CLAIM),  # the bucket was lost under us
        ("you", False, "me", False, Step.CLAIM),
        ("you", False, "me", True, Step.CLAIM),  # whom we were about to succeed died
        ("you", False, "her", True, Step.NONE),
        ("you", False, None, False, Step.CLAIM),  # nobody's for too long
        ("you", True, "me", False, Step.SUCCEED),
        ("you", True, "me", True, Step.SUCCEED),
        ("you", True, "you", True, Step.NONE),
        ("you", True, "her", False, Step.NONE),
    ],
)
def test_w22_what_a_member_does_about_a_cluster(
    holder: str | None, is_held: bool, assigned: str | None, is_running: bool, step: Step
):
    decided = next_step(
        "me", holder=holder, is_held=is_held, assigned=assigned, is_running=is_running
    )
    assert decided is step


# --- live members-----------------------------------------------------------------------------


def records(revision: int, *names: str, **changed: Any) -> dict[str, tuple[MemberRecord, int]]:
    return dict.fromkeys(names, (MemberRecord(boot="b", beat=revision, **changed), revision))


def tracker_of(*names: str) -> MemberTracker:
    tracker = MemberTracker(lease=5, interval=1)
    tracker.update(records(1, *names), now=100)
    return tracker


def test_w22_a_member_silent_for_a_lease_is_dead_and_a_renewing_one_is_alive():
    tracker = tracker_of("r-0", "r-1")
    for second in range(1, 7):
        tracker.update(records(1, "r-0") | records(1 + second, "r-1"), now=100 + second)
    assert (tracker.is_alive("r-0"), tracker.is_alive("r-1")) == (False, True)
    tracker.update(records(8, "r-0", "r-1"), now=107)
    assert tracker.is_alive("r-0"), "it was only paused"


def test_w22_after_a_pause_of_our_own_nobody_is_dead():
    tracker = tracker_of("r-0")
    tracker.update(records(1, "r-0"), now=10_000)
    assert tracker.is_alive("r-0")


def test_w22_after_the_bucket_was_lost_nobody_is_dead_at_once():
    tracker = tracker_of("r-0")
    for second in range(1, 4):
        tracker.update({}, now=100 + second)
    assert tracker.is_alive("r-0")
    for second in range(4, 8):
        tracker.update({}, now=100 + second)
    assert not tracker.is_alive("r-0")
    assert tracker.record_of("r-0") is None


def test_w22_who_has_left_is_gone_and_who_leaves_takes_nothing():
    tracker = tracker_of("r-0", "r-1", "r-2")
    tracker.update(records(2, "r-0", state="left") | records(2, "r-1", state="leaving"), now=101)
    assert [tracker.is_alive(name) for name in ("r-0", "r-1", "r-2")] == [False, True, True]
    assert tracker.active("") == ["r-2"]


def test_w22_members_with_another_selector_are_another_pool():
    tracker = tracker_of("r-0")
    tracker.update(records(2, "r-0", selector="region=eu"), now=101)
    assert (tracker.active(""), tracker.active("region=eu")) == ([], ["r-0"])
    assert tracker.is_alive("r-0"), "its leases hold all the same"
