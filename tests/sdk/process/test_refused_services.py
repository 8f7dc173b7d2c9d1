"""Services that cannot use a server: not ready, alive, silent about secrets.

Kubeconfigs that come late, logins that are refused (rules B13, S2), servers that are too old or set
up otherwise (B12, P16).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import call_jetstream, ensure_stream, stream_info
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.full import FULL
from support.processes.programs import installed
from support.servers.health_probes import read_probe
from support.servers.identities import secured_nats
from support.servers.old_nats import old_nats

CANARY = "CANARY-c41d"
GOOD = f"{CANARY}-good"
LOGINS = f'authorization {{ users: [ {{ user: w, password: "{GOOD}" }} ] }}\n'
WITHIN = timedelta(seconds=30)
PROGRAMS: dict[str, Sequence[str]] = {
    "watcher": ("fleetbus-watcher", "--cluster", "eu1"),
    "pool": ("fleetbus-watcher", "--pool"),
    "reconciler": ("fleetbus-reconciler",),
    "distributor": ("fleetbus-distributor",),
    "query-api": ("fleetbus-query-api",),
    "archiver": ("fleetbus-archiver",),
}
# Each takes a second of CPU to start. All start as these do, as `make scenarios` shows.
SERVICES = tuple(PROGRAMS) if FULL else ("watcher", "reconciler")
NEED_STORE = frozenset({"reconciler", "distributor", "query-api"})
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
        "FLEETBUS_ARCHIVER_URL": f"file://{folder}/archive",
        "FLEETBUS_WATCHER_RESOURCES": '["configmaps"]',
        "FLEETBUS_QUERY_API_AUTHENTICATION": "none",
        "FLEETBUS_LOG_LEVEL": "debug",
    }


def start_all(folder: Path, shared: dict[str, str], stack: AsyncExitStack) -> dict[str, Child]:
    """Start every service; its health port and its log are files named for it."""
    children: dict[str, Child] = {}
    for name in SERVICES:
        words = PROGRAMS[name]
        port = {"FLEETBUS_HEALTH_PORT_FILE": str(folder / f"{name}.port")}
        kubeconfig = ["--kubeconfig", str(folder / "kubeconfig")] if name == "watcher" else []
        command = installed(words[0], *words[1:], *kubeconfig)
        child = Child(name, command, log=folder / f"{name}.log", env=shared | port)
        stack.push_async_callback(child.stop)
        children[name] = child
    return children


@pytest.mark.slow
@pytest.mark.longer
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
        (tmp_path / "kubeconfig").rename(tmp_path / "late")
        children = start_all(tmp_path, shared, stack)
        # The query API authenticates nobody here, and the archiver knows no API server.
        for name in children.keys() - {"query-api", "archiver"}:
            await eventually(lambda name=name: _misses_kubeconfig(tmp_path, name), WITHIN)
        (tmp_path / "late").rename(tmp_path / "kubeconfig")
        for name, child in children.items():
            await eventually(lambda name=name: _is_refused(tmp_path, name), WITHIN)
            assert child.is_running
            assert (await read_probe(tmp_path / f"{name}.port", "/healthz"))[0] == 200
        password.write_text(f"{GOOD}\n")
        for name, child in children.items():
            await eventually(lambda name=name: _is_connected(tmp_path, name), WITHIN)
            child.raise_if_ended()
            texts = [(tmp_path / f"{name}.log").read_text()]
            texts += [(await read_probe(tmp_path / f"{name}.port", "/metrics"))[1]]
            texts += [Path(f"/proc/{child.pid}/{file}").read_text() for file in _OF_PROCESS]
            assert CANARY not in "".join(texts), name


_OF_SERVERS = frozenset({"nats", "redis", "shards", "start", "stream", "snapshot"})
"""Readiness checks of servers, and of the start."""
_OF_PROCESS = ("cmdline", "environ")


@pytest.mark.slow
@pytest.mark.longer
async def test_p16_b12_unusable_servers_are_named_and_waited_for_by_each_service(
    tmp_path: Path, password: Path
):
    """Each is replaced by a right one while the services wait, and none of them is restarted."""
    password.write_text(GOOD)
    async with AsyncExitStack() as stack, AsyncExitStack() as old:
        evicting = ["--maxmemory-policy", "allkeys-lru"]
        store = await stack.enter_async_context(
            valkey_server(dir=tmp_path / "store", options=evicting)
        )
        await _prepare_bus(tmp_path / "nats")
        address = await old.enter_async_context(old_nats())
        shared = environment(tmp_path, password, address, store.url)
        for way in ("NATS", "REDIS"):  # these servers let in everybody
            del shared[f"FLEETBUS_{way}_USERNAME"], shared[f"FLEETBUS_{way}_PASSWORD_FILE"]
        admin = await stack.enter_async_context(Redis.from_url(store.url))
        await admin.set(SnapshotKeys().generation(0), "other/3")
        children = start_all(tmp_path, shared, stack)

        await _all_say(tmp_path, ("watcher", "pool"), "nats: runs nats-server 2.9.10")
        await _all_say(tmp_path, NEED_STORE, "redis: .*maxmemory-policy allkeys-lru")
        await admin.config_set("maxmemory-policy", "noeviction")
        await _all_say(tmp_path, NEED_STORE, "shards: .*set FLEETBUS_SHARDS=3")
        await admin.delete(SnapshotKeys().generation(0))
        await _all_say(tmp_path, ("reconciler", "distributor"), "nats: runs nats-server 2.9.10")

        await old.aclose()
        port = int(address.rpartition(":")[2])
        await stack.enter_async_context(nats_server(store_dir=tmp_path / "nats", port=port))
        await _all_say(tmp_path, ("reconciler",), "stream: .*field duplicate_window is 60")
        async with connected(address, name="owner") as owner:
            await _set_duplicate_window(owner, 120)
        for name in SERVICES:
            await eventually(lambda name=name: _is_connected(tmp_path, name), WITHIN)
        for child in children.values():
            child.raise_if_ended()


async def _prepare_bus(folder: Path) -> None:
    """Leave a stream with another configuration in the folder of a server."""
    async with nats_server(store_dir=folder) as server, connected(server.url, name="owner") as bus:
        await ensure_stream(bus)
        await _set_duplicate_window(bus, 60)


async def _set_duplicate_window(bus: Bus, seconds: int) -> None:
    info = await stream_info(bus)
    assert info is not None
    config = info["config"] | {"duplicate_window": seconds * 1_000_000_000}
    await call_jetstream(bus, f"STREAM.UPDATE.{STREAM}", config)


async def _all_say(folder: Path, names: Collection[str], pattern: str) -> None:
    """Wait until none of these services is ready, and each says why; all of them are alive."""

    async def is_said(name: str) -> bool:
        status, body = await read_probe(folder / f"{name}.port", "/readyz")
        return status == 503 and re.search(pattern, body) is not None

    for name in set(names) & set(SERVICES):
        await eventually(lambda name=name: is_said(name), WITHIN)
        assert (await read_probe(folder / f"{name}.port", "/healthz"))[0] == 200


async def _misses_kubeconfig(folder: Path, name: str) -> bool:
    status, text = await read_probe(folder / f"{name}.port", "/readyz")
    return status == 503 and f"{folder}/kubeconfig: cannot read the kubeconfig" in text


async def _is_refused(folder: Path, name: str) -> bool:
    status, body = await read_probe(folder / f"{name}.port", "/readyz")
    return status == 503 and "_PASSWORD_FILE" in body


async def _is_connected(folder: Path, name: str) -> bool:
    _, body = await read_probe(folder / f"{name}.port", "/readyz")
    return not _OF_SERVERS & {line.partition(":")[0] for line in body.splitlines()}
