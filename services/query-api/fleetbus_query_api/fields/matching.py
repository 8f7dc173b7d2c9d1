"""Finds the rows that match, in slices of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fleetbus.kube.field_paths import FieldPath, Value
from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus_query_api.fields.column import FieldColumn, Undecided
from fleetbus_query_api.fields.order import CLUSTER, KEYED, NAME, NAMESPACE
from fleetbus_query_api.limits.time_slices import TimeSlices

STEP: Final = 2_000
"""Rows, or values, per step of a slice."""
_MAYBE: Final = 2

Predicate = Callable[[Value], bool]


class Condition(NamedTuple):
    """A condition on one field."""

    path: FieldPath
    holds: Predicate


class Segment(NamedTuple):
    """Some rows of one resource in one cluster, in order."""

    cluster: str
    keys: Sequence[bytes]
    counters: Sequence[int]
    columns: Mapping[FieldPath, FieldColumn]
    low: int
    high: int
    conditions: Sequence[Condition]
    """Those that its rows may not satisfy."""
    is_kept: bool
    """Else bodies were read for this question alone."""


def label_conditions(labels: LabelSelector | None) -> list[Condition]:
    """The requirements of a label selector."""
    conditions: list[Condition] = []
    for requirement in labels.requirements if labels else ():
        name = requirement.name

        def holds(value: Value, matcher: Any = requirement, key: str = name) -> bool:
            return matcher.matches({key: value} if isinstance(value, str) else {})

        conditions.append(Condition(FieldPath(("metadata", "labels", name)), holds))
    return conditions


def field_conditions(fields: FieldSelector) -> list[Condition]:
    """The requirements of a field selector."""
    return [
        Condition(requirement.path, requirement.matches_value)
        for requirement in fields.requirements
    ]


class Matches(NamedTuple):
    """The rows of a segment that match, and how many may."""

    rows: list[int]
    undecided: int


async def find_matches(segment: Segment, name: str | None, slices: TimeSlices) -> Matches:
    """Find the rows that satisfy all conditions, and have this name."""
    by_value: list[tuple[Sequence[int], bytearray, int]] = []
    by_row: list[Predicate] = []
    reads: list[Callable[[int], Value | Undecided]] = []
    for condition in segment.conditions:
        if condition.path in KEYED:
            by_row.append(condition.holds)
            reads.append(value_reader(segment, condition.path))
            continue
        column = segment.columns[condition.path]
        marks = await _mark(column, condition.holds, slices)
        if not any(marks):
            return Matches([], 0)
        by_value.append((column.codes, marks, column.undecided))
    # A body may have one field that can be read, and another one that cannot.
    unsure = [codes for codes, _, unknown in by_value if unknown]
    ending = None if name is None else f"/{name}".encode()
    matching_rows, undecided = list[int](), 0

    def step(start: int) -> None:
        nonlocal undecided
        rows: Sequence[int] = range(start, min(start + STEP, segment.high))
        for codes, marks, _ in by_value:
            rows = [row for row in rows if marks[codes[row]]]
        if ending is not None:
            keys = segment.keys
            rows = [row for row in rows if keys[row].endswith(ending)]
        for holds, read in zip(by_row, reads, strict=True):
            rows = [row for row in rows if holds(_plain(read(row)))]
        decided = rows
        for codes in unsure:
            decided = [row for row in decided if codes[row]]
        undecided += len(rows) - len(decided)
        matching_rows.extend(decided)

    await slices.run(step, range(segment.low, segment.high, STEP))
    return Matches(matching_rows, undecided)


async def _mark(column: FieldColumn, holds: Predicate, slices: TimeSlices) -> bytearray:
    """Which values satisfy a condition; those that nobody has are not asked."""
    marks = bytearray(len(column.values))

    def step(start: int) -> None:
        for code in range(start, min(start + STEP // 10, len(marks))):
            if column.uses(code):
                value = column.values[code]
                marks[code] = _MAYBE if isinstance(value, Undecided) else holds(value)

    await slices.run(step, range(0, len(marks), STEP // 10))
    return marks


def value_reader(segment: Segment, path: FieldPath) -> Callable[[int], Value | Undecided]:
    """A function that reads the value of a row."""
    keys = segment.keys
    if path == CLUSTER:
        return lambda _: segment.cluster
    if path == NAME:
        return lambda row: keys[row].partition(b"/")[2].decode()
    if path == NAMESPACE:
        return lambda row: keys[row].partition(b"/")[0].decode() or None
    return segment.columns[path].get


def _plain(value: Value | Undecided) -> Value:
    return None if isinstance(value, Undecided) else value
