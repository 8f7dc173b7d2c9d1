"""A master of the chart's Valkey hands over with every write, as before it is stopped (S8).

Without TLS, so that it runs on the Valkey of the wheel: Debian's Redis has no coordinated failover.
Its users need the rights that a Sentinel uses for it. Part of `make scenarios`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.api.rendered_chart import Object, render, secret
from support.eventually import eventually

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

VALUES: Object = {"ha": True, "tls": {"enabled": False}}
HOST = "localhost"
KEY = "fleetbus:{fleet:0}:test"
SOON = timedelta(minutes=1)


@asynccontextmanager
async def server(folder: Path, text: str, *words: str, port: int) -> AsyncGenerator[None]:
    """Run a server or a Sentinel with a configuration."""
    folder.mkdir()
    (folder / "conf").write_text(f"{text}\ndir {folder}\n")
    command = [find_valkey_server(), folder / "conf", *words, "--port", str(port)]
    child = Child(folder.name, command, log=folder / "log")
    try:
        yield
    finally:
        await child.stop()


def configuration(rendered: dict[str, str], name: str, acl: str, folder: Path) -> str:
    """A rendered configuration whose users are in a folder, and which listens on loopback."""
    (folder / acl).write_text(rendered[acl])
    text = rendered[name].replace(f"/etc/valkey/{acl}", str(folder / acl))
    text = re.sub("^(port|dir|sentinel announce-port) .*$", "", text, flags=re.MULTILINE)
    return text.replace("bind * -::*", f"bind {LOOPBACK}")


def client(port: int, user: str, password: str) -> Redis:
    return Redis(port=port, username=user, password=password, decode_responses=True)


async def ask(asked: Redis, *words: str) -> Any:
    """The answer, or None without one."""
    try:
        return await cast("Any", asked).execute_command(*words)
    except RedisError:
        return None


async def test_s8_a_sentinel_of_the_chart_may_coordinate_a_failover(tmp_path: Path):
    objects = render(VALUES)
    rendered = secret(objects, "fb-fleetbus-valkey-config")
    password = secret(objects, "fb-fleetbus-projector-redis")["password"]
    config = configuration(rendered, "valkey.conf", "users.acl", tmp_path)
    sentinel_config = configuration(rendered, "sentinel.conf", "sentinel.acl", tmp_path)
    (of_master,) = re.findall(r"<<'end'\n(.*?)\nend\n", rendered["sentinel-start.sh"], re.DOTALL)
    async with AsyncExitStack() as stack:
        held = [HeldPort(LOOPBACK, 0) for _ in range(3)]
        for port in held:
            stack.callback(port.release)
        first, second, at = (port.number for port in held)
        announced = f"{config}\nreplica-announce-ip {HOST}"
        await stack.enter_async_context(server(tmp_path / "first", announced, port=first))
        following = f"{announced}\nreplicaof {HOST} {first}"
        await stack.enter_async_context(server(tmp_path / "second", following, port=second))
        monitor = f"sentinel monitor fleetbus {HOST} {first} 1\n{of_master}"
        text = f"{sentinel_config}\nsentinel announce-ip {HOST}\n{monitor}"
        sentinel = server(tmp_path / "sentinel", text, "--sentinel", port=at)
        await stack.enter_async_context(sentinel)
        probe, asking = client(at, "probe", rendered["probe"]), client(at, "projector", password)
        old, new = client(first, "projector", password), client(second, "projector", password)
        for opened in (probe, asking, old, new):
            stack.push_async_callback(opened.aclose)

        async def master() -> int:
            masters = await ask(asking, "SENTINEL MASTERS") or {"fleetbus": {"port": 0}}
            return masters["fleetbus"]["port"]

        await eventually(lambda: ask(old, "SET", KEY, "0"), SOON)
        if "valkey_version" not in (await ask(old, "INFO", "server") or {}):
            pytest.skip("only Valkey has coordinated failovers")
        failover = ("SENTINEL", "FAILOVER", "fleetbus", "coordinated")
        await eventually(lambda: ask(probe, *failover), SOON)  # once it knows the replica
        count = 0
        while await ask(old, "SET", KEY, str(count + 1)):
            count += 1
        await eventually(lambda: _is(master, second), SOON)
        assert int(await eventually(lambda: ask(new, "GET", KEY), SOON)) == count


async def _is(question: Any, number: int) -> bool:
    return await question() == number
