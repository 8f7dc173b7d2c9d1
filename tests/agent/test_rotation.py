"""Calls through an agent while it replaces its nkey (rule S3): none is lost."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus.agent_calls.calls import agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.agents.nkeys import public_key
from fleetbus.agents.records import read_record
from fleetbus.bus.connection import connected
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.response import Limits
from fleetbus_emulator.apiserver.faults import Delay
from support.eventually import eventually
from support.objects import config_map
from support.rigs.agent_callers import calling
from support.rigs.agent_trust import MEMBER_SECRET, QUICK, RECORDS, TrustRig, monitor_of, trust_rig

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

pytestmark = pytest.mark.fleet(["hub", "eu1"], workloads=False)

MAPS = "v1/configmaps"
NAMESPACE, _, NAME = MEMBER_SECRET.partition("/")
WITHIN = timedelta(seconds=60)
"""For a rotation, on a machine with other work."""


def kept_seed(rig: TrustRig) -> str:
    secret = rig.fleet["eu1"].get("v1/secrets", NAMESPACE, NAME)
    assert secret is not None
    return base64.b64decode(secret["data"]["seed"]).decode()


def make_due(rig: TrustRig) -> None:
    """The nkey is as old as it may become; the next check of the agent replaces it."""
    rig.later = timedelta(minutes=11)
    since = (datetime.now(UTC) - timedelta(days=31)).isoformat()
    data = {"since": base64.b64encode(since.encode()).decode()}
    rig.fleet["eu1"].patch("v1/secrets", NAMESPACE, NAME, {"data": data})


def has_dropped(rig: TrustRig, seed: str) -> bool:
    """Whether the hub knows another nkey only, and the server has loaded that."""
    secret = rig.fleet["hub"].get("v1/secrets", RECORDS, "eu1-agent")
    assert secret is not None
    record = read_record(secret)
    return public_key(seed) not in (record.key, record.next_key) and rig.is_loaded()


def connections(folder: Path) -> Counter[str]:
    """The nkeys of the agent's connections, as the server has them."""
    with urllib.request.urlopen(f"{monitor_of(folder)}/connz?auth=true") as answer:  # noqa: S310 -- loopback
        listed: list[dict[str, Any]] = json.load(answer)["connections"]
    agents = [each for each in listed if each.get("name") == "agent.eu1"]
    return Counter(each.get("authorized_user", "") for each in agents)


@asynccontextmanager
async def caller(rig: TrustRig) -> AsyncGenerator[KubeClient]:
    async with (
        connected(rig.server.access("distributor"), name="distributor") as bus,
        agent_calls(bus, "distributor") as calls,
        client_through_agent(calls, "eu1") as client,
    ):
        yield client


@pytest.mark.slow
async def test_s3_a_rotation_costs_no_call(fleet: EmulatedFleet, tmp_path: Path):
    timing = replace(QUICK, drop_after=timedelta(seconds=3))
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        async with rig.agent("eu1", rig.join("eu1"), timing=timing), caller(rig) as client:
            old = kept_seed(rig)
            async with calling({"eu1": client}, "m") as all_outcomes:
                outcomes = all_outcomes["eu1"]
                await eventually(lambda: len(outcomes.answered) > 10)
                make_due(rig)
                await eventually(lambda: has_dropped(rig, old), WITHIN)
                many = len(outcomes.answered) + 40
                await eventually(lambda: outcomes.failed or len(outcomes.answered) > many, WITHIN)
        assert outcomes.answered == outcomes.begun
        names = {obj["metadata"]["name"] for obj in fleet["eu1"].list(MAPS, "default")}
        assert outcomes.answered <= names


@pytest.mark.slow
async def test_s3_calls_under_way_end_on_the_connection_that_they_began_on(
    fleet: EmulatedFleet, tmp_path: Path
):
    timing = replace(QUICK, drop_after=timedelta(hours=1))
    for number in range(16):
        text = base64.b64encode(random.Random(number).randbytes(300_000)).decode()  # packs badly
        fleet["eu1"].create(MAPS, config_map(f"large-{number}") | {"data": {"k": text}}, "default")
    async with (
        trust_rig(fleet, tmp_path, ["eu1"]) as rig,
        rig.agent("eu1", rig.join("eu1"), timing=timing),
        caller(rig) as client,
    ):
        old = public_key(kept_seed(rig))
        delay = fleet["eu1"].add_fault(
            Delay(timedelta(seconds=5), after_commit=True), verb="create", count=1
        )
        creating = asyncio.create_task(client.create(MAPS, config_map("slow")))
        listing = await client.stream("/api/v1/configmaps", limits=Limits())
        chunks = listing.chunks()
        size = len(await anext(chunks))
        await eventually(lambda: delay.hits)
        make_due(rig)
        await eventually(lambda: public_key(kept_seed(rig)) != old, WITHIN)
        new = public_key(kept_seed(rig))
        await eventually(lambda: connections(tmp_path) == {old: 1, new: 1}, WITHIN)
        # New calls go to the new connection while the old ones are under way.
        await asyncio.gather(*(client.create(MAPS, config_map(f"new-{n}")) for n in range(20)))
        assert (await creating)["metadata"]["name"] == "slow"
        async for chunk in chunks:
            size += len(chunk)
        listing.release()
        assert size > 16 * 300_000
        await eventually(lambda: connections(tmp_path) == {new: 1}, WITHIN)
        assert await client.get(MAPS, "default", "slow")
