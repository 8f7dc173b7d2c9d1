"""All checks over the records of one phase of the watchers' campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from faults.rig.records import Violation
from faults.watchers.records import Records
from faults.watchers.request_checks import check_alarms, check_lists
from faults.watchers.state_checks import (
    check_deletions,
    check_deletions_sent,
    check_duplicates,
    check_ended,
    check_memory,
    check_rows,
    check_settled,
    check_snapshot,
    check_stream,
    check_writes,
)

Check = Callable[[Records], Iterable[Violation]]

CHECKS: Final[tuple[Check, ...]] = (
    check_stream,
    check_snapshot,
    check_settled,
    check_deletions,
    check_deletions_sent,
    check_duplicates,
    check_rows,
    check_writes,
    check_memory,
    check_ended,
    check_lists,
    check_alarms,
)


def check(records: Records) -> list[Violation]:
    """All violations."""
    return [violation for each in CHECKS for violation in each(records)]
