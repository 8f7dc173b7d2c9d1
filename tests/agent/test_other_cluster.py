"""Another cluster behind an agent's address: nothing is sent there (rule W13)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetbus import errors
from fleetbus.errors import NotAccepted
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.identity import IdentityCheck
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus_emulator.apiserver import Cluster
from fleetbus_proto.resources import parse_resource
from support.hostile.redirected_address import Address, shared_address
from support.objects import config_map
from support.rigs.agents import agent_rig, one_agent

MAPS = "v1/configmaps"


class Accepted:
    """The accepted UID, which a person may change."""

    def __init__(self, uid: str) -> None:
        self.accepted = uid

    async def uid(self, name: str) -> str:
        del name
        return self.accepted

    async def aliases(self, name: str) -> tuple[str, ...]:
        del name
        return ()


def uid_of(cluster: Cluster) -> str:
    system = cluster.get("v1/namespaces", None, "kube-system")
    assert system is not None
    return str(system["metadata"]["uid"])


def written(cluster: Cluster) -> list[str]:
    return [request.verb for request in cluster.requests if request.method != "GET"]


@asynccontextmanager
async def checked(
    nats_url: str, folder: Path
) -> AsyncGenerator[tuple[Address, KubeClient, Accepted]]:
    """A client that accepts the right cluster, through an agent whose address may be led away."""
    async with shared_address() as address, agent_rig(nats_url, folder) as rig:
        await rig.start(json.loads(address.config.document))
        accepted = Accepted(uid_of(address.right))
        async with rig.client() as client:
            client.verify_identity(
                IdentityCheck("eu1", accepted=accepted, read=client.kube_system_uid)
            )
            yield address, client, accepted


async def test_w13_nothing_is_sent_to_another_cluster_behind_the_agent(
    nats_url: str, tmp_path: Path
):
    async with checked(nats_url, tmp_path) as (address, client, _):
        await client.create(MAPS, config_map("a"))
        await address.lead_elsewhere()
        with pytest.raises(errors.Unreachable):  # at once, while the last check still counts
            await client.create(MAPS, config_map("b"))
        for _ in range(3):
            with pytest.raises(errors.Unreachable):
                await client.create(MAPS, config_map("b"))
        with pytest.raises(NotAccepted, match="another cluster answers"):
            await client.list(MAPS)
        assert written(address.right) == ["create"]
        assert written(address.wrong) == []


async def test_w13_a_stream_before_any_other_request_is_checked_too(nats_url: str, tmp_path: Path):
    async with checked(nats_url, tmp_path) as (address, client, _):
        await address.lead_elsewhere()
        with pytest.raises(errors.Unreachable):  # the agent finds out
            await drained(client)
        with pytest.raises(NotAccepted):
            await drained(client)
        assert "list" not in [request.verb for request in address.wrong.requests]


async def drained(client: KubeClient) -> None:
    async for _page in list_pages(client, WatchTarget(parse_resource(MAPS))):
        pass


async def test_w13_after_consent_the_other_cluster_is_written_to(nats_url: str, tmp_path: Path):
    async with checked(nats_url, tmp_path) as (address, client, accepted):
        await client.create(MAPS, config_map("a"))
        await address.lead_elsewhere()
        accepted.accepted = uid_of(address.wrong)
        for _ in range(100):  # the agent notices with its next connection
            try:
                await client.create(MAPS, config_map("b"))
                break
            except errors.Unreachable:
                await asyncio.sleep(0.1)  # as a controller that tries again
        assert written(address.wrong) == ["create"]


async def test_w13_connections_that_stand_do_not_outlive_a_change(nats_url: str, tmp_path: Path):
    """Only new connections lead elsewhere: the first of them closes those that stand."""
    async with checked(nats_url, tmp_path) as (address, client, _):
        await asyncio.gather(*(client.create(MAPS, config_map(f"m{n}")) for n in range(10)))
        address.lead_new_connections_elsewhere()
        outcomes = await asyncio.gather(
            *(client.create(MAPS, config_map(f"n{n}")) for n in range(40)), return_exceptions=True
        )
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert all(isinstance(error, errors.Unreachable) for error in failed)
        assert written(address.wrong) == []


async def test_w13_a_cluster_that_was_rebuilt_in_place_is_used_at_once_after_consent(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path) as rig:
        accepted = Accepted(uid_of(rig.cluster))
        client = rig.client
        client.verify_identity(IdentityCheck("eu1", accepted=accepted, read=client.kube_system_uid))
        await client.create(MAPS, config_map("a"))
        accepted.accepted = rig.cluster.swap_uid()
        await client.confirm()  # through a connection that stands
        await client.create(MAPS, config_map("b"))
        await client.create(MAPS, config_map("c"))
