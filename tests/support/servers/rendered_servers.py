"""The NATS and the Valkey of the chart, as real servers with the rendered configuration."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_nats_server, find_valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.api.rendered_chart import Object, render, secret
from support.eventually import eventually


def nats_config(values: Object, folder: Path) -> str:
    """The rendered configuration, with the places of the container moved to a folder."""
    return _moved(
        secret(render(values), "fb-fleetbus-nats-config")["nats.conf"],
        {
            "listen: 0.0.0.0:4222": f'listen: 127.0.0.1:-1\nports_file_dir: "{folder}"',
            "http: 127.0.0.1:8222": "http: 127.0.0.1:-1",
            "/run/nats/nats.pid": f"{folder}/nats.pid",
            "store_dir: /data": f'store_dir: "{folder}/data"',
            "$POD_NAME": "nats-0",
        },
    )


@dataclass
class RenderedNats:
    """The embedded NATS."""

    address: str
    objects: list[Object]

    def login(self, user: str) -> dict[str, Any]:
        """User and password of a component, for a client."""
        found = secret(self.objects, f"fb-fleetbus-{user}-nats")
        return {"user": found["username"], "password": found["password"]}

    def url(self, user: str) -> str:
        """The address with the credentials of this component."""
        login = self.login(user)
        return self.address.replace("nats://", f"nats://{login['user']}:{login['password']}@")


@asynccontextmanager
async def rendered_nats(values: Object, folder: Path) -> AsyncGenerator[RenderedNats]:
    """Run the embedded NATS on loopback."""
    config = folder / "nats.conf"
    config.write_text(nats_config(values, folder))
    child = Child("nats", [find_nats_server(), "-c", config], log=folder / "nats.log")
    try:
        yield RenderedNats(await eventually(lambda: _address(folder)), render(values))
    finally:
        await child.stop()


def _address(folder: Path) -> str:
    for path in folder.glob("*.ports"):
        with contextlib.suppress(json.JSONDecodeError):  # it is being written
            return str(json.loads(path.read_text())["nats"][0])
    return ""


@dataclass
class RenderedValkey:
    """The embedded Valkey."""

    port: int
    objects: list[Object]

    def password(self, user: str) -> str:
        """The password of a component, or of the probe."""
        if user == "probe":
            return secret(self.objects, "fb-fleetbus-valkey-config")["probe"]
        return secret(self.objects, f"fb-fleetbus-{user}-redis")["password"]

    def url(self, user: str) -> str:
        """The address with the credentials of this component."""
        return f"redis://{user}:{self.password(user)}@127.0.0.1:{self.port}/0"

    def client(self, user: str) -> Redis:
        """A client with the rights of this component."""
        retry = Retry(NoBackoff(), 0)
        return Redis(port=self.port, username=user, password=self.password(user), retry=retry)

    async def answers(self) -> bool:
        """Whether the probe of the pod would succeed."""
        try:
            async with self.client("probe") as client:
                return bool(await cast("Any", client).execute_command("PING"))
        except RedisError:
            return False


@asynccontextmanager
async def rendered_valkey(values: Object, folder: Path) -> AsyncGenerator[RenderedValkey]:
    """Run the embedded Valkey on loopback."""
    held = HeldPort(LOOPBACK, 0)
    rendered = secret(render(values), "fb-fleetbus-valkey-config")
    moved = {
        "bind * -::*": "bind 127.0.0.1",
        "port 6379": f"port {held.number}",
        "dir /data": f"dir {folder}",
        "/etc/valkey/users.acl": f"{folder}/users.acl",
    }
    (folder / "users.acl").write_text(rendered["users.acl"])
    config = folder / "valkey.conf"
    config.write_text(_moved(rendered["valkey.conf"], moved))
    child = Child("valkey", [find_valkey_server(), config], log=folder / "valkey.log")
    try:
        server = RenderedValkey(held.number, render(values))
        await eventually(server.answers)
        yield server
    finally:
        await child.stop()
        held.release()


def _moved(text: str, places: Mapping[str, str]) -> str:
    for one, other in places.items():
        assert text.count(one) == 1, one
        text = text.replace(one, other)
    return text
