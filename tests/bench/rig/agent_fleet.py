"""Many agents on one nats-server, each with an account as the product renders it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from bench.rig.processes import process
from fleetbus.agents.accounts import render_accounts
from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord
from fleetbus_agent.enrolment.seeds import write_seed
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_nats_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.api.rendered_chart import SEED, Object, render
from support.eventually import eventually
from support.processes.programs import module
from support.servers.plain_http import http_client
from support.servers.rendered_servers import RenderedNats, nats_config, write_certificate

_CHART: Final[Object] = {"credentials": {"seed": SEED}, "agents": {"enabled": True}}
_ANY_PORT: Final = "listen: 127.0.0.1:-1"


@dataclass(frozen=True)
class AgentsNats:
    """The NATS of the chart, and an account for each agent.

    Attributes:
        login: addresses and users.
        child: its process.
        nkeys: the file with the seed of each cluster's agent.
    """

    login: RenderedNats
    child: Child
    nkeys: Mapping[str, Path]

    @property
    def port(self) -> int:
        port = urlsplit(self.login.address).port
        assert port is not None
        return port

    async def monitor(self, path: str) -> dict[str, Any]:
        """An answer of its monitoring endpoint; empty while there is none."""
        for file in self.login.folder.glob(f"*_{self.child.pid}.ports"):
            try:
                url = json.loads(file.read_text())["monitoring"][0]
                async with http_client(url) as client:
                    return dict((await client.get(path)).json())
            except (OSError, ValueError, httpx.TransportError):
                continue
        return {}


@asynccontextmanager
async def agents_nats(
    folder: Path, clusters: Sequence[str], *, is_tls: bool = True
) -> AsyncGenerator[AgentsNats]:
    """Run it on loopback, on the same port after a restart."""
    values = {**_CHART, "tls": {"enabled": is_tls}}
    folder.mkdir(parents=True)
    records: list[AgentRecord] = []
    nkeys: dict[str, Path] = {}
    for cluster in clusters:
        seed = make_seed()
        nkeys[cluster] = folder / f"{cluster}.nkey"
        write_seed(nkeys[cluster], seed)
        records.append(AgentRecord(cluster=cluster, key=public_key(seed)))
    port = HeldPort(LOOPBACK)
    text = nats_config(values, folder)
    assert _ANY_PORT in text
    config = folder / "nats.conf"
    config.write_text(text.replace(_ANY_PORT, f"listen: {LOOPBACK}:{port.number}"))
    (folder / "agents.conf").write_text(render_accounts(records, datetime.now(UTC)))
    objects = render(values)
    ca = write_certificate(objects, "nats", folder)
    child = Child("nats", [find_nats_server(), "-c", config], log=folder / "nats.log")
    try:
        scheme = "tls" if is_tls else "nats"
        login = RenderedNats(f"{scheme}://{LOOPBACK}:{port.number}", objects, folder, ca)
        nats = AgentsNats(login, child, nkeys)
        await eventually(lambda: nats.monitor("/varz"))
        yield nats
    finally:
        await child.stop()
        port.release()


@asynccontextmanager
async def agent_processes(
    folder: Path,
    urls: Mapping[str, str],
    *,
    processes: int,
    nkeys: Mapping[str, Path] | None = None,
    **environment: str,
) -> AsyncGenerator[list[int]]:
    """Run the agents of clusters until the block ends; all take calls when this yields.

    Args:
        folder: for their settings.
        urls: the API server of each cluster.
        processes: over which they are spread evenly.
        nkeys: the files of their nkeys; None for a NATS without accounts.
        environment: their FLEETBUS_NATS_… settings.

    Yields:
        The ids of the processes.
    """
    rows = [(name, url, str(nkeys[name]) if nkeys else "") for name, url in urls.items()]
    async with AsyncExitStack() as stack:
        children = list[Any]()
        for number in range(processes):
            path = folder / f"agents-{number}.json"
            path.write_text(json.dumps(rows[number::processes]))
            command = module("bench.programs.agents", str(path))
            child = await stack.enter_async_context(
                process(command, FLEETBUS_ALLOW_LOOPBACK="1", **environment)
            )
            children.append(child)
        for child in children:
            if await child.stdout.readline() != b"ready\n":
                raise RuntimeError("agents have not started")
        yield [child.pid for child in children]


def kubeconfig(url: str) -> str:
    """The access data of an API server that asks nobody who he is."""
    document = {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": url}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    return json.dumps(document)
