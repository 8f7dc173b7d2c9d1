"""W7 as arithmetic: who may run beside whom, and what an epoch is counted with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fleetbus.process.settings import load_settings
from fleetbus_reconciler.list_grants.allotment import Allotment, StreamCapacity, WaitBudget
from fleetbus_reconciler.settings import ReconcilerSettings
from support.rows import each_row

MIB = 1024**2


def allotment(*, budget: int | None = 100 * MIB, backlog: int = 0, **settings: Any) -> Allotment:
    all_settings = load_settings(ReconcilerSettings, **settings)
    return Allotment(
        all_settings, StreamCapacity(budget=budget, unread=backlog // 2048, message=2048)
    )


def test_w7_no_more_epochs_run_than_the_fleet_and_the_cluster_may():
    allotted = allotment(epochs_at_once=3, epochs_per_cluster=2)
    for _ in range(3):  # a third one was not granted, and takes no slot of others
        allotted.take("a", 1, whole=False)
    assert not allotted.has_slot("a")
    assert allotted.has_slot("b")
    assert not allotted.is_full
    allotted.take("b", 1, whole=False)
    assert allotted.is_full


@each_row(
    ("taken", "backlog", "size", "fits"),
    [
        (50, 0, 50, True),
        (60, 0, 40, True),
        (60, 0, 41, False),
        (10, 60, 40, True),
        (10, 60, 41, False),  # what nobody has read yet must stay
        (60, 60, 40, True),  # it is of the epochs that run
    ],
)
def test_w7_what_runs_and_what_is_not_read_yet_fits_into_the_budget(
    taken: int, backlog: int, size: int, *, fits: bool
):
    allotted = allotment(backlog=backlog * MIB)
    allotted.take("a", taken * MIB, whole=True)
    assert allotted.fits(size * MIB, whole=True) is fits


def test_w7_one_epoch_larger_than_all_may_run_alone():
    allotted = allotment(backlog=100 * MIB)
    assert allotted.fits(1000 * MIB, whole=True)
    allotted.take("a", 1000 * MIB, whole=True)
    assert allotted.whole == "a"
    assert not allotted.fits(1, whole=True)


def test_w7_one_cluster_takes_no_more_than_half_of_the_bytes():
    allotted = allotment()
    for size in (1, 2**62, 2**62):
        allotted.take("a", size, whole=False)
    assert allotted.whole == ""
    assert allotted.fits(2**62, whole=False)
    assert not allotted.fits(51 * MIB, whole=True)
    assert not allotted.has_share("a", 1)
    allotted.take("b", 30 * MIB, whole=False)
    assert allotted.has_share("b", 20 * MIB)
    assert not allotted.has_share("b", 21 * MIB)


def test_w7_a_cluster_holds_up_the_others_for_a_minute_and_then_not_for_ten():
    now = 0.0
    patience = WaitBudget(timedelta(seconds=60), clock=lambda: now)
    for cluster in ["a"] * 59 + ["b"]:
        patience.block_others(cluster)
        now += 1
        patience.begin_turn()
    assert patience.is_left("a")
    patience.block_others("a")
    now += 2
    patience.begin_turn()
    assert not patience.is_left("a")
    assert patience.is_left("b")
    now += 600
    patience.begin_turn()
    patience.block_others("a")
    now += 59
    patience.begin_turn()
    assert patience.is_left("a")


def test_w7_nothing_is_listed_while_more_than_the_budget_is_unread():
    assert not allotment(backlog=101 * MIB).fits(1, whole=True)


def test_w7_what_is_read_follows_from_the_floor_or_from_an_empty_backlog():
    room = StreamCapacity(budget=None, message=1, unread=3, last=20, floor=17)
    assert room.is_read(17)
    assert not room.is_read(18)
    # A consumer that has nothing left to read need not have seen the newest sequence.
    assert StreamCapacity(budget=None, message=1, unread=0, last=20, floor=17).is_read(20)


def test_w7_a_size_is_what_the_watcher_says_else_what_the_snapshot_holds_else_a_share():
    allotted = allotment(epochs_at_once=10)
    assert allotted.size(expected=30 * MIB, objects=5) == 30 * MIB
    assert allotted.size(expected=0, objects=10_000) == 10_000 * 2048
    assert allotted.size(expected=0, objects=0) == 10 * MIB


def test_w7_a_small_epoch_has_room_to_grow_but_never_more_than_a_share():
    assert allotment(epochs_at_once=10).size(expected=500, objects=0) == MIB
    assert allotment(budget=4 * MIB, epochs_at_once=16).size(expected=500, objects=0) == MIB // 4


def test_w7_a_stream_without_a_limit_limits_nothing():
    allotted = allotment(budget=None, backlog=1000 * MIB)
    assert allotted.size(expected=500 * MIB, objects=0) == 0
    allotted.take("a", 2**62, whole=False)  # granted under a limit, or forged
    assert allotted.has_share("a", 0)
    assert allotted.fits(0, whole=True)
