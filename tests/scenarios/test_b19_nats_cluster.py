"""B19, B12: a whole fleet on a NATS cluster of three goes on when servers die, without a restart.

It takes a minute or two, so `make scenarios` runs it; `make faults-cluster` does more, with load.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.controller.controller import Controller
from fleetbus.errors import BusError
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig, fleet_rig
from support.servers.nats_cluster import (
    Member,
    NatsCluster,
    consumer_leader,
    nats_cluster,
    stream_leader,
)

PODS = "v1/pods"
WITHIN = timedelta(seconds=60)
"""An election takes up to 9 s, an event that was on its way to the dead server 30 s."""
ALARMS = frozenset({"history_broken", "stream_lost", "stream_gap_found", "bucket_was_lost"})
ROLES: dict[str, Callable[[Bus], Awaitable[str]]] = {
    "stream": lambda bus: stream_leader(bus, STREAM),
    "bucket": lambda bus: stream_leader(bus, f"KV_{KV_BUCKET}"),
    "projector": lambda bus: consumer_leader(bus, PROJECTOR),
    "controller": lambda bus: consumer_leader(bus, "pods-1"),
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(400),
]


class Seen:
    """The label of each pod as a controller read it last."""

    def __init__(self) -> None:
        self.controller = Controller("pods")
        self.controller.watch(PODS)
        self.controller.reconcile(self._look)
        self.labels: dict[str, str] = {}

    async def _look(self, request: Request, fleet: Fleet) -> None:
        obj = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
        if obj is not None:
            self.labels[request.name] = obj["metadata"]["labels"]["v"]


@asynccontextmanager
async def running(cluster: NatsCluster, folder: Path, valkey_url: str) -> AsyncGenerator[Rig]:
    async with fleet_rig("a", folder=folder, nats_url=cluster.url, valkey_url=valkey_url) as rig:
        yield rig


async def leader(cluster: NatsCluster, role: str) -> Member:
    async def find() -> str:
        try:
            async with connected(cluster.url, name="test") as bus:
                return await ROLES[role](bus)
        except BusError:
            return ""

    return cluster.members[await eventually(find, WITHIN)]


async def test_b19_every_server_may_die_and_lose_its_disk_and_two_may_be_away(
    tmp_path: Path, valkey_url: str
):
    log = Seen()
    async with (
        nats_cluster(tmp_path / "nats") as cluster,
        running(cluster, tmp_path, valkey_url) as rig,
    ):
        rig.clusters["a"].create(PODS, pod("web", labels={"v": "0"}), "default")
        rig.start_reconciler(log.controller, bus_replicas=3)
        rig.start_watcher("a")

        async def reaches(label: str) -> None:
            await eventually(lambda: log.labels.get("web") == label, WITHIN)

        def change(label: str) -> None:
            rig.clusters["a"].patch(PODS, "default", "web", {"metadata": {"labels": {"v": label}}})

        await reaches("0")
        await cluster.healthy()
        with capture_logs() as logs:

            def events() -> set[str]:
                return {line["event"] for line in logs}

            for role in ROLES:
                member = await leader(cluster, role)
                member.kill()
                change(role)
                await reaches(role)
                if role == "stream":
                    member.lose_disk()
                member.start()
                await cluster.healthy()
            first, second, _ = cluster.members.values()
            first.kill()
            second.kill()
            change("no-quorum")
            await eventually(lambda: "publishes_unanswered" in events(), WITHIN)
            first.start()
            second.start()
            await reaches("no-quorum")
            assert events().isdisjoint(ALARMS)
