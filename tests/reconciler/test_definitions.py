"""Names and columns of custom resources reach the records, and stay until they change."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus.snapshot import Definition
from fleetbus.snapshot.records import ClusterRecord
from fleetbus_proto.events import (
    Heartbeat,
    Incarnation,
    PrinterColumn,
    ResourceStatus,
    ServedType,
)
from fleetbus_reconciler.fleet_status.cluster_records import update_resources

SIZE = PrinterColumn(name="Size", type="integer", json_path=".spec.size")
NAMES: Final[dict[str, Any]] = {
    "short_names": ["wd"],
    "list_kind": "WidgetCollection",
    "columns": [SIZE],
}
RECORD = ClusterRecord(name="eu1")
WIDGETS = ServedType(group="example.com", resource="widgets", **NAMES)


def beat(types: list[ServedType] | None) -> Heartbeat:
    return Heartbeat(
        cluster="eu1",
        replica="r",
        boot="b",
        incarnation=Incarnation(1, "u"),
        connected=True,
        resources=[
            ResourceStatus(group="example.com", version="v1", resource="widgets", state="watching")
        ],
        types=types,
        observed_at="2026-01-01T00:00:00Z",
    )


def test_a_definition_stays_while_heartbeats_do_not_repeat_it():
    first = update_resources(beat([WIDGETS]), RECORD, {}, {})
    second = update_resources(beat(None), RECORD, first, {})
    third = update_resources(beat([]), RECORD, second, {})

    assert first["example.com/widgets"].definition == Definition(**NAMES)
    assert second["example.com/widgets"].definition == first["example.com/widgets"].definition
    assert third["example.com/widgets"].definition is None


def test_a_hostile_watcher_cannot_make_records_large():
    long = PrinterColumn(name="x" * 65, type="string", json_path=".a")
    deep = PrinterColumn(name="x", type="string", json_path="." + "a" * 512)
    hostile = msgspec.structs.replace(
        WIDGETS,
        short_names=["n" * 1000] * 1000,
        categories=["c"] * 1000,
        list_kind="L" * 65,
        columns=[SIZE, long, deep] + [SIZE] * 1000,
    )

    definition = update_resources(beat([hostile]), RECORD, {}, {})["example.com/widgets"].definition

    assert definition is not None
    assert (len(definition.short_names), len(definition.categories), len(definition.columns)) == (
        32,
        32,
        30,
    )
    assert definition.short_names[0] == "n" * 64
    assert definition.list_kind == ""
