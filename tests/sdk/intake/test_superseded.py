"""A state that a newer one supersedes is one that no request can miss (promise 2, rule P8).

Runs read the snapshot, which other consumers write: what waits in line may have been read.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleetbus.bus.buffer import Buffered, Delivery, FairBuffer
from fleetbus.ownership import OWNER_ANNOTATION
from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Add
from fleetbus_proto.events import Event
from support.rigs.intake import (
    DB_APP,
    EU1,
    PODS,
    WEB_APP,
    IntakeRig,
    is_changed,
    seen,
    to_ref,
)


async def declared(rig: IntakeRig, **filters: Any) -> None:
    rig.controller.watch(PODS, **filters)
    await begin(rig)


async def begin(rig: IntakeRig) -> None:
    rig.start()
    await rig.snapshot.set_up("eu1", "us1")


def in_line(rig: IntakeRig, *events: Event) -> list[Event]:
    """The events that are handled, of those that wait in the buffer together."""
    line = FairBuffer(is_skippable=rig.router.is_skippable)
    for number, event in enumerate(events):
        line.add(Buffered(f"ack.{number}", 1, Delivery(event, number, "subject", {})))
    messages = [buffered.delivery.message for buffered in line.take()]
    return [event for event in messages if isinstance(event, Event)]


async def run_at(rig: IntakeRig, between: Event, last: Event, request: Request) -> None:
    """Somebody else applies both, and a run that something else woke reads the first."""
    await rig.snapshot.apply(between)
    await rig.queue.add([Add(request)])
    await rig.reconcile()
    await rig.snapshot.apply(last)
    rig.runs.clear()
    await rig.intake.take(in_line(rig, between, last))
    await rig.reconcile()


def own(name: str) -> Request:
    return Request("copier", "eu1", "prod", name)


def generation(version: int, number: int) -> Event:
    return EU1.modified("a", version, metadata={"generation": number})


async def test_p8_a_state_that_a_run_has_read_and_that_went_again_is_woken_to_a_predicate(
    rig: IntakeRig,
) -> None:
    await declared(rig, predicate=is_changed)
    await rig.tell(generation(1, 1))
    await run_at(rig, generation(2, 2), generation(3, 1), own("a"))
    assert rig.runs == [seen("a", 3)]


async def test_p8_who_was_named_by_a_state_that_went_again_is_woken(rig: IntakeRig) -> None:
    await declared(rig, map=to_ref)
    first, between, last = (
        EU1.modified("a", version, body=msgspec.json.encode({"metadata": {"ref": ref}}))
        for version, ref in [(1, "x"), (2, "y"), (3, "x")]
    )
    await rig.tell(first)
    await run_at(rig, between, last, Request("copier", "us1", "x", "y"))
    assert {run.place for run in rig.runs} == {"us1/x/x", "us1/x/y"}


async def test_p8_an_owner_that_an_object_had_for_a_moment_is_woken(rig: IntakeRig) -> None:
    rig.controller.watch_owned(PODS)
    await begin(rig)

    def owned(version: int, owner: str) -> Event:
        place = {"clusterName": "us1", "namespace": "x", "name": owner, "uid": f"uid-{owner}"}
        text = msgspec.json.encode({"apiVersion": "v1", "kind": "Job", **place}).decode()
        return EU1.modified("a", version, metadata={"annotations": {OWNER_ANNOTATION: text}})

    await rig.tell(owned(1, "x"))
    await run_at(rig, owned(2, "y"), owned(3, "x"), Request("copier", "us1", "x", "y"))
    assert {run.place for run in rig.runs} == {"us1/x/x", "us1/x/y"}


async def test_t6_what_matched_for_a_moment_and_was_read_then_has_left(rig: IntakeRig) -> None:
    await declared(rig, selector="app=web")
    await rig.tell(EU1.modified("a", 1, metadata=DB_APP))
    matching, other = EU1.modified("a", 2, metadata=WEB_APP), EU1.modified("a", 3, metadata=DB_APP)
    await run_at(rig, matching, other, own("a"))
    assert rig.runs == [seen("a", 3, left=True)]


def labelled(version: int) -> Event:
    return EU1.modified("a", version, metadata=WEB_APP)


@pytest.mark.parametrize("filters", [{}, {"selector": "app=web"}, {"namespaces": ["prod"]}])
async def test_a_state_that_nobody_can_miss_is_skipped(
    rig: IntakeRig, filters: dict[str, Any]
) -> None:
    await declared(rig, **filters)
    assert in_line(rig, labelled(1), labelled(2)) == [labelled(2)]


async def test_b11_of_an_object_without_a_body_nobody_knows_what_it_is_missed_for(
    rig: IntakeRig,
) -> None:
    await declared(rig, selector="app=web")
    large = EU1.modified("a", 2, body=None)
    assert in_line(rig, labelled(1), large, labelled(3)) == [labelled(1), large, labelled(3)]
