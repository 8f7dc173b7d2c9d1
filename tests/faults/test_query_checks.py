"""Each check of the query API's campaign finds what it is for, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from faults.queries.checks import (
    ANSWER_SECONDS,
    INFORMER_BACKOFF_SECONDS,
    check_caches,
    check_ended,
    check_losses,
    check_order,
    check_queries,
    check_settled,
    check_silence,
    check_statuses,
    fold,
)
from faults.queries.main import command_of, plans_of, read_arguments
from faults.queries.objects import Seen, key_of, seen_of
from faults.queries.records import QueryRecords
from faults.queries.settings import CLIENTS, SILENT_SECONDS, STORE_WIPED
from faults.rig.records import SETTLED_SECONDS, Json

KEY = "alpha/default/n1"
ALL, WEB = "kube-fleet", "kube-fleet-web"
STATE = ("u1", 7, "d7", True)


def rules(violations: Any) -> list[str]:
    return [violation.rule for violation in violations]


def line(kind: str, t: float, **more: Any) -> Json:
    return {"t": t, "kind": kind, **more}


def event(t: float, number: int, kind: str = "MODIFIED", key: str = KEY) -> Json:
    return line("event", t, type=kind, key=key, seen=["u1", number, f"d{number}", True])


def listed(t: float, number: int, **more: Any) -> Json:
    return line("list", t, objects={KEY: ["u1", number, f"d{number}", True]}, **more)


def fault(kind: str, begin: float, end: float) -> list[Json]:
    return [
        line("fault", t, fault=kind, phase=phase) for phase, t in (("begin", begin), ("end", end))
    ]


def records(*lines: Json, client: str = ALL, **more: Any) -> QueryRecords:
    """Records of one client, and a cluster that has one object and is written to each second."""
    meta = {"began": 0.0, "stopped": 100.0, "ended": 101.0, "agreed": {client: 1.0}}
    fields: Json = {
        "meta": meta | more.pop("meta", {}),
        "final": {KEY: Seen(*STATE)},
        "caches": {client: {KEY: Seen(*STATE)}},
        "clients": {client: list(lines) or [listed(1, 7)]},
        "log": [],
        "commits": {"alpha": [float(t) for t in range(100)], "beta": [], "gamma": []},
        "memory": [],
    }
    return QueryRecords(**fields | more)


def test_i1_a_client_that_holds_what_its_cluster_has_is_right():
    good = records(listed(1, 3), line("open", 2, version=3), event(3, 7))
    assert check_queries(good) == []
    assert rules(check_caches(records(listed(1, 3), event(2, 7, "DELETED"), event(3, 7)))) == []


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([listed(1, 7), event(2, 7, "DELETED")], "lost"),
        ([listed(1, 6)], "old"),
        ([listed(1, 7), event(2, 5, key="beta/default/n1")], "extra"),
    ],
)
def test_i1_what_a_client_got_is_lost_old_or_left_over(lines: list[Json], kind: str):
    assert rules(check_caches(records(*lines))) == [f"{ALL}-events-{kind}"]


@pytest.mark.parametrize(
    ("cache", "kind"),
    [
        ({}, "lost"),
        ({KEY: Seen("u1", 7, "another", True)}, "old"),
        ({KEY: Seen("u2", 7, "d7", True)}, "old"),
        ({KEY: Seen(*STATE), "alpha/default/n2": Seen(*STATE)}, "extra"),
    ],
)
def test_i1_what_a_client_holds_is_lost_old_or_left_over(cache: dict[str, Seen], kind: str):
    assert rules(check_caches(records(caches={ALL: cache}))) == [f"{ALL}-cache-{kind}"]


def test_i1_a_client_with_a_selector_holds_what_it_selects_and_nothing_else():
    other = {KEY: Seen("u1", 7, "d7", False)}
    query_records = records(listed(1, 7), client=WEB, final=other)
    assert rules(check_caches(query_records)) == [f"{WEB}-cache-extra", f"{WEB}-events-extra"]
    left = [listed(1, 6), event(2, 7, "DELETED")]
    assert check_queries(records(*left, client=WEB, final=other, caches={WEB: {}})) == []


def test_a_list_of_an_informer_begins_no_new_cache_and_one_of_events_does():
    before = [listed(1, 3), line("list", 2)]
    assert [*fold(before)] == [KEY]
    assert fold([listed(1, 3), line("list", 2, replaces=True)]) == {}


@pytest.mark.parametrize(("took", "wrong"), [(1.0, 0), (SETTLED_SECONDS + 1.0, 1), (None, 1)])
def test_i1_every_client_agrees_in_time(took: float | None, wrong: int):
    agreed = {} if took is None else {ALL: took}
    assert rules(check_settled(records(meta={"agreed": agreed}))) == ["not-settled"] * wrong


def test_an_informer_has_the_time_that_its_own_back_off_takes():
    meta = {"agreed": {"informer-alpha": SETTLED_SECONDS + INFORMER_BACKOFF_SECONDS - 1.0}}
    assert rules(check_settled(records(client="informer-alpha", meta=meta))) == []


@pytest.mark.parametrize(
    "later",
    [
        event(3, 5),
        listed(3, 5),
        event(3, 6, "DELETED"),
        event(2.5, 7, "DELETED") | {"then": event(3, 7)},
    ],
)
def test_a5_an_object_that_goes_back_in_time_is_found(later: Json):
    then = later.pop("then", None)
    lines = [listed(1, 4), event(2, 7), later, *([then] if then else [])]
    assert rules(check_order(records(*lines))) == ["back-in-time"]


def test_a5_what_comes_twice_or_is_another_object_of_the_name_goes_on():
    lines = [listed(1, 4), event(2, 7), event(3, 7), event(4, 7, "DELETED"), event(5, 8, "ADDED")]
    assert rules(check_order(records(*lines))) == []
    known_by_name = event(6, 0, "DELETED")
    assert rules(check_order(records(*lines, known_by_name))) == []


def test_p13_a_list_of_a_store_that_is_filled_again_may_be_older_once():
    wiped: Json = {"log": fault(STORE_WIPED, 2.0, 3.0)}
    refilled = [listed(1, 7), listed(4, 5), event(5, 6)]
    assert rules(check_order(records(*refilled, **wiped))) == []
    assert rules(check_order(records(*refilled, event(6, 5), **wiped))) == ["back-in-time"]
    lacking = [listed(1, 7), line("list", 4), event(5, 7, "DELETED"), event(6, 7, "ADDED")]
    assert rules(check_order(records(*lacking, **wiped))) == []
    assert rules(check_order(records(*lacking))) == ["back-in-time"]
    late = [listed(1, 7), listed(4 + SETTLED_SECONDS, 5)]
    assert rules(check_order(records(*late, **wiped))) == ["back-in-time"]


def test_p13_a_watch_that_outlives_the_store_is_found():
    begin = [listed(1, 7), line("open", 2, version=7)]
    wiped: Json = {"log": fault(STORE_WIPED, 3.0, 4.0)}
    answered = [*begin, line("gone", 5)]
    assert rules(check_losses(records(*answered, **wiped))) == []
    for end in (line("gone", 5 + ANSWER_SECONDS), event(5 + ANSWER_SECONDS, 7)):
        assert rules(check_losses(records(*begin, end, **wiped))) == ["loss-unanswered"]


def test_p13_a_version_of_a_lost_store_is_answered_with_410():
    begin = [listed(1, 7), line("open", 5, version=7)]
    wiped: Json = {"log": fault(STORE_WIPED, 3.0, 4.0)}
    assert rules(check_losses(records(*begin, line("gone", 5), **wiped))) == []
    assert rules(check_losses(records(*begin, line("end", 6), **wiped))) == []
    assert rules(check_losses(records(*begin, event(6, 7), **wiped))) == ["version-of-lost-store"]
    anew = [listed(1, 7), line("open", 5, version=0), event(6, 7)]
    assert rules(check_losses(records(*anew, **wiped))) == []


def test_a6_a_watch_that_is_silent_while_its_cluster_changes_is_found():
    begin = [listed(1, 7), line("open", 2, version=7)]
    late = event(2 + 3 * SILENT_SECONDS, 8)
    assert rules(check_silence(records(*begin, late))) == ["silent"]
    asleep = records(*begin, late, commits={"alpha": [], "beta": [], "gamma": []})
    assert rules(check_silence(asleep)) == []


def test_a6_silence_during_faults_is_none():
    lines = [listed(1, 7), line("open", 2, version=7), event(2 + 3 * SILENT_SECONDS, 8)]
    log = [
        *fault("nats-killed", SILENT_SECONDS / 2, SILENT_SECONDS),
        *fault("valkey-killed", 2 * SILENT_SECONDS - 1, 2 * SILENT_SECONDS + 5),
    ]
    assert rules(check_silence(records(*lines, log=log))) == []


@pytest.mark.parametrize(("status", "wrong"), [(503, []), (404, []), (500, ["status"])])
def test_a_fault_is_not_answered_as_a_mistake(status: int, wrong: list[str]):
    assert rules(check_statuses(records(line("refused", 1, status=status)))) == wrong


def test_a_service_that_ends_by_itself_is_found():
    log = [line("ended", 1, process="api-1", words="oops")]
    assert rules(check_ended(records(log=log))) == ["process-ended"]


def test_objects_are_equal_however_a_client_renders_them():
    plain: Json = {
        "kind": "ConfigMap",
        "metadata": {
            "name": "n1",
            "namespace": "default",
            "uid": "u1",
            "resourceVersion": "4",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{}],
            "labels": {"app": "web"},
        },
        "data": {"n": "7", "filler": ""},
    }
    metadata: Json = plain["metadata"]
    typed: Json = {
        "metadata": metadata
        | {
            "resourceVersion": "99",
            "managedFields": None,
            "creationTimestamp": "2026-01-01T00:00:00+00:00",
            "annotations": {"fleetbus.dev/cluster": "alpha"},
        },
        "data": plain["data"],
    }
    assert seen_of(plain) == seen_of(typed)
    assert seen_of(plain)[:2] == ("u1", 7)
    assert key_of(plain, "alpha") == key_of(typed) == KEY
    assert seen_of(plain | {"data": {"n": "7", "filler": "x"}}) != seen_of(plain)


def test_the_clients_are_of_every_kind_with_a_selector_and_without():
    assert {plan.kind for plan in CLIENTS} == {"informer", "asyncio", "kubectl", "kube", "events"}
    for kind in ("informer", "asyncio", "kube", "events"):
        assert {bool(plan.selector) for plan in CLIENTS if plan.kind == kind} == {True, False}


@pytest.mark.parametrize(
    "arguments",
    [["--seed", "7", "--decks", "2"], ["--seed", "7", "--faults", "api-killed,nats-wiped"]],
)
def test_a_seed_is_repeated_by_one_command(arguments: list[str]):
    plans = plans_of(read_arguments(arguments))
    words = command_of(plans[0], cut=False).split()
    assert words[:3] == ["python", "tests/run.py", "faults.queries"]
    assert plans_of(read_arguments(words[3:])) == plans


def test_the_cut_has_a_fresh_seed_and_tells_it():
    plans = [plans_of(read_arguments(["--cut"]))[0] for _ in range(5)]
    assert len({plan.seed for plan in plans}) > 1
    words = command_of(plans[0], cut=True).split()
    assert plans_of(read_arguments(words[3:])) == plans[:1]
