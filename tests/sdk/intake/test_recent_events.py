"""The object that woke a run is read from the event, once, and only if nothing newer woke it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.intake import recent_events
from fleetbus.intake.recent_events import RecentEvents
from fleetbus.reconcile import Request
from fleetbus.run.current import ObjectRef, Run
from fleetbus_proto.events import Event
from support.stores.snapshot import Source

SOURCE = Source(incarnation=7)
WEB = ObjectRef("eu1", "core/pods", "prod", "web")


@pytest.fixture
def recent() -> RecentEvents:
    return RecentEvents("core/pods")


def added(name: str, version: int, **fields: Any) -> Event:
    return msgspec.structs.replace(SOURCE.added(name, version), **fields)


def test_p10_it_is_given_once_at_exactly_this_version(recent: RecentEvents):
    event = added("web", 10)
    recent.note([event])
    assert recent.take(WEB, (7, "9")) == b""
    assert recent.take(WEB, (8, "10")) == b"", "another incarnation is another history"
    assert recent.take(WEB, (7, "10")) == event.object
    assert recent.take(WEB, (7, "10")) == b""


@pytest.mark.parametrize(
    "newer",
    [
        SOURCE.deleted("web", 11),
        added("web", 11, object=None),
        added("web", 11, degraded="oversized"),
    ],
    ids=["deleted", "without-body", "incomplete"],
)
def test_a_state_that_cannot_be_given_replaces_the_last_one(recent: RecentEvents, newer: Event):
    recent.note([added("web", 10), newer])
    assert recent.take(WEB, (7, "10")) == b""
    assert recent.take(WEB, (7, "11")) == b""


def test_other_resources_are_not_kept():
    recent = RecentEvents("apps/deployments")
    recent.note([added("web", 10)])
    assert recent.take(WEB, (7, "10")) == b""


def test_a_run_that_begins_later_reads_the_snapshot(
    recent: RecentEvents, monkeypatch: pytest.MonkeyPatch
):
    recent.note([added("web", 10)])
    monkeypatch.setattr(recent_events, "KEPT", timedelta())
    assert recent.take(WEB, (7, "10")) == b""


def test_what_nobody_takes_is_forgotten(recent: RecentEvents, monkeypatch: pytest.MonkeyPatch):
    big = b'{"a": "' + b"x" * 100 + b'"}'
    monkeypatch.setattr(recent_events, "MAX_BYTES", 3 * len(big))
    recent.note([added(f"pod-{n}", 10, object=big) for n in range(10)])
    numbers = [n for n in range(10) if recent.take(WEB._replace(name=f"pod-{n}"), (7, "10"))]
    assert numbers == [7, 8, 9], "the newest are kept"


def test_a_run_offers_its_own_object_once():
    run = Run(Request("c", "eu1", "prod", "web"), own="core/pods", offered=b"{}")
    assert run.take_offered(WEB._replace(name="db")) == b""
    assert run.take_offered(WEB) == b"{}"
    assert run.take_offered(WEB) == b""
