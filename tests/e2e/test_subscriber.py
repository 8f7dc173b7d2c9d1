"""The e2e campaign's subscriber: its view of the events, and the differences found in it."""

from __future__ import annotations

from typing import Any

import pytest
from nats.aio.msg import Msg

from e2e.compare import stream_differences
from e2e.subscriber import Place, Subscriber
from fleetbus_proto import codec
from fleetbus_proto.events import EpochEnd, Message
from fleetbus_proto.subjects import Verb
from support.wire.samples import event

SAMPLE = event()
PLACE: Place = (SAMPLE.cluster, f"{SAMPLE.group}/{SAMPLE.resource}")
KEY = f"{SAMPLE.namespace}/{SAMPLE.name}"


async def subscriber_of(*messages: Message) -> Subscriber:
    subscriber = Subscriber()
    for message in messages:
        await subscriber.receive(Msg(_client=None, data=codec.encode(message)))  # type: ignore[reportArgumentType]
    return subscriber


def said(verb: Verb, version: str, uid: str = "first", **changes: Any) -> Message:
    return event(verb=verb, resource_version=version, uid=uid, **changes)


async def test_a_late_copy_of_another_watcher_does_not_bring_an_object_back():
    subscriber = await subscriber_of(said(Verb.DELETED, "7"), said(Verb.MODIFIED, "6"))
    assert not subscriber.alive(PLACE)
    assert not stream_differences({PLACE: {}}, subscriber)


async def test_another_uid_takes_the_place_of_an_object():
    subscriber = await subscriber_of(said(Verb.ADDED, "5"), said(Verb.LISTED, "8", uid="second"))
    assert subscriber.alive(PLACE) == {KEY: ("second", "8")}


async def test_w17_with_a_type_all_of_its_objects_are_gone():
    end = EpochEnd(
        cluster=SAMPLE.cluster,
        incarnation=SAMPLE.incarnation,
        group=SAMPLE.group,
        version=SAMPLE.version,
        resource=SAMPLE.resource,
        kind=SAMPLE.kind,
        epoch=SAMPLE.epoch,
        count=0,
        removed=True,
        observed_at=SAMPLE.observed_at,
    )
    subscriber = await subscriber_of(said(Verb.ADDED, "5"), end)
    assert not stream_differences({}, subscriber)


@pytest.mark.parametrize(
    ("listed", "difference"),
    [
        ({KEY: ("first", "5"), "other/one": ("other", "4")}, "1 lost, like other/one"),
        ({}, f"1 not gone, like {KEY}"),
        ({KEY: ("first", "6")}, f"1 old, like {KEY}"),
        ({KEY: ("second", "5")}, f"1 old, like {KEY}"),
    ],
)
async def test_what_differs_from_the_lists_is_named(
    listed: dict[str, tuple[str, str]], difference: str
):
    subscriber = await subscriber_of(said(Verb.ADDED, "5"))
    (text,) = stream_differences({PLACE: listed}, subscriber)
    assert difference in text


async def test_the_deletion_of_an_object_that_is_there_is_found_also_when_it_came_back():
    subscriber = await subscriber_of(said(Verb.DELETED, "6"), said(Verb.LISTED, "9"))
    (text,) = stream_differences({PLACE: {KEY: ("first", "9")}}, subscriber)
    assert "`deleted` of 1 that are there" in text
