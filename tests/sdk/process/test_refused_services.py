"""Services whose logins are refused: not ready, alive, silent about secrets (rules B13, S2)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import valkey_server
from support.eventually import eventually
from support.processes.programs import installed
from support.servers.health_probes import read_probe
from support.servers.identities import secured_nats

CANARY = "CANARY-c41d"
GOOD = f"{CANARY}-good"
LOGINS = f'authorization {{ users: [ {{ user: w, password: "{GOOD}" }} ] }}\n'
WITHIN = timedelta(seconds=30)
SERVICES: dict[str, Sequence[str]] = {
    "watcher": ("fleetbus-watcher", "--cluster", "eu1"),
    "pool": ("fleetbus-watcher", "--pool"),
    "reconciler": ("fleetbus-reconciler",),
    "distributor": ("fleetbus-distributor",),
    "query-api": ("fleetbus-query-api",),
}
KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "contexts": [{"name": "eu1", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "current-context": "eu1",
}


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """The file of the password for both servers."""
    return tmp_path / "password"


def environment(folder: Path, password: Path, nats_url: str, redis_url: str) -> dict[str, str]:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    return os.environ | {
        "FLEETBUS_NATS_URL": nats_url,
        "FLEETBUS_NATS_USERNAME": "w",
        "FLEETBUS_NATS_PASSWORD_FILE": str(password),
        "FLEETBUS_REDIS_URL": redis_url,
        "FLEETBUS_REDIS_USERNAME": "w",
        "FLEETBUS_REDIS_PASSWORD_FILE": str(password),
        "FLEETBUS_ALLOW_LOOPBACK": "1",
        "FLEETBUS_PROVIDERS": json.dumps([{"type": "kubeconfig", "paths": [str(kubeconfig)]}]),
        "FLEETBUS_HUB_KUBECONFIG": str(kubeconfig),
        "FLEETBUS_HUB_CLUSTER": "hub",
        "FLEETBUS_WATCHER_RESOURCES": '["configmaps"]',
        "FLEETBUS_QUERY_API_AUTHENTICATION": "none",
        "FLEETBUS_LOG_LEVEL": "debug",
    }


async def test_s2_a_refused_service_names_the_file_waits_and_shows_no_secret(
    tmp_path: Path, password: Path
):
    password.write_text(f"{CANARY}-wrong\n")
    async with (
        secured_nats(tmp_path / "nats", LOGINS) as nats,
        valkey_server(dir=tmp_path / "store") as store,
        AsyncExitStack() as stack,
    ):
        async with Redis.from_url(store.url) as admin:
            await admin.execute_command(
                "ACL", "SETUSER", "w", "on", f">{GOOD}", "~*", "&*", "+@all"
            )
        shared = environment(tmp_path, password, nats.address, store.url)
        children: dict[str, Child] = {}
        for name, words in SERVICES.items():
            port = {"FLEETBUS_HEALTH_PORT_FILE": str(tmp_path / f"{name}.port")}
            kubeconfig = ["--kubeconfig", str(tmp_path / "kubeconfig")] if name == "watcher" else []
            command = installed(words[0], *words[1:], *kubeconfig)
            child = Child(name, command, log=tmp_path / f"{name}.log", env=shared | port)
            stack.push_async_callback(child.stop)
            children[name] = child
        for name, child in children.items():
            await eventually(lambda name=name: _is_refused(tmp_path, name), WITHIN)
            assert child.is_running
            assert (await read_probe(tmp_path / f"{name}.port", "/healthz"))[0] == 200
        password.write_text(f"{GOOD}\n")
        for name, child in children.items():
            await eventually(lambda name=name: _is_connected(tmp_path, name), WITHIN)
            child.raise_if_ended()
            shown = [(tmp_path / f"{name}.log").read_text()]
            shown += [(await read_probe(tmp_path / f"{name}.port", "/metrics"))[1]]
            shown += [Path(f"/proc/{child.pid}/{file}").read_text() for file in _OF_PROCESS]
            assert CANARY not in "".join(shown), name


_OF_PROCESS = ("cmdline", "environ")


async def _is_refused(folder: Path, name: str) -> bool:
    status, said = await read_probe(folder / f"{name}.port", "/readyz")
    return status == 503 and "_PASSWORD_FILE" in said


async def _is_connected(folder: Path, name: str) -> bool:
    _, said = await read_probe(folder / f"{name}.port", "/readyz")
    return not {"nats", "redis", "start"} & {line.partition(":")[0] for line in said.splitlines()}
