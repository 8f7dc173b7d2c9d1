"""All checks over the records of a campaign, offline and as often as one likes.

    python tests/faults/check.py reports/faults/seed-11

The folder is that of one seed; exit status 1 tells of violations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from accounts import check_alarms, check_lists  # noqa: E402 -- behind the line that finds ours
from checker import (  # noqa: E402
    Records,
    Violation,
    check_deletions,
    check_duplicates,
    check_ended,
    check_memory,
    check_rows,
    check_settled,
    check_snapshot,
    check_stream,
    check_told,
    check_writes,
    read_records,
)
from report import report_of  # noqa: E402

Check = Callable[[Records], Iterable[Violation]]

CHECKS: Final[tuple[Check, ...]] = (
    check_stream,
    check_snapshot,
    check_settled,
    check_deletions,
    check_told,
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


def main(folder: Path) -> int:
    """Check each phase of a seed."""
    status = 0
    for meta in sorted(folder.glob("*/meta.json")):
        records = read_records(meta.parent)
        violations = check(records)
        print(report_of(records, violations).line)
        for violation in violations:
            print(f"  VIOLATION {violation.rule}: {violation.text}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
