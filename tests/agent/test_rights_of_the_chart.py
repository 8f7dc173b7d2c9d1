"""Calls through an agent that joined, with the rights that the chart gives (rules S3, S4)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetbus.agent_calls.calls import agent_calls
from fleetbus.agent_calls.transport import client_through_agent
from fleetbus.bus.connection import connected
from fleetbus.errors import Unreachable
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.access.nats import NatsAccess
from fleetbus_agent.gateway import Gateway
from fleetbus_agent.load import Load
from fleetbus_agent.member_server import MemberServer
from fleetbus_agent.settings import AgentSettings
from fleetbus_cli.doctor.checks import calls_to_agents
from support.eventually import eventually
from support.objects import config_map
from support.rigs.agent_trust import trust_rig

if TYPE_CHECKING:
    from fleetbus_emulator.fleet import EmulatedFleet

pytestmark = pytest.mark.fleet(["hub", "eu1"], workloads=False)

CALLERS = {
    "distributor": "distributor",
    "projector": "projector",
    "reconciler-shop": "reconciler.shop",
}
"""Names of the connections of processes, by their user in the chart."""
MAPS = "v1/configmaps"


async def doctor_asks_an_agent(access: NatsAccess, user: str) -> None:
    """In a pod of a component `fleetbus doctor` has the rights of that, and its inboxes."""
    in_pod = replace(access, inbox_prefix=f"_INBOX.{user}")
    async with calls_to_agents(in_pod) as calls:
        assert calls is not None
        async with client_through_agent(calls, "eu1") as client:
            assert await client.get_json("/version")


async def test_s3_s4_each_component_calls_an_agent_that_joined_and_an_unjoined_one_is_gone(
    fleet: EmulatedFleet, tmp_path: Path
):
    settings = AgentSettings(cluster="eu1")
    async with trust_rig(fleet, tmp_path, ["eu1"]) as rig:
        seed = await rig.registered("eu1")
        server = MemberServer(read_kube_config(fleet.kubeconfig, "eu1"))
        async with rig.login(seed, "agent.eu1") as agent_bus:
            gateway = Gateway(
                bus=agent_bus,
                settings=settings,
                server=server,
                load=Load(settings.max_calls),
                beat=lambda: None,
            )
            await server.learn()
            serving = asyncio.create_task(gateway.run())
            try:
                for user, name in CALLERS.items():
                    async with (
                        connected(rig.server.access(user), name=name) as bus,
                        agent_calls(bus, name) as calls,
                        client_through_agent(calls, "eu1") as client,
                    ):
                        written = config_map(user, of=name)
                        await client.apply(MAPS, written, field_manager=user)
                        assert len(await client.list(MAPS, "default")) >= 1
                        assert not bus.has_failed
                    await doctor_asks_an_agent(rig.server.access(user), user)
                rig.unjoin("eu1")
                async with (
                    connected(rig.server.access("distributor"), name="distributor") as bus,
                    agent_calls(bus, "distributor") as calls,
                    client_through_agent(calls, "eu1") as client,
                ):

                    async def is_gone() -> bool:
                        try:
                            await client.get(MAPS, "default", "distributor")
                        except Unreachable:
                            return True
                        return False

                    await eventually(is_gone)
                    assert not bus.has_failed
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await serving
                await server.close()
    names = {obj["metadata"]["name"] for obj in fleet["eu1"].list(MAPS, "default")}
    assert names >= CALLERS.keys()
