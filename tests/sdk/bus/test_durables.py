"""Durables are created once, compared, and never changed by others (rule B12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import (
    consumer_info,
    ensure_consumer,
    filters_for,
)
from fleetbus.bus.jetstream import call_jetstream, ensure_bucket, ensure_stream
from fleetbus.errors import BusError
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, STREAM_SUBJECTS

PODS = ["fleetbus.events.*.core.pods.>"]
BOTH = ["fleetbus.events.*.apps.deployments.>", *PODS]


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        await ensure_stream(client)
        await ensure_bucket(client)
        await ensure_consumer(client, PROJECTOR, list(STREAM_SUBJECTS))
        yield client


def test_filters_are_sorted_and_name_no_subject_twice() -> None:
    pods, deployments = parse_resource("v1/pods"), parse_resource("apps/v1/deployments")
    assert filters_for([pods, deployments, pods]) == BOTH
    assert filters_for([pods, None]) == [EVENTS_ALL]


async def test_a_durable_of_the_whole_stream_has_no_filter(bus: Bus) -> None:
    """NATS takes many times as long to read a backlog for a consumer with several filters."""
    info = await consumer_info(bus, PROJECTOR)
    assert info is not None
    assert not {"filter_subject", "filter_subjects"} & info["config"].keys()
    await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))


async def test_b12_a_durable_with_another_configuration_is_refused_and_not_changed(
    bus: Bus,
) -> None:
    config = {
        "durable_name": "drifted",
        "ack_policy": "explicit",
        "filter_subjects": PODS,
        "max_deliver": 3,
    }
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    await call_jetstream(bus, f"CONSUMER.CREATE.{STREAM}.drifted", body)
    with pytest.raises(BusError, match=r"consumer drifted: field .* is needed"):
        await ensure_consumer(bus, "drifted", PODS)
    info = await consumer_info(bus, "drifted")
    assert info is not None
    assert info["config"]["max_deliver"] == 3


async def test_b12_the_limit_of_the_projector_follows_the_number_of_shards_and_nothing_is_forgotten(
    bus: Bus,
) -> None:
    await ensure_consumer(bus, "sharded", PODS, start=7, shards=4)
    before = await consumer_info(bus, "sharded")
    await ensure_consumer(bus, "sharded", PODS, shards=2)
    after = await consumer_info(bus, "sharded")
    assert before is not None
    assert after is not None
    assert before["config"].pop("max_ack_pending") == 2 * after["config"].pop("max_ack_pending")
    assert after["config"] == before["config"]
    assert (after["created"], after["ack_floor"]) == (before["created"], before["ack_floor"])
