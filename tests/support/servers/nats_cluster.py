"""Three nats-servers with JetStream that form one cluster, to be killed one by one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import urllib.request
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus_devfleet.processes.children import Child, stop_children
from fleetbus_devfleet.processes.servers import find_nats_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.eventually import eventually

_READY: Final = timedelta(seconds=30)
_CALL_TIMEOUT: Final = 1.0
_NO_REDIRECTS: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Member:
    """One server of a cluster.

    Attributes:
        name: its name in the cluster.
        port: where clients connect; it stays the same over a restart.
        folder: its configuration and its streams.
        child: its process.
    """

    name: str
    port: int
    folder: Path
    child: Child

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"{LOOPBACK}:{self.port}"

    def kill(self) -> None:
        """End it as a crash would."""
        self.child.kill()

    def lose_disk(self) -> None:
        """While it is down: remove everything that it has stored."""
        shutil.rmtree(self.folder / "jetstream")

    def start(self) -> None:
        """Start it again after it has ended."""
        for stale in self.folder.glob("*.ports"):  # of a killed process; its id may come again
            stale.unlink()
        self.child.respawn()

    def monitor(self, path: str) -> dict[str, Any]:
        """An answer of its monitoring endpoint; empty while there is none."""
        for ports in self.folder.glob(f"*_{self.child.pid}.ports"):
            with contextlib.suppress(OSError, ValueError, LookupError):
                url = json.loads(ports.read_text())["monitoring"][0]
                with _NO_REDIRECTS.open(f"{url}/{path}", timeout=_CALL_TIMEOUT) as answer:
                    return cast("dict[str, Any]", json.load(answer))
        return {}

    def is_healthy(self) -> bool:
        """Whether it has caught up with all of its streams and consumers."""
        return self.monitor("healthz").get("status") == "ok"

    def is_followed(self) -> bool:
        """Whether the replicas of each stream that it leads have all of its messages.

        One with an empty disk is healthy before it knows which streams it is to have.
        """
        accounts = self.monitor("jsz?streams=true").get("account_details") or ()
        groups = [
            each["cluster"] for account in accounts for each in account.get("stream_detail", ())
        ]
        return all(
            replica.get("current") and not replica.get("offline")
            for group in groups
            if group.get("leader") == self.name
            for replica in group.get("replicas") or ()
        )


@dataclass(frozen=True)
class NatsCluster:
    """A running cluster; see `nats_cluster`."""

    members: Mapping[str, Member]

    @property
    def url(self) -> str:
        """The addresses of all members, as the setting has them."""
        return self.url_of(*self.members)

    def url_of(self, *names: str) -> str:
        """The addresses of some members, the first first."""
        return ",".join(f"nats://{self.members[name].address}" for name in names)

    def others(self, *names: str) -> list[Member]:
        """All members but these."""
        return [member for name, member in self.members.items() if name not in names]

    async def meta_leader(self) -> str:
        """The member that assigns streams and consumers; waits until there is one."""

        def find() -> str:
            for member in self.members.values():
                leader = member.monitor("jsz").get("meta_cluster", {}).get("leader", "")
                if member.child.is_running and leader and self.members[leader].child.is_running:
                    return leader
            return ""

        return await _ask_in_thread(find)

    async def healthy(self) -> None:
        """Wait until every member that runs has caught up."""

        def are_healthy() -> bool:
            running = [m for m in self.members.values() if m.child.is_running]
            return all(member.is_healthy() and member.is_followed() for member in running)

        await _ask_in_thread(are_healthy)


async def _ask_in_thread(question: Any) -> Any:
    return await eventually(lambda: asyncio.to_thread(question), _READY)


async def stream_leader(bus: Bus, stream: str) -> str:
    """The member that leads a stream; empty while there is none."""
    info = await stream_info(bus, stream)
    return "" if info is None else str(info.get("cluster", {}).get("leader", ""))


async def consumer_leader(bus: Bus, durable: str) -> str:
    """The member that leads a durable of the stream of events; empty while there is none."""
    info = await consumer_info(bus, durable)
    return "" if info is None else str(info.get("cluster", {}).get("leader", ""))


@asynccontextmanager
async def nats_cluster(
    folder: Path, names: Sequence[str] = ("n1", "n2", "n3"), *, more: str = ""
) -> AsyncGenerator[NatsCluster]:
    """Run a cluster on loopback until the block ends; it has a meta leader when this yields.

    Args:
        folder: for its configuration and streams.
        names: of its members.
        more: lines of configuration that all members have.
    """
    ports = {name: (HeldPort(LOOPBACK), HeldPort(LOOPBACK)) for name in names}
    routes = [f"nats://{LOOPBACK}:{route.number}" for _, route in ports.values()]
    members: dict[str, Member] = {}
    try:
        for name, (port, route) in ports.items():
            place = folder / name
            place.mkdir(parents=True)
            config = place / "nats.conf"
            config.write_text(
                f"server_name: {name}\n"
                f'listen: "{LOOPBACK}:{port.number}"\n'
                f'http: "{LOOPBACK}:-1"\n'
                f"ports_file_dir: {json.dumps(str(place))}\n"
                f"jetstream {{ store_dir: {json.dumps(str(place))} }}\n"
                f'cluster {{ name: c, listen: "{LOOPBACK}:{route.number}"'
                f", routes: {json.dumps(routes)} }}\n"
                f"{more}\n"
            )
            child = Child(name, [find_nats_server(), "-c", config], log=place / "log")
            members[name] = Member(name, port.number, place, child)
        cluster = NatsCluster(members)
        await cluster.meta_leader()
        yield cluster
    finally:
        await stop_children([member.child for member in members.values()])
        for port, route in ports.values():
            port.release()
            route.release()
