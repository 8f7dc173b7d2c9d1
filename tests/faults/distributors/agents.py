"""The agents of the targets that the hub cannot reach: their processes, ways, and logins.

An agent dials NATS, and the API server of its cluster, through links that a fault can break or lead
elsewhere. It logs in with an nkey, which can be revoked; everybody else needs no login.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from faults.distributors.processes import Processes
from faults.distributors.settings import BEHIND_AGENTS, NEW_NAME
from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus_agent.enrolment.seeds import write_seed
from fleetbus_devfleet.processes.servers import NatsServer
from fleetbus_emulator.apiserver import ApiServers
from support.hostile.chaos_proxy import Link, chaos_link

TOKEN: Final = "token-of-agents-and-watchers"
_NAMES: Final = (*BEHIND_AGENTS, NEW_NAME)
_EVERYBODY_ELSE: Final = "hub"


def agent_of(cluster: str) -> str:
    """The name of the process of a cluster's agent."""
    return f"agent-{cluster}"


def second_agent_of(cluster: str) -> str:
    """The name of the one beside it, while there are two."""
    return f"agent-{cluster}-2"


def cluster_of(agent: str) -> str:
    """The cluster of an agent's process."""
    return agent.split("-")[1]


def access_to(servers: ApiServers, name: str, token: str = "") -> dict[str, Any]:
    """A kubeconfig for one API server alone."""
    whole = servers.kubeconfig(token or None)
    context = next(entry for entry in whole["contexts"] if entry["name"] == name)
    entries = {
        "contexts": name,
        "clusters": context["context"]["cluster"],
        "users": context["context"]["user"],
    }
    return {**whole, "current-context": name} | {
        section: [entry for entry in whole[section] if entry["name"] == entry_name]
        for section, entry_name in entries.items()
    }


class Agents:
    """The agents of a campaign's fleet.

    Args:
        folder: of the seed.
        processes: where they run.
        servers: the API servers of all clusters.
        nats: the server that they log in to.
        nats_links: the way to it of each agent, by the name of its process.
        server_links: the ways to the API servers behind agents, by the name of the server.
    """

    def __init__(
        self,
        folder: Path,
        processes: Processes,
        servers: ApiServers,
        nats: NatsServer,
        nats_links: Mapping[str, Link],
        server_links: Mapping[str, Link],
    ) -> None:
        self._folder = folder
        self._processes = processes
        self._nats = nats
        self._ports = {name: _port_of(servers.url(name)) for name in BEHIND_AGENTS}
        self._servers: dict[str, str] = {}
        self._revoked: set[str] = set()
        self.nats_links = nats_links
        self.server_links = server_links
        for name, link in server_links.items():
            document = access_to(servers, name, TOKEN)
            document["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{link.port}"
            (folder / f"{name}.kubeconfig").write_text(json.dumps(document))

    # --- who runs -----------------------------------------------------------------------------

    def join(self, cluster: str, server: str) -> None:
        """Let a cluster have an agent; one that runs goes on."""
        self._servers[cluster] = server
        self._add(agent_of(cluster))

    def leave(self, cluster: str) -> None:
        """End the agents of a cluster, which was unjoined."""
        for name in (agent_of(cluster), second_agent_of(cluster)):
            self._processes.remove(name)

    def add_second(self, cluster: str) -> None:
        """Let a cluster have two agents."""
        if agent_of(cluster) in self._processes.agents:
            self._add(second_agent_of(cluster))

    def remove_second(self, cluster: str) -> None:
        """Let it have one again."""
        self._processes.remove(second_agent_of(cluster))

    def _add(self, name: str) -> None:
        cluster = cluster_of(name)
        environment = {
            "FLEETBUS_AGENT_CLUSTER": cluster,
            "FLEETBUS_AGENT_KUBECONFIG": str(self._folder / f"{self._servers[cluster]}.kubeconfig"),
            "FLEETBUS_AGENT_STOP_PATIENCE": "1s",
            "FLEETBUS_NATS_URL": self.nats_links[name].url,
            "FLEETBUS_NATS_NKEY_FILE": str(_nkey_file(self._folder, cluster)),
        }
        self._processes.add(name, environment)

    # --- what can break -----------------------------------------------------------------------

    def revoke(self, cluster: str) -> None:
        """Refuse the login of a cluster's agents; who is connected is disconnected."""
        self._revoked.add(cluster)
        self._load_users()

    def admit(self, cluster: str) -> None:
        """Take that back."""
        self._revoked.discard(cluster)
        self._load_users()

    def _load_users(self) -> None:
        _write_users(self._nats, self._folder, self._revoked)
        self._nats.process.send_signal(signal.SIGHUP)

    async def lead(self, agents_of: str, to: str) -> None:
        """Let the agents of one API server dial another one."""
        link = self.server_links[agents_of]
        if link.target != self._ports[to]:
            await link.turn_to(self._ports[to])

    async def heal(self) -> None:
        """End everything that is broken, and let each cluster have one agent."""
        for cluster in _NAMES:
            self.remove_second(cluster)
        for link in (*self.nats_links.values(), *self.server_links.values()):
            link.heal()
        for name in BEHIND_AGENTS:
            await self.lead(name, name)
        for name in self._processes.agents:
            self._processes.signal(name, signal.SIGCONT)
        if self._revoked:
            self._revoked.clear()
            self._load_users()


def _port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def _nkey_file(folder: Path, cluster: str) -> Path:
    return folder / f"{cluster}.nkey"


def _write_users(nats: NatsServer, folder: Path, revoked: set[str]) -> None:
    """The users of NATS, with all rights: what each may do is the business of other tests."""
    nkeys = [
        f"{{ nkey: {public_key(_nkey_file(folder, cluster).read_text().strip())} }}"
        for cluster in _NAMES
        if cluster not in revoked
    ]
    users = "\n".join([f'{{ user: {_EVERYBODY_ELSE}, password: "" }}', *nkeys])
    (nats.store_dir / "users.conf").write_text(
        f"no_auth_user: {_EVERYBODY_ELSE}\nauthorization {{ users: [\n{users}\n] }}\n"
    )


async def let_agents_log_in(nats: NatsServer, folder: Path) -> None:
    """Make an nkey for the agents of each cluster, and let the server know them.

    The server is restarted, as who needs no login is read at its start only.
    """
    for cluster in _NAMES:
        write_seed(_nkey_file(folder, cluster), make_seed())
    _write_users(nats, folder, set())
    with (nats.store_dir / "settings.conf").open("a") as settings:
        settings.write("include ./users.conf\n")
    await nats.restart()


@asynccontextmanager
async def open_agents(
    folder: Path, processes: Processes, servers: ApiServers, nats: NatsServer
) -> AsyncGenerator[Agents]:
    """The ways of all agents that there may be; none runs yet."""
    async with AsyncExitStack() as exits:
        port = _port_of(nats.url)
        nats_links = {
            name: await exits.enter_async_context(chaos_link(port))
            for cluster in _NAMES
            for name in (agent_of(cluster), second_agent_of(cluster))
        }
        server_links = {
            name: await exits.enter_async_context(
                chaos_link(_port_of(servers.url(name)), speaks_nats=False)
            )
            for name in BEHIND_AGENTS
        }
        yield Agents(folder, processes, servers, nats, nats_links, server_links)
