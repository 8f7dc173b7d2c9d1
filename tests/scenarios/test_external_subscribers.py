"""Subscribers in three languages on the chart's NATS, with an external subscriber's Secret only.

They get the events, acknowledge them after the work, and go on after a restart of the server and
after a rotated password (rule S5).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import ensure_stream
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_nats_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from fleetbus_proto import codec, headers, subjects
from support.api.rendered_chart import AUDIT, SEED, Object, render, secret
from support.eventually import eventually
from support.servers.rendered_servers import RenderedNats, nats_config
from support.wire.samples import MESSAGE_KEY, event

PROGRAMS = Path(__file__).parents[2] / "examples" / "subscribers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fleetbus")
WITHIN = timedelta(seconds=40)
NAME = "fb-fleetbus-subscriber-audit-nats"
pytestmark = pytest.mark.full


def values(rotation: str = "") -> Object:
    rotate = {"subscriber-audit": rotation} if rotation else {}
    return {
        "credentials": {"seed": SEED, "rotate": rotate},
        "externalSubscribers": [AUDIT],
    }


def built(folder_name: str, files: list[str], command: list[str]) -> Path:
    """A folder with these files in which the command was run once per content of the files."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing: install Go or Node.js")
    digest = hashlib.sha256()
    for name in files:
        digest.update((PROGRAMS / name).read_bytes())
    folder = CACHE / f"{folder_name}-{digest.hexdigest()[:12]}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copy(PROGRAMS / name, folder)
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{' '.join(command)} failed: {done.stderr[-500:]}")
        (folder / "done").touch()
    return folder


def python() -> list[str]:
    return [sys.executable, str(PROGRAMS / "subscriber.py")]


def go() -> list[str]:
    files = ["subscriber.go", "go.mod", "go.sum"]
    command = ["go", "build", "-mod=readonly", "-o", "subscriber", "."]
    return [str(built("subscriber-go", files, command) / "subscriber")]


def javascript() -> list[str]:
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    folder = built("subscriber-js", ["subscriber.mjs", "package.json"], command)
    return ["node", str(folder / "subscriber.mjs")]


@dataclass
class Server:
    """The rendered NATS on a port that it keeps, and the Secret of the subscriber as files."""

    folder: Path
    held: HeldPort
    child: Child | None = None

    async def start(self, rotation: str = "") -> None:
        """Start it, or restart it with another password of the subscriber."""
        if self.child is not None:
            await self.child.stop()
        # Like `lookup` of an upgrade: the certificates stay, only the configuration is another.
        scratch = self.folder if self.child is None else self.folder / "rotated"
        scratch.mkdir(exist_ok=True)
        text = nats_config(values(rotation), scratch).replace(str(scratch), str(self.folder))
        accounts = (scratch / "accounts.conf").read_text()
        (self.folder / "accounts.conf").write_text(accounts)
        config = self.folder / "nats.conf"
        config.write_text(text.replace("127.0.0.1:-1", f"127.0.0.1:{self.held.number}", 1))
        command = [find_nats_server(), "-c", str(config)]
        self.child = Child("nats", command, log=self.folder / "nats.log")

    def write_secret(self, rotation: str = "") -> dict[str, str]:
        """Write the subscriber's files; returns its environment."""
        login = secret(render(values(rotation)), NAME)
        password = self.folder / "password"
        password.write_text(login["password"])
        return {
            "FLEETBUS_NATS_URL": self.address,
            "FLEETBUS_NATS_USERNAME": login["username"],
            "FLEETBUS_NATS_PASSWORD_FILE": str(password),
            "FLEETBUS_NATS_CA_FILE": str(self.ca),
            "SUBSCRIBER_DURABLE": login["durable"],
            "SUBSCRIBER_INBOX_PREFIX": login["inboxPrefix"],
        }

    @property
    def address(self) -> str:
        return f"tls://127.0.0.1:{self.held.number}"

    @property
    def ca(self) -> Path:
        return self.folder / "nats-tls" / "ca.crt"


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[tuple[Server, Bus]]:
    """The server, and the projector, which makes the durable consumer."""
    server = Server(folder, HeldPort(LOOPBACK, 0))
    try:
        await server.start()
        rendered = RenderedNats(server.address, render(values()), folder, server.ca)
        await eventually(lambda: "Server is ready" in (folder / "nats.log").read_text())
        async with connected(rendered.access("projector"), name="projector") as hub:
            await ensure_stream(hub)
            await ensure_consumer(hub, "subscriber-audit", AUDIT["subjects"])
            yield server, hub
    finally:
        if server.child is not None:
            await server.child.stop()
        server.held.release()


async def publish(hub: Bus, version: str) -> None:
    message = event(verb=subjects.Verb.MODIFIED, resource_version=version)
    m = message
    subject = subjects.event_subject(m.cluster, m.group, m.resource, m.namespace, m.name, m.verb)

    async def is_stored() -> bool:
        try:
            fields = headers.build(message, MESSAGE_KEY)
            await hub.request(subject, codec.encode(message), headers=fields)
        except Exception:  # noqa: BLE001 -- the server is restarting
            return False
        return True

    await eventually(is_stored, WITHIN)


async def acknowledged(hub: Bus) -> int:
    info: Any = await consumer_info(hub, "subscriber-audit")
    return info["ack_floor"]["stream_seq"] if info and not info["num_ack_pending"] else 0


@pytest.mark.parametrize("command", [python, go, javascript])
async def test_s5_a_subscriber_goes_on_after_a_restart_and_a_rotation(
    tmp_path: Path, command: Callable[[], list[str]]
):
    words = await asyncio.to_thread(command)
    log = tmp_path / "subscriber.log"
    async with running(tmp_path) as (server, hub):
        child = Child("subscriber", words, log=log, env=os.environ | server.write_secret())
        try:
            for number, rotation in enumerate(["", "", "2"], start=1):
                if number > 1:
                    await server.start(rotation)
                await publish(hub, str(100 + number))
                server.write_secret(rotation)  # the kubelet swaps files after the restart
                line = f"modified eu1 apps deployments prod web {100 + number}"
                await eventually(lambda line=line: line in log.read_text(), WITHIN)
                await eventually(lambda number=number: is_at(hub, number), WITHIN)
        finally:
            await child.stop()
    assert log.read_text().count("modified eu1") == 3, log.read_text()


async def is_at(hub: Bus, number: int) -> bool:
    return await acknowledged(hub) == number
