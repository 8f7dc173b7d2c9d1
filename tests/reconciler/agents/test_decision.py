"""Decisions about registrations (rule S3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, read_record, record_secret
from fleetbus.process.clock import rfc3339
from fleetbus_proto.registration import ACCEPTED, PENDING, REFUSED, Registration
from fleetbus_reconciler.agents.decision import REFUSALS, Circumstances, decide, noted_refusal
from support.rows import each_row

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ONE, KEY, NEXT, NEW, OTHER = (public_key(make_seed()) for _ in range(5))


def at(minutes: float) -> str:
    return rfc3339(NOW + timedelta(minutes=minutes), timespec="seconds")


JOINING = {"one_time": ONE, "expires": at(1)}
IN_USE = {"key": KEY, "changed": at(-11)}
ROTATING = {**IN_USE, "next_key": NEXT, "changed": at(-1)}


@each_row(
    ("record", "signer", "key", "given", "state", "changes"),
    [
        (JOINING, ONE, NEW, {}, ACCEPTED, {"key": NEW, "one_time": "", "expires": ""}),
        ({"one_time": ONE, "expires": at(0)}, ONE, NEW, {}, REFUSED, None),
        (JOINING, ONE, NEW, {"approval": True}, PENDING, {"pending": NEW, "one_time": ""}),
        (JOINING, ONE, NEW, {"uid": "b"}, PENDING, {"pending": NEW, "uid": "a"}),
        (JOINING, ONE, NEW, {"uid": "a"}, ACCEPTED, {"key": NEW, "uid": "a"}),
        (JOINING, ONE, OTHER, {"taken": frozenset({OTHER})}, REFUSED, None),
        # An agent that is installed anew replaces the one before, once it is accepted.
        ({**ROTATING, **JOINING}, ONE, NEW, {}, ACCEPTED, {"key": NEW, "next_key": ""}),
        ({**IN_USE, **JOINING}, ONE, NEW, {"approval": True}, PENDING, {"key": KEY}),
        (IN_USE, KEY, NEW, {}, ACCEPTED, {"key": KEY, "next_key": NEW}),
        ({**IN_USE, "changed": at(-9)}, KEY, NEW, {}, REFUSED, None),
        ({**IN_USE, "changed": at(999)}, KEY, NEW, {}, REFUSED, None),
        (ROTATING, KEY, NEXT, {}, ACCEPTED, None),
        (ROTATING, KEY, KEY, {}, ACCEPTED, None),
        (ROTATING, NEXT, NEXT, {}, ACCEPTED, {"key": NEXT, "next_key": ""}),
        (ROTATING, NEXT, NEW, {}, REFUSED, None),
        (IN_USE, ONE, NEW, {}, REFUSED, None),
        (IN_USE, OTHER, OTHER, {}, REFUSED, None),
        ({"pending": NEW}, NEW, NEW, {}, REFUSED, None),
        ({}, "", NEW, {}, REFUSED, None),
    ],
)
def test_s3_what_a_signer_may_do_follows_from_the_record(
    record: dict[str, str],
    signer: str,
    key: str,
    given: dict[str, Any],
    state: str,
    changes: dict[str, str] | None,
):
    before = AgentRecord(cluster="eu1", **record)
    values: dict[str, Any] = {"now": NOW, "approval": False, **given}
    circumstances = Circumstances(**values)
    registration = Registration(cluster="eu1", key=key, uid="a", instance="agent\x1b[2J")
    decision = decide(before, signer, registration, circumstances)
    assert decision.state == state, decision.message
    assert (decision.record is None) == (changes is None)
    if decision.record is not None and changes is not None:
        assert {name: getattr(decision.record, name) for name in changes} == changes
        assert decision.record.instance in ("", "agent[2J")


def test_a_refusal_is_noted_once_and_at_most_one_a_minute():
    first = noted_refusal(AgentRecord(cluster="eu1", **IN_USE), "one", NOW)
    assert first is not None
    assert (first.key, first.refused, first.refused_at) == (KEY, "one", at(0))
    assert noted_refusal(first, "another", NOW + REFUSALS / 2) is None
    assert noted_refusal(first, "one", NOW + 2 * REFUSALS) is None
    second = noted_refusal(first, "another" * 100, NOW + 2 * REFUSALS)
    assert second is not None
    assert noted_refusal(second, "another" * 100, NOW + 4 * REFUSALS) is None
    assert read_record(record_secret(second, "fleetbus-clusters")) == second
