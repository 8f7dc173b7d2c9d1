"""`ha: true`: three servers of NATS and of Valkey, of which one is stopped, killed or cut off.

They run as pods, with their rendered commands, probes, users and certificates, and are reached as
the components reach them. Part of `make scenarios`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import StreamLimits, ensure_all, stream_info
from fleetbus.errors import BusError
from fleetbus.store.connection import connect
from fleetbus_proto.subjects import STREAM
from support.api.rendered_chart import SEED, Object, secret
from support.eventually import eventually
from support.kubelet.images import missing_store
from support.kubelet.isolation import in_isolation
from support.rigs.store_pods import StorePods, store_pods

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

VALUES: Object = {"ha": True, "credentials": {"seed": SEED}}
POD = "fleetbus.events.eu1.core.pods.a.b.added"
KEY = "fleetbus:{fleet:0}:test"
SOON = timedelta(minutes=1)


@in_isolation
async def test_a_valkey_that_is_stopped_killed_or_cut_off_is_followed_by_another(tmp_path: Path):
    if reason := missing_store():
        pytest.skip(reason)
    async with store_pods("valkey", VALUES, tmp_path) as pods:
        client = await connect(pods.valkey("projector"))
        try:
            assert master(pods) == 0
            await write(client, "first")
            await stop_master(pods, client)
            await cut_master_off(pods, client)
            await cut_power(pods, client)
        finally:
            await client.aclose()


async def stop_master(pods: StorePods, client: Redis) -> None:
    """A master that is stopped in good order hands over first: nothing is lost."""
    number = master(pods)
    assert number is not None
    uid = uid_of(pods, number)
    pods.delete(number)
    await eventually(lambda: master(pods) not in (None, number), SOON)
    assert await eventually(lambda: read(client), SOON) == "first"
    await eventually(lambda: uid_of(pods, number) not in ("", uid), SOON)
    await pods.ready()
    assert role(pods, number)[0] == "slave"
    await write(client, "second")


async def cut_master_off(pods: StorePods, client: Redis) -> None:
    """A master that is cut off takes no writes, and follows the next one when it is back."""
    number = master(pods)
    assert number is not None
    pods.cut(number)
    await eventually(lambda: "NOREPLICAS" in write_inside(pods, number), SOON)
    await eventually(lambda: master(pods) not in (None, number), SOON)
    assert await eventually(lambda: read(client), SOON) == "second"
    await write(client, "third")
    pods.heal(number)
    await eventually(lambda: role(pods, number)[0] == "slave", SOON)
    await pods.ready()
    await write(client, "fourth")


async def cut_power(pods: StorePods, client: Redis) -> None:
    """All are killed at once: the last master is the master again, not the first server."""
    number = master(pods)
    assert number is not None
    # The others have it, whichever of them were to take over.
    await eventually(lambda: all("fourth" in read_inside(pods, n) for n in range(3)), SOON)
    for killed in range(3):
        pods.kill(killed)
    assert await eventually(lambda: read(client), SOON) == "fourth"
    await pods.ready()
    assert master(pods) is not None


def uid_of(pods: StorePods, number: int) -> str:
    return pods.pod(number).get("metadata", {}).get("uid", "")


async def write(client: Redis, text: str) -> None:
    async def is_written() -> bool:
        try:
            return bool(await client.set(KEY, text))
        except RedisError:
            return False

    await eventually(is_written, SOON)


async def read(client: Redis) -> str:
    try:
        stored: Any = await client.get(KEY)
    except RedisError:
        return ""
    return (stored or b"").decode()


def inside(pods: StorePods, number: int, user: str, *words: str) -> str:
    """The answer of a server to a client in its own pod."""
    name = "valkey-config" if user == "probe" else f"{user}-redis"
    password = secret(pods.objects, f"fb-fleetbus-{name}")[
        "probe" if user == "probe" else "password"
    ]
    command = ("valkey-cli", "--user", user, "--tls", "--insecure", *words)
    try:
        return pods.run(number, *command, REDISCLI_AUTH=password)
    except FileNotFoundError:  # it is being replaced
        return ""


def write_inside(pods: StorePods, number: int) -> str:
    return inside(pods, number, "projector", "set", f"{KEY}:inside", "x")


def read_inside(pods: StorePods, number: int) -> str:
    return inside(pods, number, "projector", "get", KEY)


def role(pods: StorePods, number: int) -> list[str]:
    return inside(pods, number, "probe", "role").split() or [""]


def master(pods: StorePods) -> int | None:
    """The server that says so, and has replicas."""
    roles = {number: role(pods, number) for number in range(3)}
    found = [number for number, words in roles.items() if words[0] == "master" and len(words) > 3]
    return found[0] if len(found) == 1 else None


@in_isolation
async def test_a_nats_server_that_is_lost_with_its_disk_catches_up_from_the_others(tmp_path: Path):
    async with (
        store_pods("nats", VALUES, tmp_path) as pods,
        connected(pods.nats("projector"), name="projector") as bus,
    ):
        limits = StreamLimits(replicas=3)
        await eventually(lambda: is_done(ensure_all(bus, limits)), SOON)
        await bus.request(POD, b"one")
        for number in range(3):
            pods.kill(number)
            pods.lose_disk(number)
            await eventually(lambda: is_done(bus.request(POD, b"more")), SOON)
            await pods.ready()
        info = await eventually(lambda: stream_info(bus, STREAM), SOON)
        assert info is not None
        assert info["config"]["num_replicas"] == 3
        assert info["state"]["messages"] >= 4


async def is_done(call: Awaitable[object]) -> bool:
    try:
        await call
    except BusError:
        return False
    return True
