"""The NATS and the Valkey of the chart, as real servers with the rendered configuration.

With TLS the store is Debian's redis-server, because the wheel's Valkey is built without.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import ssl
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from fleetbus.process.access.nats import NatsAccess, nats_access
from fleetbus.process.access.store import StoreAccess, store_access
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import (
    find_nats_server,
    find_valkey_server,
    valkey_server,
)
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.api.rendered_chart import Object, find, render, secret
from support.eventually import eventually
from support.servers.store_nodes import tls_store


def nats_config(values: Object, folder: Path) -> str:
    """The rendered configuration, with the places of the container moved to a folder.

    The users that it includes are written to that folder.
    """
    write_certificate(render(values), "nats", folder)
    rendered = secret(render(values), "fb-fleetbus-nats-config")
    write_accounts(rendered["accounts.conf"], folder)
    text = rendered["nats.conf"]
    return _moved(
        text.replace("/etc/nats-tls", str(folder / "nats-tls")),
        {
            "listen: 0.0.0.0:4222": f'listen: 127.0.0.1:-1\nports_file_dir: "{folder}"',
            "http: 127.0.0.1:8222": "http: 127.0.0.1:-1",
            "/run/nats/nats.pid": f"{folder}/nats.pid",
            "store_dir: /data": f'store_dir: "{folder}/data"',
            "$POD_NAME": "nats-0",
        },
    )


def write_accounts(accounts: str, folder: Path) -> None:
    """Write the users, as the kubelet does, and no agents if there is no file of them yet."""
    (folder / "agents.conf").touch()
    text = accounts.replace("../../run/nats/agents.conf", "agents.conf")
    (folder / "accounts.conf").write_text(text)


def write_certificate(objects: list[Object], instance: str, folder: Path) -> Path | None:
    """Write the files of its rendered Secret; returns the CA, or None without TLS."""
    names = [obj["metadata"]["name"] for obj in objects if obj["kind"] == "Secret"]
    name = f"fb-fleetbus-{instance}-tls"
    if name not in names:
        return None
    place = folder / f"{instance}-tls"
    place.mkdir(exist_ok=True)
    for key, text in find(objects, "Secret", name)["data"].items():
        (place / key).write_bytes(base64.b64decode(text))
    return place / "ca.crt"


def run_nats_probe(folder: Path) -> int:
    """Run the readiness probe of the pod, which loads what has changed; returns its status."""
    pod = find(render({}), "StatefulSet", "fb-fleetbus-nats")["spec"]["template"]["spec"]
    text = pod["containers"][0]["readinessProbe"]["exec"]["command"][-1]
    (folder / "nats-tls").mkdir(exist_ok=True)
    (folder / "nats-tls/tls.crt").touch()
    text = text.replace("/etc/nats-tls", str(folder / "nats-tls"))
    text = text.replace("/run/nats", str(folder)).replace("/etc/nats", str(folder))
    text = re.sub("wget .*", "true", text)  # monitoring is on another port
    return _shell(text, Path(find_nats_server()).parent)


def _shell(text: str, programs: Path) -> int:
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(["/bin/sh", "-c", text], env=environment, check=False).returncode


@dataclass
class RenderedNats:
    """The embedded NATS; `ca` is None without TLS."""

    address: str
    objects: list[Object]
    folder: Path
    ca: Path | None

    def login(self, user: str) -> dict[str, Any]:
        """User, password and CA of a component, for nats.py."""
        login_data = secret(self.objects, f"fb-fleetbus-{user}-nats")
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        return {"user": login_data["username"], "password": login_data["password"], "tls": context}

    def environment(self, user: str) -> dict[str, str]:
        """The settings of this component, with its files as they are mounted."""
        return _environment(
            "NATS", self.address, f"{user}-nats", self.objects, self.folder, self.ca
        )

    def access(self, user: str) -> NatsAccess:
        """The same for our own client."""
        return nats_access(_fields("NATS", self.environment(user)))


def write_users(users: str, folder: Path) -> Path:
    """Write rendered users of a store; the user `default` may do everything without a password."""
    default = re.compile("^user default .*$", re.MULTILINE)
    assert default.search(users)
    path = folder / "users.acl"
    path.write_text(default.sub("user default on nopass ~* &* +@all", users))
    return path


@asynccontextmanager
async def store_administrator(users: str, folder: Path) -> AsyncGenerator[Redis]:
    """An administrator of a server with rendered users, who gets raw answers."""
    options = ["--aclfile", str(write_users(users, folder))]
    async with (
        valkey_server(dir=folder / "data", options=options) as server,
        Redis.from_url(server.url, decode_responses=True) as admin,
    ):
        admin.response_callbacks.clear()
        yield admin


@asynccontextmanager
async def rendered_nats(values: Object, folder: Path) -> AsyncGenerator[RenderedNats]:
    """Run the embedded NATS on loopback."""
    config = folder / "nats.conf"
    config.write_text(nats_config(values, folder))
    objects = render(values)
    ca = write_certificate(objects, "nats", folder)  # before a server reads it
    child = Child("nats", [find_nats_server(), "-c", config], log=folder / "nats.log")
    try:
        yield RenderedNats(await eventually(lambda: _address(folder)), objects, folder, ca)
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
    folder: Path
    ca: Path | None

    def password(self, user: str) -> str:
        """The password of a component, or of the probe."""
        if user == "probe":
            return secret(self.objects, "fb-fleetbus-valkey-config")["probe"]
        return secret(self.objects, f"fb-fleetbus-{user}-redis")["password"]

    def environment(self, user: str) -> dict[str, str]:
        """The settings of this component, with its files as they are mounted."""
        address = f"{'rediss' if self.ca else 'redis'}://127.0.0.1:{self.port}/0"
        return _environment("REDIS", address, f"{user}-redis", self.objects, self.folder, self.ca)

    def access(self, user: str) -> StoreAccess:
        """The same for our own client."""
        return store_access(_fields("REDIS", self.environment(user)))

    def client(self, user: str) -> Redis:
        """A client with the rights of this component."""
        return Redis(
            port=self.port,
            username=user,
            password=self.password(user),
            retry=Retry(NoBackoff(), 0),
            ssl=self.ca is not None,
            ssl_ca_certs=str(self.ca) if self.ca else None,
        )

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
    port = HeldPort(LOOPBACK, 0)
    objects = render(values)
    ca = write_certificate(objects, "valkey", folder)
    binary = tls_store() if ca else find_valkey_server()
    rendered = secret(objects, "fb-fleetbus-valkey-config")
    text = rendered["valkey.conf"].replace("/etc/valkey-tls", str(folder / "valkey-tls"))
    moved = {
        "bind * -::*": "bind 127.0.0.1",
        "port 6379": f"port {port.number}",
        "dir /data": f"dir {folder}",
        "/etc/valkey/users.acl": f"{folder}/users.acl",
    }
    if ca:
        moved["tls-auto-reload-interval 30"] = ""  # of Valkey 9.1; Debian's Redis does not know it
    for name in ("users.acl", "probe"):
        (folder / name).write_text(rendered[name])
    # The command of the pod does the same.
    (folder / "run").mkdir()
    (folder / "run" / "probe").write_text(rendered["probe"])
    config = folder / "valkey.conf"
    config.write_text(_moved(text, moved))
    child = Child("valkey", [binary, config], log=folder / "valkey.log")
    try:
        server = RenderedValkey(port.number, objects, folder, ca)
        await eventually(server.answers)
        yield server
    finally:
        await child.stop()
        port.release()


def run_valkey_probe(server: RenderedValkey) -> int:
    """Run the readiness probe of the pod, which loads what has changed; returns its status."""
    folder = server.folder
    text = secret(server.objects, "fb-fleetbus-valkey-config")["ready.sh"]
    text = text.replace("/etc/valkey", str(folder)).replace("/run/valkey", str(folder / "run"))
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    cli = programs / "valkey-cli"
    cli.write_text(f'#!/bin/sh\nexec redis-cli -p {server.port} "$@"\n')
    cli.chmod(0o755)
    return _shell(text, programs)


def _environment(
    store: str, address: str, name: str, objects: list[Object], folder: Path, ca: Path | None
) -> dict[str, str]:
    login_data = secret(objects, f"fb-fleetbus-{name}")
    password = folder / f"{name}.password"
    password.write_text(login_data["password"])
    settings = {"URL": address, "USERNAME": login_data["username"], "PASSWORD_FILE": str(password)}
    if ca:
        settings["CA_FILE"] = str(ca)
    return {f"FLEETBUS_{store}_{key}": value for key, value in settings.items()}


def _fields(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    prefix = f"FLEETBUS_{store}_"
    return {key.removeprefix(prefix).lower(): value for key, value in environment.items()}


def _moved(text: str, places: Mapping[str, str]) -> str:
    for place, other in places.items():
        assert len(re.findall(rf"{re.escape(place)}$", text, re.MULTILINE)) == 1, place
        text = re.sub(rf"{re.escape(place)}$", other, text, flags=re.MULTILINE)
    return text
