"""The table of cases: whether an object's own request runs, and what is remembered (rule P8)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fleetbus.intake.decision import Case, case_of, decide
from fleetbus.intake.matching import Evaluation, Reason
from fleetbus.intake.record import LastSeen, StoredRecord
from fleetbus.run.current import Version
from support.rows import each_row
from support.stores.snapshot import Source

EU: Final = Source(cluster="eu1")
MEMBER: Final[dict[int, list[str] | None]] = {7: None}
"""It matches the identity watch 7."""


def v(number: int) -> Version:
    return (1, str(number))


def seen(at: int, woken: int | None = None, *, member: bool = True, **more: Any) -> LastSeen:
    """A record: seen at one version, woken by it or an earlier one."""
    members = dict(MEMBER) if member else {}
    return LastSeen(v(at), v(at if woken is None else woken), members, **more)


LEFT: Final = seen(8, 8, member=False, is_left=True)


class Row(NamedTuple):
    """One case; the object is at version 10 now."""

    name: str
    verb: str
    stored: StoredRecord
    runs: bool
    remembered: LastSeen | None
    reason: Reason = Reason.EVENT
    member: bool = False
    asks: bool = False
    more: dict[str, Any] = {}  # noqa: RUF012 -- never changed


NOW: Final = seen(10)
OLD: Final = seen(5)

ROWS: Final = [
    # --- PRESENT
    Row("a first event that matches", "modified", StoredRecord(), True, NOW,
        member=True, asks=True),
    Row("a first event that matches nothing", "modified", StoredRecord(), False, None),
    Row("an event that a run has read", "modified", StoredRecord(OLD, v(10)), False,
        seen(10, 5), member=True, asks=True),
    Row("an event that a run has read too early", "modified", StoredRecord(OLD, v(9)), True,
        NOW, member=True, asks=True),
    Row("a change that does not matter", "modified", StoredRecord(OLD, v(5)), False,
        seen(10, 5), member=True),
    Row("it leaves, and a run has read the version", "modified", StoredRecord(OLD, v(10)), True,
        seen(10, member=False, is_left=True), asks=True),
    Row("it has left, and a run knows", "modified", StoredRecord(LEFT, v(10)), False,
        seen(10, 8, member=False, is_left=True), asks=True),
    Row("it comes back, and a run has read the version", "modified", StoredRecord(LEFT, v(10)),
        True, NOW, member=True, asks=True),
    Row("other code has read it", "listed", StoredRecord(NOW, v(10)), True, NOW,
        Reason.NEW_CODE, member=True, asks=True),
    Row("a resync of what is read", "listed", StoredRecord(NOW, v(10)), False, NOW,
        Reason.RESYNC, member=True),
    Row("a resync of what was woken and not read", "listed", StoredRecord(NOW, v(9)), True, NOW,
        Reason.RESYNC, member=True),
    Row("a resync of a change that did not matter", "listed", StoredRecord(seen(10, 5), v(5)),
        False, seen(10, 5), Reason.RESYNC, member=True),
    Row("a resync that makes it enter a watch", "listed", StoredRecord(seen(10, 5), v(5)),
        True, NOW, Reason.RESYNC, member=True, asks=True, more={"has_entered": True}),
    Row("a resync of what left unread", "listed",
        StoredRecord(seen(10, 10, member=False, is_left=True), v(9)), True,
        seen(10, 10, member=False, is_left=True), Reason.RESYNC),
    # --- LATE: version 12 was seen before
    Row("late, and a run has read the newer state", "modified", StoredRecord(seen(12), v(12)),
        False, seen(12), member=True, asks=True),
    Row("late, and no run has read anything", "modified", StoredRecord(seen(12)), True,
        seen(12), member=True, asks=True),
    Row("late, it matched then, and does not now", "modified",
        StoredRecord(seen(12, member=False), v(12)), True,
        seen(12, member=False, is_left=True), asks=True, more={"has_matched_late": True}),
    Row("late, it matched then, and a run knows that it left", "modified",
        StoredRecord(seen(12, member=False, is_left=True), v(12)), False,
        seen(12, member=False, is_left=True), asks=True, more={"has_matched_late": True}),
    # --- DELETED and GONE
    Row("deleted", "deleted", StoredRecord(OLD, v(5)), True, None, member=True, asks=True),
    Row("deleted, and a newer version was read", "deleted", StoredRecord(OLD, v(11)), False, None,
        member=True, asks=True),
    Row("deleted, never seen", "deleted", StoredRecord(), False, None),
]  # fmt: skip

GONE_ROWS: Final = [
    Row("gone, until a run has read it", "deleted", StoredRecord(OLD, v(5)), True,
        seen(10, is_gone=True), member=True, asks=True),
    Row("gone, and a run has read this deletion", "deleted", StoredRecord(OLD, v(10)), False, None,
        member=True, asks=True),
    Row("gone, and a run has read what came after", "deleted", StoredRecord(OLD, v(11)), True,
        seen(10, is_gone=True), member=True, asks=True),
    Row("gone after it left, which no run knows", "deleted", StoredRecord(LEFT, v(7)), True,
        seen(10, member=False, is_left=True, is_gone=True)),
    Row("gone after it left, as a run knows", "deleted", StoredRecord(LEFT, v(8)), False, None),
    Row("gone, as was seen before", "deleted", StoredRecord(seen(10, is_gone=True), v(10)), False,
        seen(10, is_gone=True), Reason.RESYNC, member=True, asks=True),
]  # fmt: skip


def evaluation(row: Row) -> Evaluation:
    event = {"modified": EU.modified, "listed": EU.listed, "deleted": EU.deleted}[row.verb]("a", 10)
    return Evaluation(
        event,
        row.stored,
        row.reason,
        members=dict(MEMBER) if row.member else {},
        wakes_own=row.asks,
        **row.more,
    )


@each_row("row", ROWS)
def test_p8_each_case_has_its_decision(row: Row) -> None:
    decision = decide(evaluation(row), may_leave=False)
    assert (decision.wakes_own, decision.last_seen) == (row.runs, row.remembered)
    assert decision.is_skipped is (row.asks and not row.runs)


@each_row("row", GONE_ROWS)
def test_p8_each_deletion_of_what_may_have_left_has_its_decision(row: Row) -> None:
    decision = decide(evaluation(row), may_leave=True)
    assert (decision.wakes_own, decision.last_seen) == (row.runs, row.remembered)


def test_the_cases_are_reported_apart() -> None:
    def case(verb: str, stored: LastSeen | None, *, may_leave: bool) -> Case:
        row = Row("", verb, StoredRecord(stored), False, None)
        return case_of(evaluation(row), may_leave=may_leave)

    for may_leave in (False, True):
        assert case("modified", None, may_leave=may_leave) is Case.PRESENT
        assert case("modified", seen(12), may_leave=may_leave) is Case.LATE
        assert case("deleted", seen(12), may_leave=may_leave) is Case.LATE
    assert case("deleted", OLD, may_leave=False) is Case.DELETED
    assert case("deleted", OLD, may_leave=True) is Case.GONE
