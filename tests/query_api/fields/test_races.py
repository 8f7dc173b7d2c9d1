"""Rows that change between two steps of an answer, step by step (rules A4, A5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldSelector
from fleetbus.snapshot import ExpiredToken
from fleetbus.snapshot.guard import LIVE, Guard
from fleetbus.snapshot.reads.changed import Change
from fleetbus.snapshot.reads.rows import RowReads, StoredRow
from fleetbus_query_api.fields.column import FieldColumn
from fleetbus_query_api.fields.matching import Segment, field_conditions, find_matches
from fleetbus_query_api.fields.table import FieldTable, Place
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.requests.paging import FieldPosition, read_token

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PHASE = FieldPath.parse("status.phase")
NODE = FieldPath.parse("spec.nodeName")
KEY = b"prod/web"
LIST = "/fleet/v1/resources/pods"


def row(counter: int, phase: str, *, state: str = LIVE) -> StoredRow:
    guard = Guard(state, "1", "1", str(counter), "uid", "", "", "", "")
    tree = {"status": {"phase": phase}, "spec": {"nodeName": phase}}
    return StoredRow(KEY, guard, msgspec.json.encode(tree) if state == LIVE else b"")


def table_with(*paths: FieldPath) -> FieldTable:
    table = FieldTable(Place("eu1", "core/pods"))
    table.fill([KEY])
    table.columns |= {path: FieldColumn(1) for path in paths}
    return table


def values(table: FieldTable) -> list[Any]:
    return [column.get(0) for column in table.columns.values()]


def test_a5_what_was_read_before_something_newer_changes_nothing():
    table = table_with(PHASE)
    table.put(row(7, "Failed"))
    table.put(row(5, "Running"))
    assert values(table) == ["Failed"]
    table.put(row(6, "", state="D"))
    assert values(table) == ["Failed"]
    table.put(row(8, "", state="D"))
    assert table.keys == []


def test_a5_a_row_that_changed_since_other_columns_were_read_changes_in_all_of_them():
    table = table_with(PHASE)
    table.put(row(5, "Running"))
    table.columns[NODE] = FieldColumn(1)
    table.put(row(7, "Failed"), {NODE: table.columns[NODE]})
    assert values(table) == ["Failed", "Failed"]


def test_a5_a_row_that_changes_again_while_it_is_read_is_read_again():
    table = table_with(PHASE)
    table.changed([Change(5, "modified", "eu1", "core/pods", "prod", "web")])
    table.changed([Change(7, "modified", "eu1", "core/pods", "prod", "web")])
    table.settle(KEY, 5)
    assert table.dirty == {KEY: 7}
    table.settle(KEY, 7)
    assert table.dirty == {}


async def test_a4_an_object_of_which_one_of_two_fields_is_unknown_is_undecided():
    """A number beyond a double makes the field unreadable that has it, and no other one."""
    readable, unknown = FieldColumn(0), FieldColumn(1)
    readable.insert(0, "Running")
    fields = FieldSelector.parse("status.phase=Running,spec.nodeName!=x")
    columns = {PHASE: readable, NODE: unknown}
    conditions = field_conditions(fields)
    segment = Segment("eu1", [KEY], [1], columns, 0, 1, conditions, is_kept=True)
    matches = await find_matches(segment, None, TimeSlices())
    assert (matches.rows, matches.undecided) == ([], 1)


def test_p13_a_token_from_before_the_last_writes_were_lost_has_expired():
    token = FieldPosition("g", 9, b"question", [], "eu1", KEY).to_token()
    assert read_token(token, "g", 9, b"question").key == KEY
    with pytest.raises(ExpiredToken):
        read_token(token, "g", 8, b"question")
    with pytest.raises(ExpiredToken):
        read_token(token, "other", 9, b"question")


@pytest.mark.parametrize("repaid", [0, math.inf])
async def test_a4_what_stops_matching_before_its_body_is_read_is_not_listed(
    api: QueryApi, monkeypatch: pytest.MonkeyPatch, repaid: float
):
    monkeypatch.setattr("fleetbus_query_api.fields.source.REPAID", repaid)
    await api.add_cluster("eu1", "core/pods")
    for name in ("a", "b", "c"):
        await api.add("eu1", "core/pods", name, status={"phase": "Running"})
    assert len(await api.names(fieldSelector="status.phase=Running")) == 3
    read, changes = RowReads.read, ["b"]

    async def late(*args: Any, **fields: Any) -> Any:
        if changes:
            await api.add("eu1", "core/pods", changes.pop(), status={"phase": "Failed"})
        return await read(*args, **fields)

    monkeypatch.setattr(RowReads, "read", late)
    assert await api.names(fieldSelector="status.phase=Running") == ["eu1/a", "eu1/c"]
    assert not changes
