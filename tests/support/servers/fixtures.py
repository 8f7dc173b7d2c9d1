"""The real servers, started once per run, and the guard against leaks; conftests import these.

`valkey_url` and `nats_url` give each test an empty store on the shared servers; tests run one
after the other. A test that breaks a server takes `store`, or starts one of its own
(`fleetbus_devfleet.processes.servers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import socket
from typing import TYPE_CHECKING, Any

import nats as nats_py
import pytest
from nats.js.errors import NotFoundError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleetbus.bus.patches.ordered_ping import OrderedPingClient
from fleetbus_devfleet.processes.servers import (
    NatsServer,
    ServerMissingError,
    ValkeyServer,
    find_valkey_server,
    nats_server_blocking,
    valkey_server,
    valkey_server_blocking,
)
from fleetbus_devfleet.shared_store import close_shared_store
from fleetbus_emulator.scratch import scratch_folder
from support.eventually import eventually
from support.processes.running import running_children

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence
    from pathlib import Path

    from nats.aio.client import Client

# A cancelled task needs some turns of the loop to end; a leaked one never ends.
_LEAK_PATIENCE_SECONDS = 1.0
_OURS = "no_leaked_tasks"


@pytest.fixture(scope="session")
def servers_folder() -> Generator[Path]:
    """The folder of the shared servers; at its end no process of ours may run."""
    with scratch_folder("tests") as folder:
        yield folder
    close_shared_store()  # examples ask for one, as their readers do
    assert running_children() == [], "a test left processes behind"


@pytest.fixture(scope="session")
def nats_process(servers_folder: Path) -> Generator[NatsServer]:
    """The shared NATS; use `nats_url` or `nats` unless you need its process."""
    with nats_server_blocking(store_dir=servers_folder / "nats") as server:
        yield server


@pytest.fixture(scope="session")
def store_processes(servers_folder: Path) -> Generator[Callable[[str], ValkeyServer]]:
    """The shared stores, by which one: each is started when it is first needed."""
    with contextlib.ExitStack() as running:

        @functools.cache
        def start(which: str) -> ValkeyServer:
            folder = servers_folder / f"store-{which}"
            return running.enter_context(valkey_server_blocking(dir=folder, store=which))

        yield start


def is_installed(which: str) -> bool:
    """Whether a store is there: `valkey` or `redis`."""
    try:
        find_valkey_server(which)
    except ServerMissingError:
        return False
    return True


@pytest.fixture
def valkey_process(
    request: pytest.FixtureRequest, store_processes: Callable[[str], ValkeyServer]
) -> ValkeyServer:
    """The shared store; use `valkey_url` or `redis` unless you need its process.

    It is Valkey, or what FLEETBUS_DEV_STORE names, or what the marker `stores` of the test does.
    """
    try:
        return store_processes(getattr(request, "param", ""))
    except ServerMissingError as e:
        pytest.skip(str(e))


@pytest.fixture
def valkey_url(valkey_process: ValkeyServer) -> str:
    """The URL of an empty Valkey."""
    host, _, port = valkey_process.url.removeprefix("redis://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(16) == b"+OK\r\n"
    return valkey_process.url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[ValkeyServer]:
    """A Valkey of this test alone, to be broken."""
    async with valkey_server(dir=tmp_path / "valkey") as server:
        yield server


@pytest.fixture
async def redis(valkey_url: str) -> AsyncGenerator[Redis]:
    """A client of an empty Valkey that never sends a command twice (rule Q11)."""
    async with Redis.from_url(valkey_url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
async def nats_url(nats_process: NatsServer) -> str:
    """The URL of a NATS without streams (and so without key-value buckets)."""
    await eventually(lambda: _has_swept(nats_process))  # what the last test deleted itself
    client = await nats_py.connect(nats_process.url)
    jetstream = client.jetstream()
    try:
        for stream in await jetstream.streams_info():
            await jetstream.delete_stream(str(stream.config.name))
    except NotFoundError:
        pass
    finally:
        await client.close()
    await eventually(lambda: _has_swept(nats_process))
    return nats_process.url


def _has_swept(server: NatsServer) -> bool:
    """Whether nothing is left of deleted streams.

    The server hides the folder of a stream that is deleted, and removes it later. Meanwhile it
    cannot hide another one of that name: that stays, and the next stream of the name begins with
    all its messages.
    """
    streams = server.store_dir / "jetstream" / "$G" / "streams"
    try:
        return not any(path.name.startswith(".") for path in streams.iterdir())
    except FileNotFoundError:  # the server removes the folder too, at any time
        return True


@pytest.fixture
async def nats(nats_url: str) -> AsyncGenerator[Client]:
    """A client of a NATS without streams; its `flush` comes after what was sent before it."""
    client = OrderedPingClient()
    await client.connect(nats_url)
    yield client
    await client.close()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> None:
    """Ask for `no_leaked_tasks` where there can be any: an unused event loop takes 2 ms a test."""
    definitions: dict[str, Sequence[pytest.FixtureDef[Any]]] = (
        request.node._fixtureinfo.name2fixturedefs
    )
    fixtures = [
        each.func for name, each_of in definitions.items() for each in each_of if name != _OURS
    ]
    if any(_is_async(function) for function in (request.function, *fixtures)):
        request.getfixturevalue(_OURS)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


@pytest.fixture
async def no_leaked_tasks() -> AsyncGenerator[None]:
    """A test that leaves a task behind, or whose task died unseen, fails."""
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: unhandled.append(context))
    before = asyncio.all_tasks()
    yield
    # Teardown runs in a task of its own.
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    if leaked:
        _, leaked = await asyncio.wait(leaked, timeout=_LEAK_PATIENCE_SECONDS)
    assert not leaked, f"tasks outlived the test: {leaked}"
    gc.collect()  # the fate of a task that died unseen is logged when it is collected
    assert not unhandled, f"exceptions that nobody handled: {unhandled}"
