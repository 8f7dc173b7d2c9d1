"""The checker of `make faults` finds what it is there for, in records made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from faults.watchers.records import Records
from faults.watchers.request_checks import check_alarms, check_lists, reasons_of
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
from fleetbus_proto.keys import kv_audit, kv_checkpoint, kv_incarnation, kv_resync

MAPS = ("eu1", "core/configmaps")
AT = "2026-11-22T10:00:00.000000Z"


def message(kind: str, name: str, rv: int, **more: Any) -> dict[str, Any]:
    message = {"type": kind, "cluster": "eu1", "resource": MAPS[1], "key": f"default/{name}"}
    return message | {"number": 1, "uid": f"u-{name}", "rv": str(rv), "id": "", "at": AT} | more


def listed(name: str, rv: int, epoch: int, **more: Any) -> dict[str, Any]:
    return message("listed", name, rv, **({"rank": ["50", epoch]} | more))


def end(rv: int, epoch: int, number: int = 1) -> dict[str, Any]:
    return message("end", "", rv, rank=[str(rv), epoch], number=number)


def records(*stream: dict[str, Any], lost: bool = False, **more: Any) -> Records:
    """Records of a cluster that has `a` in version 7, and a snapshot that says so."""
    final: dict[tuple[str, str], dict[str, tuple[str, str]]] = {MAPS: {"default/a": ("u-a", "7")}}
    meta = {"stream_lost": lost, "settled_seconds": 1.0, "began": 0.0}
    return Records(meta, final, more.pop("snapshot", final), list(stream), **more)


def rules(violations: Any) -> list[str]:
    return [violation.rule for violation in violations]


def test_i1_a_stream_that_ends_like_the_cluster_is_right():
    stream = [
        message("added", "a", 3),
        message("added", "b", 4),
        message("modified", "a", 7),
        message("modified", "a", 5),  # late, and older
        message("deleted", "b", 6),
    ]
    assert rules(check_stream(records(*stream))) == []


@pytest.mark.parametrize(
    ("stream", "rule"),
    [
        ([], "stream-lost"),
        ([message("added", "a", 7), message("deleted", "a", 8)], "stream-lost"),
        ([message("added", "a", 6)], "stream-old"),
        ([message("added", "a", 7, uid="another")], "stream-old"),
        ([message("added", "a", 7), message("added", "b", 4)], "stream-extra"),
    ],
)
def test_i1_i2_what_is_lost_old_or_left_over_on_the_stream_is_found(
    stream: list[dict[str, Any]], rule: str
):
    assert rules(check_stream(records(*stream))) == [rule]


def test_p2_a_newer_incarnation_wins_over_a_higher_version():
    stream = [message("added", "a", 900), listed("a", 7, 2, number=2)]
    assert rules(check_stream(records(*stream))) == []


def test_p4_what_is_older_than_a_complete_list_and_not_in_it_stays_away():
    stream = [message("added", "a", 7), end(50, 1), message("added", "b", 40)]
    assert rules(check_stream(records(*stream))) == []


def test_p4_an_old_object_of_a_later_list_shows_that_an_emptier_one_was_broken():
    stream = [end(50, 1), listed("a", 7, 2, rank=["60", 2])]
    assert rules(check_stream(records(*stream))) == []
    assert rules(check_stream(records(end(70, 1), *stream))) == ["stream-lost"]  # an older list


def test_p2_a_later_list_disproves_a_deletion_even_if_the_deletion_comes_again():
    swept = message("deleted", "a", 50)
    stream = [message("added", "a", 7), swept, listed("a", 7, 2, rank=["60", 2]), swept]
    assert rules(check_stream(records(*stream))) == []


def test_p6_only_after_a_loss_a_list_says_what_is_gone():
    stream = [message("added", "b", 4), listed("a", 7, 2, number=2), end(50, 2, number=2)]
    assert rules(check_stream(records(*stream))) == ["stream-extra"]
    assert rules(check_stream(records(*stream, lost=True))) == []


def test_i1_a_snapshot_that_differs_and_one_that_is_late_are_found():
    empty: dict[Any, Any] = {MAPS: {}}
    assert rules(check_snapshot(records(snapshot=empty))) == ["snapshot-lost"]
    late = records()
    late.meta["settled_seconds"] = 61.0
    assert rules(check_settled(late)) == ["not-settled"]
    late.meta.update(load_average=8.0, cores=2)  # half of each core is left to us
    assert rules(check_settled(late)) == []


@pytest.mark.parametrize(
    ("rv", "rules_broken"),
    [(9, []), (8, ["false-deletion"])],  # it was deleted at 9
)
def test_w8_a_deletion_of_what_was_still_there_is_found(rv: int, rules_broken: list[str]):
    truth = [
        {"type": "ADDED", "uid": "u-b", "rv": 4},
        {"type": "DELETED", "uid": "u-b", "rv": 9},
    ]
    swept = message("deleted", "b", rv, swept=True)
    assert rules(check_deletions(records(swept, truth={"eu1": truth}))) == rules_broken
    restored = [*truth, {"type": "ROLLED_BACK", "uid": "", "rv": 5}]
    assert rules(check_deletions(records(swept, truth={"eu1": restored}))) == []


def test_w24_a_deletion_that_nobody_is_reported_of_is_found_where_only_the_store_was_lost():
    gone = {"type": "DELETED", "resource": "configmaps", "name": "b", "uid": "u-b", "rv": 9}
    others = [gone | {"uid": "u-0", "time": f"1970-01-01T00:00:{at}+00:00"} for at in ("01", "10")]
    truth = {"eu1": [*others, gone | {"time": "1970-01-01T00:00:05+00:00"}]}
    lost = [{"t": 4.0, "kind": "fault", "fault": "store-lost", "phase": "begin"}]
    swept = message("deleted", "b", 12, swept=True)
    silent, reported_late = records(truth=truth, log=lost), records(swept, truth=truth, log=lost)
    for each in (silent, reported_late):
        each.meta.update(began=3.0, ended=9.0)
    assert rules(check_deletions_sent(silent)) == ["deletion-missing"]
    assert rules(check_deletions_sent(reported_late)) == []
    silent.log.append({"t": 5.0, "kind": "fault", "fault": "nats-wiped", "phase": "begin"})
    assert rules(check_deletions_sent(silent)) == []


def test_w15_an_id_that_is_stored_twice_counts_inside_the_window_only():
    first = message("added", "a", 7, id="x")
    soon = message("added", "a", 7, id="x", at="2026-11-22T10:01:59.000000Z")
    later = message("added", "a", 7, id="x", at="2026-11-22T10:02:01.000000Z")
    assert rules(check_duplicates(records(first, soon))) == ["stored-twice"]
    assert rules(check_duplicates(records(first, later))) == []


def test_i4_a_row_whose_version_falls_is_found_unless_the_incarnation_is_newer():
    row = [5.0, "eu1", MAPS[1], "default/a", "u"]
    assert rules(check_rows(records(rows=[[*row, "9", "1", "L"], [*row, "10", "1", "L"]]))) == []
    fallen = records(rows=[[*row, "10", "1", "L"], [*row, "9", "1", "L"]])
    assert rules(check_rows(fallen)) == ["row-fell"]
    assert rules(check_rows(records(rows=[[*row, "10", "1", "L"], [*row, "9", "2", "L"]]))) == []
    lost = {"t": 6.0, "kind": "fault", "fault": "store-lost", "phase": "begin"}
    again = records(rows=[[*row, "10", "1", "L"], [7.0, *row[1:], "9", "1", "L"]], all_log=[lost])
    assert rules(check_rows(again)) == []


def test_i5_w14_writes_to_a_cluster_memory_without_bound_and_ended_processes_are_found():
    request: dict[str, Any] = {"t": 1.0, "verb": "delete", "path": "/", "query": {}, "agent": "x"}
    assert rules(check_writes(records(requests={"eu1": [request]}))) == ["api-writes"]
    sizes = [(1.0, "alpha-1/10", 50_000), (2.0, "alpha-1/10", 200_000)]
    sizes += [(1.0, f"b/{n}", 50_000) for n in range(2)]
    assert rules(check_memory(records(memory=sizes))) == ["memory"]
    ended = {"t": 1.0, "kind": "ended", "process": "alpha-1", "words": "oops"}
    assert rules(check_ended(records(log=[ended]))) == ["process-ended"]


# --- lists and alarms -------------------------------------------------------------------------


def list_at(seconds: float, **query: str) -> dict[str, Any]:
    return {
        "t": seconds,
        "verb": "list",
        "path": "/api/v1/configmaps",
        "query": {"limit": "100", **query},
        "agent": "fleetbus-watcher/alpha-1",
    }


def checkpoint(seconds: float, epoch: int, number: int = 1) -> list[dict[str, Any]]:
    value = f'{{"incarnation":{{"number":{number}}},"rank":{{"id":{epoch}}}}}'
    return [
        {"t": 0.0, "key": kv_incarnation("eu1"), "value": f'{{"number":{number}}}'},
        {"t": seconds, "key": kv_checkpoint("eu1", "core", "configmaps", ""), "value": value},
    ]


def audit(seconds: float, **value: Any) -> dict[str, Any]:
    key = kv_audit("eu1", "core", "configmaps", "")
    return {"t": seconds, "key": key, "value": json.dumps(value)}


def started(seconds: float) -> dict[str, Any]:
    return {"t": seconds, "kind": "start", "process": "alpha-1"}


def logged(seconds: float, event: str, **more: Any) -> dict[str, Any]:
    line = {"event": event, "resource": "v1/configmaps"} | more
    return line | {"timestamp": f"1970-01-01T00:00:{seconds:09.6f}Z"}


def test_w5_a_restart_with_a_checkpoint_that_lists_is_found():
    watcher_records = records(
        requests={"eu1": [list_at(1), list_at(2, **{"continue": "x"}), list_at(20)]},
        bucket=checkpoint(5, 100),
        all_log=[started(19)],
    )
    assert rules(check_lists(watcher_records)) == ["list-without-reason"]
    assert reasons_of(watcher_records)[0] == {"no checkpoint": 1, "none": 1}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"bucket": []}, "no checkpoint"),
        ({"bucket": [*checkpoint(5, 100), *checkpoint(0, 0, number=2)[:1]]}, "no checkpoint"),
        ({"logs": {"alpha-1": [logged(19.5, "resource_failed", reason="Expired")]}}, "too old"),
        ({"resync": 101}, "resync"),
        ({"bucket": [*checkpoint(5, 100), audit(18, id=7)]}, "audit"),
    ],
)
def test_w5_a_list_with_a_reason_is_none_too_many(more: dict[str, Any], reason: str):
    bucket = more.pop("bucket", checkpoint(5, 100))
    if (least := more.pop("resync", 0)) > 0:
        key = kv_resync("eu1", "core", "configmaps")
        bucket = [*bucket, {"t": 18.0, "key": key, "value": f'{{"minEpoch":{least}}}'}]
    requests = {"eu1": [list_at(20)]}
    watcher_records = records(requests=requests, bucket=bucket, all_log=[started(19)], **more)
    assert rules(check_lists(watcher_records)) == []
    assert reasons_of(watcher_records)[0] == {reason: 1}


def test_w9_an_alarm_without_a_cause_is_found():
    stream = [message("added", "a", 7), listed("a", 7, 2, number=2)]
    assert rules(check_alarms(records(*stream))) == ["false-alarm"]
    fault = {"t": 1.0, "kind": "fault", "phase": "begin"}
    restored = [{**fault, "fault": "etcd-restored", "cluster": "eu1"}]
    assert rules(check_alarms(records(*stream, all_log=restored))) == []
    assert rules(check_alarms(records(*stream, lost=True))) == []
