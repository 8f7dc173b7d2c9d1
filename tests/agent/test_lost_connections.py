"""Calls while a server of a NATS cluster is lost, and while many agents reconnect at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from fleetbus.bus.connection import Bus
from fleetbus.kube.client import KubeClient
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import Cluster, serve
from fleetbus_emulator.apiserver.faults import Delay
from support.eventually import eventually
from support.full import FULL
from support.rigs.agent_callers import Outcomes, calling, create
from support.rigs.agents import agent_rig
from support.servers.nats_cluster import Member, NatsCluster, nats_cluster

AGENTS = 40 if FULL else 8
BACK = timedelta(seconds=60)
"""For reconnecting, on a machine with other work."""


def member_of(cluster: NatsCluster, bus: Bus) -> Member:
    """The server that a process of the hub is connected to."""
    url = bus.nc.connected_url
    assert url is not None
    (member,) = [each for each in cluster.members.values() if each.port == url.port]
    return member


def has_agent(member: Member) -> bool:
    listed = member.monitor("connz").get("connections", ())
    return any(each.get("name") == "agent.eu1" for each in listed)


async def lose(
    member: Member, client: KubeClient, cluster: Cluster, *, slow: str
) -> tuple[Outcomes, Outcomes]:
    """Kill a server during calls, until calls are answered again.

    Returns:
        The outcomes of the calls that went on, and of one that was under way for long.
    """
    async with calling({"eu1": client}, member.name) as all_outcomes:
        outcomes, slow_outcome = all_outcomes["eu1"], Outcomes()
        await eventually(lambda: len(outcomes.answered) >= 10, BACK)
        assert not outcomes.failed
        delay = cluster.faults.add(
            Delay(timedelta(seconds=1), after_commit=True), verb="create", count=1
        )
        under_way = asyncio.create_task(create(client, slow, slow_outcome))
        await eventually(lambda: delay.hits)
        member.kill()
        await under_way
        for _ in range(2):  # the second time without what was under way the first time
            many = len(outcomes.answered) + 10
            await eventually(lambda: len(outcomes.answered) >= many, BACK)  # noqa: B023
    return outcomes, slow_outcome


@pytest.mark.slow
async def test_one_of_three_servers_is_lost(tmp_path: Path):
    member = Cluster("eu1")
    async with (
        nats_cluster(tmp_path / "nats") as nats,
        serve([member]) as servers,
        agent_rig(nats.url, tmp_path) as rig,
        rig.client() as client,
    ):
        callers = member_of(nats, rig.bus)
        elsewhere = nats.url_of(*(each.name for each in nats.others(callers.name)))
        await rig.start(servers.kubeconfig(), nats_url=elsewhere)
        (agents,) = [each for each in nats.members.values() if has_agent(each)]
        (third,) = nats.others(callers.name, agents.name)
        assert await eventually(lambda: create(client, "first", Outcomes()))

        for number, lost in enumerate((third, agents, callers)):
            outcomes, slow = await lose(lost, client, member, slow=f"slow-{number}")
            outcomes.begun |= slow.begun
            outcomes.answered |= slow.answered
            outcomes.unknown |= slow.unknown
            assert not slow.not_sent
            outcomes.check(member)
            if lost is third:
                assert not outcomes.failed
            lost.start()
            await nats.healthy()
        assert not rig.calls.count


@pytest.mark.slow
async def test_many_agents_reconnect_at_once(tmp_path: Path):
    names = [f"c{number:02}" for number in range(AGENTS)]
    clusters = [Cluster(name) for name in names]
    async with (
        nats_server(store_dir=tmp_path / "nats") as nats,
        serve(clusters) as servers,
        agent_rig(nats.url, tmp_path) as rig,
        AsyncExitStack() as stack,
    ):
        for name in names:
            await rig.start(servers.kubeconfig(), name, context=name)
        clients = {name: await stack.enter_async_context(rig.client(name)) for name in names}
        async with calling(clients, "m", pause=0.2) as outcomes:
            await eventually(
                lambda: all(len(each.answered) >= 2 for each in outcomes.values()), BACK
            )
            before = {name: len(each.answered) for name, each in outcomes.items()}
            await nats.restart()
            await eventually(
                lambda: all(len(outcomes[name].answered) >= before[name] + 2 for name in names),
                BACK,
            )
        for cluster in clusters:
            outcomes[cluster.name].check(cluster)
        assert any(each.failed for each in outcomes.values())
        assert not rig.calls.count
