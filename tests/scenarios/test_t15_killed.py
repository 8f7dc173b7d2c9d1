"""T15: the distributor killed at the worst moments (kill -9), while placements and orders change.

`make faults-distributor` kills it at every named point; here it is killed on the bus, and beside
real API servers, too.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fleetbus_emulator.apiserver import Partition
from support.eventually import eventually
from support.rigs.distribution import AFTER_RETURN, HUB, IN_FULL, distribution
from support.rigs.distributor import POD
from support.rigs.fleet import Rig
from support.rigs.fleet_fixtures import ONE_OF_EACH

pytestmark = [IN_FULL, ONE_OF_EACH, pytest.mark.timeout(600)]
Open = Callable[..., Awaitable[Rig]]
PODS, MAPS = "v1/pods", "v1/configmaps"


def spec(pod: str, *clusters: str) -> dict[str, Any]:
    template = copy.deepcopy(POD)
    template["metadata"]["name"] = pod
    return {"template": template, "placement": placement(*clusters)}


def placement(*clusters: str) -> dict[str, Any]:
    return {"clusters": [{"name": name} for name in clusters]}


async def test_t15_a_distributor_that_is_killed_anywhere_leaves_nothing_behind(
    open_rig: Open,
) -> None:
    async with distribution(open_rig, started=False) as d, d.process() as child:
        for number, after in enumerate((0, 20, 40, 60, 80, 120, 160, 300)):
            name = f"killed-{number}"
            d.create(name, **spec(name, "t1", "t2", HUB))
            await asyncio.sleep(after / 1000)  # killed at any time
            child.kill()
            is_dropped = number % 2 == 0  # else deleted, while nobody is there
            if is_dropped:
                d.edit(name, placement=placement("t1", HUB))
            else:
                d.delete(name)
            child.respawn()
            if is_dropped:
                await d.applied("t1", HUB, name=name)
                await eventually(lambda name=name: d.where(PODS, name) == ["t1", HUB])
                d.delete(name)
            await d.gone(name)
            assert d.where(PODS, name) == []


async def test_t15_killed_after_the_intent_and_before_the_apply_nothing_is_left(
    open_rig: Open,
) -> None:
    async with distribution(open_rig, started=False) as d, d.process() as child:
        d.create("warm", **spec("warm", "t1", "t2"))
        await d.applied("t1", "t2", name="warm")
        for name in ("t1", "t2"):
            await d.rig.servers.partition(name, Partition.LOSE_REQUESTS)
        d.create(**spec("x", "t1", "t2"))
        await eventually(lambda: "intent" in d.status(), AFTER_RETURN)
        assert d.where(PODS, "x") == []
        child.kill()
        d.edit(placement=placement("t1"))
        for name in ("t1", "t2"):
            await d.rig.servers.heal(name)
        child.respawn()
        await d.applied("t1")
        await eventually(lambda: d.where(PODS, "x") == ["t1"])
        for name in ("x", "warm"):
            d.delete(name)
            await d.gone(name)
        assert d.where(PODS, "x") == d.where(PODS, "warm") == []


async def test_t15_killed_while_it_applies_nothing_is_made_twice_or_forgotten(
    open_rig: Open,
) -> None:
    async with distribution(open_rig, started=False) as d, d.process() as child:
        names = [f"m{number}" for number in range(60)]
        templates = [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in names
        ]
        d.create(templates=templates, placement=placement("t1", "t2", HUB))

        def made(cluster: str) -> dict[str, str]:
            metadata = [
                config_map["metadata"]
                for config_map in d.rig.clusters[cluster].list(MAPS, "default")
            ]
            return {entry["name"]: entry["uid"] for entry in metadata if entry["name"] in names}

        await eventually(lambda: made("t1"), AFTER_RETURN)
        child.kill()
        before = {name: made(name) for name in ("t1", "t2", HUB)}
        dropped = names[:30]
        d.edit(templates=templates[30:], placement=placement("t1", HUB))
        child.respawn()
        await d.applied("t1", HUB)
        await eventually(lambda: made("t2") == {}, AFTER_RETURN)
        for cluster in ("t1", HUB):
            await eventually(
                lambda cluster=cluster: set(made(cluster)) == {*names} - {*dropped}, AFTER_RETURN
            )
            unchanged = before[cluster].items() & made(cluster).items()
            assert len(unchanged) == len(before[cluster].keys() & made(cluster).keys())
        d.delete()
        await d.gone()
        assert not any(made(name) for name in ("t1", "t2", HUB))
