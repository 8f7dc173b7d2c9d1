"""Agents of many clusters in one process, each with a connection of its own.

    python tests/run.py bench.programs.agents FILE

FILE is JSON: for each cluster its name, the address of its API server, and the file with its nkey,
which is empty where NATS has no accounts. The FLEETBUS_NATS_… settings are those of an agent. It
prints a line once all of them take calls, and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.rig.agent_fleet import kubeconfig
from fleetbus.bus.connection import Bus
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_agent.connections import Connections
from fleetbus_agent.gateway import Gateway
from fleetbus_agent.load import Load
from fleetbus_agent.member_server import MemberServer
from fleetbus_agent.settings import AgentSettings


def connections_of(cluster: str, server: MemberServer, access: NatsAccess) -> Connections:
    settings = load_settings(AgentSettings, cluster=cluster)

    def make_gateway(bus: Bus) -> Gateway:
        load = Load(settings.max_calls)
        return Gateway(bus=bus, settings=settings, server=server, load=load, beat=lambda: None)

    return Connections(
        access=access,
        name=f"agent.{cluster}",
        make_gateway=make_gateway,
        renewed=asyncio.Event(),
        health=Health(),
    )


async def serve(path: str) -> None:
    shared = load_settings(SharedSettings)
    set_up_logs("text", "error")
    servers: list[MemberServer] = []
    try:
        async with asyncio.TaskGroup() as group:
            for cluster, url, nkey in json.loads(Path(path).read_text()):
                server = MemberServer(KubeConfig(kubeconfig(url), http=True))
                servers.append(server)
                access = shared.nats
                if nkey:
                    file = SecretFile("FLEETBUS_NATS_NKEY_FILE", Path(nkey))
                    access = replace(access, nkey=file)
                connections = connections_of(cluster, server, access)
                group.create_task(connections.run(), name=f"agent of {cluster}")
                await connections.opened.wait()
            print("ready", flush=True)
    finally:
        for server in servers:
            await server.close()


async def main(path: str) -> None:
    await run_until_stopped(agents=serve(path))


if __name__ == "__main__":
    sys.exit(
        run_service("bench-agents", lambda: main(sys.argv[1]), loop_factory=uvloop.new_event_loop)
    )
