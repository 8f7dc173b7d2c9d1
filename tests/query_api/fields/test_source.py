"""When bodies are read for a question alone, and when columns are built instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.rigs.query_api import QueryApi

PODS = "core/pods"
SIZE = 4_000
"""Bytes of a body, about."""


async def fill(api: QueryApi, **counts: int) -> None:
    """Add so many pods to each of some namespaces."""
    await api.add_cluster("c1", PODS)
    for namespace, count in counts.items():
        for number in range(count):
            labels = {"app": "web" if number < 2 else "db"}
            spec = {"node": f"n{number}", "text": "x" * SIZE}
            name = f"p{number}"
            await api.add("c1", PODS, name, namespace=namespace, labels=labels, spec=spec)


async def read_by(api: QueryApi, **query: str) -> float:
    """Ask for nothing that is there; returns how many bodies the store has sent, about."""
    before = (await api.snapshot.redis.info("stats"))["total_net_output_bytes"]
    assert await api.names(fieldSelector="spec.node=none", **query) == []
    after = (await api.snapshot.redis.info("stats"))["total_net_output_bytes"]
    return round((int(after) - int(before)) / SIZE)


async def test_the_objects_of_a_small_fleet_are_read_once(api: QueryApi):
    await fill(api, prod=40, dev=10)
    assert 50 <= await read_by(api) < 70
    assert await read_by(api) < 10
    assert await read_by(api, namespace="dev") < 10


async def test_few_of_many_are_read_alone_until_columns_would_have_cost_as_much(api: QueryApi):
    await fill(api, prod=40, dev=10)
    for _ in range(4):
        assert 10 <= await read_by(api, namespace="dev") < 20
    assert 50 <= await read_by(api, namespace="dev") < 70
    assert await read_by(api, namespace="dev") < 10
    assert await read_by(api) < 10


async def test_few_by_a_label_are_read_alone(api: QueryApi):
    await fill(api, prod=50)
    for _ in range(5):
        assert await read_by(api, labelSelector="app=web") < 10
