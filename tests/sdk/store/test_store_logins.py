"""Logins of the store from files: rotated under load, refused, mended (rules S2, S8)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.errors import ConfigError, StoreError
from fleetbus.process.access.store import StoreAccess, store_access
from fleetbus.process.health import Health
from fleetbus.store.blocking import make_blocking
from fleetbus.store.connection import connect, connect_patiently
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import valkey_server
from fleetbus_emulator.ports import HeldPort
from support.eventually import eventually
from support.rows import each_row
from support.servers.identities import Authority
from support.servers.store_nodes import StoreTls, tls_access, tls_store, write_client
from support.servers.valkey_cluster import valkey_cluster
from support.servers.valkey_sentinel import valkey_with_sentinel

CANARY = "CANARY-9b2e"
ENOUGH = 30
USER = "fleetbus"


@dataclass
class Servers:
    """An address, and all servers behind it."""

    url: str
    each: list[str]

    async def on_each(self, *words: str) -> None:
        for url in self.each:
            async with Redis.from_url(url) as admin:
                await admin.execute_command(*words)


@asynccontextmanager
async def one(folder: Path) -> AsyncGenerator[Servers]:
    async with valkey_server(dir=folder) as server:
        yield Servers(server.url, [server.url])


@asynccontextmanager
async def sentinel(folder: Path) -> AsyncGenerator[Servers]:
    async with valkey_with_sentinel(folder) as servers:
        yield Servers(servers.url, [servers.first.url, servers.sentinel.url])


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[Servers]:
    async with valkey_cluster(folder) as servers:
        yield Servers(servers.url, [server.url for server in servers.servers])


async def set_password(servers: Servers, word: str) -> None:
    rules = ("reset", "on", f">{CANARY}-{word}", "~*", "&*", "+@all")
    await servers.on_each("ACL", "SETUSER", USER, *rules)


class Load:
    """Counts up without a pause, and how often that was confirmed."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self.confirmed = 0
        self.failed = 0

    async def run(self) -> None:
        while True:
            try:
                await self._client.incr("count")
                self.confirmed += 1
            except errors.RedisError:
                self.failed += 1
            await asyncio.sleep(0.002)  # the pace of the load


@pytest.mark.parametrize("kind", [one, sentinel, cluster])
@pytest.mark.full
async def test_s2_a_rotated_password_under_load_loses_no_confirmed_write(
    tmp_path: Path, kind: Callable[..., Any]
):
    file = tmp_path / "password"
    file.write_text(f"{CANARY}-one\n")
    async with kind(tmp_path / "store") as servers, AsyncExitStack() as stack:
        await set_password(servers, "one")
        options: dict[str, Any] = {"url": servers.url, "username": USER, "password_file": file}
        if kind is sentinel:
            options |= {"sentinel_username": USER, "sentinel_password_file": file}
        access, health = store_access(options), Health()
        client = await connect_patiently(access, health)
        stack.push_async_callback(client.aclose)
        blocking: Any = make_blocking(access)
        stack.callback(blocking.close)
        load = Load(client)
        task = asyncio.create_task(load.run())
        stack.callback(task.cancel)
        await eventually(lambda: load.confirmed > ENOUGH)
        with capture_logs() as logs:
            await set_password(servers, "two")
            await servers.on_each("CLIENT", "KILL", "USER", USER)
            await eventually(lambda: load.failed and client.trouble)
            assert not health.is_ready
            await eventually(lambda: "PASSWORD_FILE" in str(logs))  # the store's, or the Sentinels'
            file.write_text(f"{CANARY}-two\n")
            before = load.confirmed
            await eventually(lambda: load.confirmed > before + ENOUGH)
        await eventually(lambda: health.is_ready)  # nobody asks the other nodes of a Cluster
        assert CANARY not in str(logs) + repr(access)
        assert await asyncio.to_thread(blocking.execute_command, "GET", "count")
        task.cancel()
        assert int(await client.get("count") or 0) >= load.confirmed


@pytest.mark.slow
async def test_sentinels_that_refuse_a_login_are_named_with_their_settings(tmp_path: Path):
    file, of_sentinels = tmp_path / "password", tmp_path / "sentinels"
    file.write_text(f"{CANARY}-one\n")
    of_sentinels.write_text(f"{CANARY}-one\n")
    async with sentinel(tmp_path / "store") as servers, AsyncExitStack() as stack:
        await set_password(servers, "one")
        options = {"url": servers.url, "username": USER, "password_file": file}
        options |= {"sentinel_username": USER, "sentinel_password_file": of_sentinels}
        client = await connect_patiently(store_access(options), Health())
        stack.push_async_callback(client.aclose)
        load = Load(client)
        task = asyncio.create_task(load.run())
        stack.callback(task.cancel)
        with capture_logs() as logs:
            await set_password(Servers(servers.url, servers.each[1:]), "two")
            for url in reversed(servers.each):  # the Sentinel first: it must not be asked again
                killed = Servers(servers.url, [url])
                await killed.on_each("CLIENT", "KILL", "USER", USER)
            await eventually(lambda: "FLEETBUS_REDIS_SENTINEL_PASSWORD_FILE" in str(logs))
            of_sentinels.write_text(f"{CANARY}-two\n")
            before = load.confirmed
            await eventually(lambda: load.confirmed > before + ENOUGH)
        assert "redis.asyncio" not in str(logs)
        assert CANARY not in str(logs)


@pytest.mark.slow
async def test_a_closed_client_for_threads_leaves_no_connection_to_a_sentinel(tmp_path: Path):
    # The garbage collector would close it, and sometimes warn of the socket before it does.
    async with valkey_with_sentinel(tmp_path) as servers:
        blocking: Any = make_blocking(servers.url, client_name="of-a-thread")
        assert await asyncio.to_thread(blocking.execute_command, "PING")
        assert await is_connected(servers.sentinel.url, "of-a-thread")
        blocking.close()
        for url in (servers.first.url, servers.sentinel.url):
            await eventually(lambda url=url: is_gone(url, "of-a-thread"))


async def is_connected(url: str, name: str) -> bool:
    async with Redis.from_url(url) as admin:
        clients: Any = await admin.client_list()
    return name in [entry["name"] for entry in clients]


async def is_gone(url: str, name: str) -> bool:
    return not await is_connected(url, name)


@dataclass
class OneTlsStore:
    """A store that only takes clients with a certificate, and no others."""

    port: int
    tls: StoreTls

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}"


@asynccontextmanager
async def one_tls_store(
    folder: Path, authority: Authority, more: Sequence[str] = ()
) -> AsyncGenerator[OneTlsStore]:
    binary = tls_store()
    port = HeldPort("127.0.0.1", 0)
    made = OneTlsStore(port.number, StoreTls(folder))
    made.tls.use(authority)
    options = ["--port", "0", "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *more]
    child = Child("redis", [binary, *options, *made.tls.options(port.number)], log=folder / "log")
    try:
        yield made
    finally:
        await child.stop()
        port.release()


async def test_s2_rotated_certificates_under_load_lose_no_confirmed_write(tmp_path: Path):
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    mine = tmp_path / "mine"
    write_client(mine, first)
    async with one_tls_store(tmp_path / "store", first) as store, AsyncExitStack() as stack:
        health = Health()
        client = await connect_patiently(tls_access(store.url, mine), health)
        stack.push_async_callback(client.aclose)
        load = Load(client)
        task = asyncio.create_task(load.run())
        stack.callback(task.cancel)
        await eventually(lambda: load.confirmed > ENOUGH)
        await client.execute_command("CONFIG", "SET", *store.tls.use(second))
        with suppress(errors.RedisError):
            await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
        await eventually(lambda: client.trouble)
        assert not health.is_ready
        write_client(mine, second)
        before = load.confirmed
        await eventually(lambda: load.confirmed > before + ENOUGH)
        assert health.is_ready
        task.cancel()
        assert int(await client.get("count") or 0) >= load.confirmed
        blocking: Any = make_blocking(tls_access(store.url, mine))
        assert await asyncio.to_thread(blocking.execute_command, "PING")
        blocking.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
async def test_s2_a_client_trusts_our_ca_and_no_other_that_the_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
):
    """Also that of a thread, which extends leases: redis-py would trust both."""
    known, other = Authority(tmp_path / "known"), Authority(tmp_path / "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(known.ca))
    mine = tmp_path / "mine"
    write_client(mine, known)
    tls_store()  # skips here, before the port is held
    bus = HeldPort("127.0.0.1", 0)
    of_cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"]
    more = [*of_cluster, "--cluster-port", str(bus.number)] if "cluster" in scheme else []
    async with one_tls_store(tmp_path / "store", known, more) as store:
        if more:
            await take_all_slots(tls_access(store.url, mine))
        trusted = tls_access(store.url.replace("rediss", scheme), mine)
        client = await connect_patiently(trusted, Health())
        await client.aclose()
        blocking: Any = make_blocking(trusted)
        assert await asyncio.to_thread(blocking.execute_command, "SET", "a", "b")
        blocking.close()
        shutil.copy(other.ca, mine / "ca.crt")
        refused = (errors.RedisError, errors.RedisClusterException)
        with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(trusted)
        blocking = make_blocking(trusted)
        with pytest.raises(refused, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(blocking.execute_command, "SET", "a", "b")
        blocking.close()
    bus.release()


async def take_all_slots(access: StoreAccess) -> None:
    """Make a Cluster of one node, once it answers."""
    client: Any = make_blocking(access)

    async def call(*words: str) -> str:
        with suppress(errors.ConnectionError):
            return str(await asyncio.to_thread(client.execute_command, *words))
        return ""

    await eventually(lambda: call("PING"))
    await call("CLUSTER", "ADDSLOTSRANGE", "0", "16383")

    async def is_up() -> bool:
        return "cluster_state:ok" in await call("CLUSTER", "INFO")

    await eventually(is_up)
    client.close()


async def test_who_is_refused_says_which_file_is_not_ready_and_recovers(tmp_path: Path):
    file = tmp_path / "password"
    async with one(tmp_path / "store") as servers:
        await set_password(servers, "one")
        access = store_access({"url": servers.url, "username": USER, "password_file": file})
        for content, problem in (
            (None, f"FLEETBUS_REDIS_PASSWORD_FILE ({file}): cannot be read: No such file"),
            ("\n", f"FLEETBUS_REDIS_PASSWORD_FILE ({file}): the file is empty"),
            (f"{CANARY}-old", "check user and password: FLEETBUS_REDIS_USERNAME and the file"),
        ):
            if content is not None:
                file.write_text(content)
            with pytest.raises(StoreError) as caught:  # a command waits for nobody
                await connect(access)
            assert problem in str(caught.value)
            assert CANARY not in str(caught.value)
        health = Health()
        with capture_logs() as logs:
            task = asyncio.create_task(connect_patiently(access, health))
            await eventually(lambda: "waiting_until_usable" in str(logs))
            assert not health.is_ready
            file.write_text(f"{CANARY}-one")
            client = await asyncio.wait_for(task, 10)
        assert health.is_ready
        await client.aclose()
        assert "redis.asyncio" not in str(logs)
        assert CANARY not in str(logs)


async def test_a_certificate_that_is_not_accepted_is_named_on_both_sides(tmp_path: Path):
    good, other = Authority(tmp_path / "good"), Authority(tmp_path / "other")
    mine = tmp_path / "mine"
    async with one_tls_store(tmp_path / "store", good) as store:
        write_client(mine, other)
        await eventually(lambda: _fails_with(store, mine, "check the CA certificates of"))
        shutil.copy(good.ca, mine / "ca.crt")
        await eventually(lambda: _fails_with(store, mine, "check FLEETBUS_REDIS_CERT_FILE"))
        (mine / "ca.crt").write_text(CANARY)
        await eventually(lambda: _fails_with(store, mine, "ca.crt): no certificate in PEM"))


async def _fails_with(store: OneTlsStore, mine: Path, problem: str) -> bool:
    with pytest.raises(StoreError) as caught:
        await connect(tls_access(store.url, mine))
    assert CANARY not in str(caught.value)
    return problem in str(caught.value)


@each_row(
    ("values", "message"),
    [
        ({"username": "a"}, "FLEETBUS_REDIS_USERNAME needs FLEETBUS_REDIS_PASSWORD_FILE"),
        ({"ca_file": "a"}, "FLEETBUS_REDIS_CA_FILE needs an address with TLS"),
        ({"url": "rediss://h", "cert_file": "a"}, "CERT_FILE needs FLEETBUS_REDIS_KEY_FILE"),
        (
            {"url": f"redis://:{CANARY}@h", "password_file": "a"},
            "FLEETBUS_REDIS_URL and FLEETBUS_REDIS_PASSWORD_FILE both",
        ),
    ],
)
def test_contradicting_settings_are_named(values: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        store_access({"url": "redis://h", **values})
    assert CANARY not in str(caught.value)
