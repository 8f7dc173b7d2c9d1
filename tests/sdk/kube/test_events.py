"""Kubernetes Events: repeats are counted, too many are dropped, none fails a run."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from fleetbus.fleet.cluster import Cluster
from fleetbus.reconcile import Request
from fleetbus.run.current import Run, running
from support.objects import pod
from support.rigs.one_cluster import PODS, Rig, one_cluster

REQUEST = Request("keeper", "eu1", "prod", "web")


@pytest.fixture
async def rig(redis: Redis, tmp_path: pathlib.Path) -> AsyncGenerator[Rig]:
    async with one_cluster(redis, tmp_path) as opened:
        opened.server.create(PODS, pod("web"), "prod")
        yield opened


def events(rig: Rig, namespace: str = "prod") -> list[dict[str, Any]]:
    return rig.server.list("v1/events", namespace)


async def say(cluster: Cluster, obj: dict[str, Any], message: str = "hello") -> None:
    with running(Run(REQUEST)):
        await cluster.event(obj, reason="Seen", message=message)


async def a_read_pod(rig: Rig) -> dict[str, Any]:
    obj = await rig.cluster.live.get(PODS, "prod", "web")
    assert obj is not None
    return obj


async def test_t7_repeats_raise_the_count_of_one_event(rig: Rig) -> None:
    pod = await a_read_pod(rig)
    for message in ("hello", "hello", "bye", "hello"):
        await say(rig.cluster, pod, message)
    by_message = {event["message"]: event for event in events(rig)}
    assert {message: event["count"] for message, event in by_message.items()} == {
        "hello": 3,
        "bye": 1,
    }
    hello = by_message["hello"]
    assert hello["involvedObject"]["uid"] == pod["metadata"]["uid"]
    assert (hello["type"], hello["reason"]) == ("Normal", "Seen")
    assert hello["source"] == {"component": "fleetbus-keeper"}
    assert hello["firstTimestamp"] <= hello["lastTimestamp"]


async def test_processes_that_say_the_same_count_together(rig: Rig) -> None:
    pod = await a_read_pod(rig)
    first, two = rig.cluster, Cluster(rig.cluster.info, rig.fleet.reader, rig.cluster.live)
    for cluster in (first, two, first, two):
        await say(cluster, pod)
    await asyncio.gather(say(first, pod), say(two, pod))
    assert [event["count"] for event in events(rig)] == [6]


async def test_an_event_whose_hour_is_over_begins_again(rig: Rig) -> None:
    pod = await a_read_pod(rig)
    await say(rig.cluster, pod)
    name = events(rig)[0]["metadata"]["name"]
    rig.server.delete("v1/events", "prod", name)
    await say(rig.cluster, pod)
    assert [event["count"] for event in events(rig)] == [1]


async def test_an_event_of_a_cluster_scoped_object_is_in_default(rig: Rig) -> None:
    namespace = await rig.cluster.live.get("v1/namespaces", "", "prod")
    assert namespace is not None
    await say(rig.cluster, namespace)
    assert [event["involvedObject"]["kind"] for event in events(rig, "default")] == ["Namespace"]


async def test_too_much_about_one_object_is_dropped_and_counted(rig: Rig) -> None:
    pod, before = await a_read_pod(rig), counted("limited")
    for index in range(30):
        await say(rig.cluster, pod, f"message {index}")
    assert len(events(rig)) == 25
    assert counted("limited") == before + 5


async def test_what_cannot_be_said_fails_nothing_and_is_counted(rig: Rig) -> None:
    before = counted("failed")
    ghost = pod("ghost", namespace="nowhere")
    await say(rig.cluster, ghost)
    with running(Run(REQUEST, holds=lambda: False)):
        await rig.cluster.event(await a_read_pod(rig), reason="Seen", message="too late")
    assert counted("failed") == before + 2
    assert events(rig) == []


async def test_words_longer_than_an_event_may_be_are_cut(rig: Rig) -> None:
    await say(rig.cluster, await a_read_pod(rig), "x" * 5000)
    assert [len(event["message"]) for event in events(rig)] == [1024]


def counted(outcome: str) -> float:
    labels = {"controller": "keeper", "outcome": outcome}
    return REGISTRY.get_sample_value("fleetbus_kube_events_total", labels) or 0.0
