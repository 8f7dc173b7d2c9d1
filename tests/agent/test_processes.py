"""Agents as processes that are killed, and a NATS that is restarted, during calls."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.rig.processes import forget_peak, peak_mb, rss_mb
from fleetbus import errors
from fleetbus.agent_calls.pending import Times as CallerTimes
from fleetbus.kube.connection.response import Limits
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_emulator.apiserver import ApiServers, Cluster, Hang, serve
from fleetbus_emulator.apiserver.faults import Delay
from support.eventually import eventually
from support.objects import config_map
from support.processes.programs import installed
from support.rigs.agents import AgentRig, agent_rig

MAPS = "v1/configmaps"


@dataclass
class Fleet:
    """The hub's side, one cluster, and agents as processes."""

    rig: AgentRig
    cluster: Cluster
    servers: ApiServers
    folder: Path
    nats_url: str
    children: list[Child]

    async def start(self) -> Child:
        """An agent that takes calls."""
        number = len(self.children)
        path, port_file = self.folder / "kubeconfig", self.folder / f"port-{number}"
        path.write_text(json.dumps(self.servers.kubeconfig()))
        settings = {
            "FLEETBUS_AGENT_CLUSTER": "eu1",
            "FLEETBUS_AGENT_KUBECONFIG": str(path),
            "FLEETBUS_NATS_URL": self.nats_url,
            "FLEETBUS_HEALTH_PORT": "0",
            "FLEETBUS_HEALTH_PORT_FILE": str(port_file),
        }
        log = self.folder / f"agent-{number}.log"
        child = Child(
            f"agent-{number}", installed("fleetbus-agent"), log=log, env=os.environ | settings
        )
        self.children.append(child)
        await eventually(lambda: _is_ready(port_file), timedelta(seconds=30))
        return child

    def log(self, number: int = 0) -> list[dict[str, Any]]:
        text = (self.folder / f"agent-{number}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def _is_ready(port_file: Path) -> bool:
    if not port_file.exists():
        return False
    async with httpx.AsyncClient() as http:
        try:
            answer = await http.get(f"http://127.0.0.1:{port_file.read_text().strip()}/readyz")
        except httpx.TransportError:
            return False
    return answer.is_success


@asynccontextmanager
async def fleet(
    nats_url: str, folder: Path, cluster: Cluster | None = None
) -> AsyncGenerator[Fleet]:
    own = cluster or Cluster("eu1")
    times = CallerTimes(silence=3.0, still_waiting=0.5)
    async with serve([own]) as servers, agent_rig(nats_url, folder, caller_times=times) as rig:
        opened = Fleet(rig, own, servers, folder, nats_url, [])
        try:
            yield opened
        finally:
            for child in opened.children:
                await child.stop()


@pytest.mark.slow
async def test_an_agent_that_is_killed_after_the_write_leaves_an_unknown_outcome(
    nats_url: str, tmp_path: Path
):
    async with fleet(nats_url, tmp_path) as f, f.rig.client() as client:
        first = await f.start()
        f.cluster.faults.add(
            Delay(timedelta(seconds=20), after_commit=True), verb="create", count=1
        )
        creating = asyncio.create_task(client.create(MAPS, config_map("a")))
        await eventually(lambda: f.cluster.get(MAPS, "default", "a"))
        first.kill()
        with pytest.raises(errors.Unreachable, match="stopped answering"):
            await creating
        with pytest.raises(errors.Unreachable, match="no agent"):
            await client.list(MAPS)
        await f.start()
        with pytest.raises(errors.AlreadyExists):
            await client.create(MAPS, config_map("a"))


@pytest.mark.slow
async def test_one_of_two_agents_is_killed_and_the_other_goes_on(nats_url: str, tmp_path: Path):
    async with fleet(nats_url, tmp_path) as f, f.rig.client() as client:
        first, _ = await f.start(), await f.start()
        await asyncio.gather(*(client.create(MAPS, config_map(f"a{n}")) for n in range(30)))
        calls = [sum(line["event"] == "call" for line in f.log(number)) for number in (0, 1)]
        assert min(calls) > 0
        first.kill()
        for number in range(30):
            try:
                await client.create(MAPS, config_map(f"b{number}"))
            except errors.Unreachable:  # it went to the one that was killed
                assert number < 5
        creates = [request.path for request in f.cluster.requests if request.verb == "create"]
        assert len(creates) <= 60


@pytest.mark.slow
async def test_nats_is_restarted_during_calls(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as nats,
        fleet(nats.url, tmp_path) as f,
        f.rig.client() as client,
    ):
        await f.start()
        hang = f.cluster.faults.add(Hang(), verb="create", count=1)
        creating = asyncio.create_task(client.create(MAPS, config_map("a")))
        await eventually(lambda: hang.hits)
        await nats.restart()
        with pytest.raises(errors.Unreachable, match="NATS"):
            await creating

        async def answers() -> bool:
            try:
                return bool(await client.get_json("/version"))
            except errors.Unreachable:
                return False

        await eventually(answers, timedelta(seconds=20))
        await client.create(MAPS, config_map("b"))


@pytest.mark.slow
async def test_a_large_list_needs_little_memory_of_the_agent(nats_url: str, tmp_path: Path):
    cluster = Cluster("eu1")
    for number in range(60):
        text = base64.b64encode(random.Random(number).randbytes(350_000)).decode()  # packs badly
        cluster.create(MAPS, config_map(f"m{number}") | {"data": {"k": text}}, "default")
    async with fleet(nats_url, tmp_path, cluster) as f, f.rig.client() as client:
        agent = await f.start()
        await client.get_json("/version")
        before = rss_mb(agent.pid)
        forget_peak(agent.pid)
        response = await client.stream("/api/v1/configmaps", limits=Limits())
        size = 0
        async for chunk in response.chunks():
            size += len(chunk)
        response.release()
        assert size > 20_000_000
        assert peak_mb(agent.pid) - before < 16
        assert peak_mb(agent.pid) < 90


async def test_a_stop_is_in_good_order_and_the_log_names_each_call(nats_url: str, tmp_path: Path):
    async with fleet(nats_url, tmp_path) as f, f.rig.client() as client:
        agent = await f.start()
        await client.create(MAPS, config_map("a"))
        await agent.stop()
        (call,) = [line for line in f.log() if line["event"] == "call"]
        assert (call["verb"], call["resource"], call["outcome"]) == (
            "create",
            "core/configmaps",
            "201",
        )
        assert call["component"] == "test"
        assert not [line for line in f.log() if line["level"] in ("error", "critical")]
