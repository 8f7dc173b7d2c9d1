"""Users of the embedded stores change while the servers run: their probes load them (rule S2)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus, NoStream, connected
from fleetbus.bus.durables import consumer_info, ensure_consumer
from fleetbus.bus.jetstream import ensure_stream
from support.api.rendered_chart import AUDIT, EU1, SEED, SHOP, Object, find, render, secret
from support.eventually import eventually
from support.servers.plain_nats_client import plain_client
from support.servers.rendered_servers import (
    RenderedNats,
    RenderedValkey,
    rendered_nats,
    rendered_valkey,
    run_nats_probe,
    run_valkey_probe,
)

POD = "fleetbus.events.eu1.core.pods.a.b.added"
FIRST: Object = {
    "credentials": {"seed": SEED},
    "tls": {"enabled": False},
    "watchers": {"clusters": [EU1]},
    "reconcilers": [SHOP],
}
MORE: Object = {
    **FIRST,
    "watchers": {"clusters": [EU1, {**EU1, "name": "us1"}]},
    "reconcilers": [SHOP, {**SHOP, "name": "mail", "controllers": ["mail"]}],
    "externalSubscribers": [AUDIT],
}


def rotated(*users: str, among: Object = FIRST) -> Object:
    return {**among, "credentials": {"seed": SEED, "rotate": dict.fromkeys(users, "2")}}


def write_accounts(server: RenderedNats, values: Object) -> RenderedNats:
    """Write the users of other values, as the kubelet does; how they log in."""
    objects = render(values)
    rendered = secret(objects, "fb-fleetbus-nats-config")
    (server.folder / "accounts.conf").write_text(rendered["accounts.conf"])
    return RenderedNats(server.address, objects, server.folder, server.ca)


async def may_log_in(server: RenderedNats, user: str) -> bool:
    try:
        async with plain_client(server.address, connect_timeout=5, **server.login(user)):
            return True
    except nats.errors.Error:
        return False


async def may_publish(bus: Bus, subject: str) -> bool:
    try:
        return bool(await bus.request(subject, b"event"))
    except NoStream:
        return False


async def test_s2_nats_takes_users_that_are_added_removed_and_changed(tmp_path: Path):
    async with (
        rendered_nats(FIRST, tmp_path) as first,
        connected(first.access("projector"), name="projector") as hub,
        connected(first.access("watcher-eu1"), name="watcher.eu1") as watcher,
    ):
        await ensure_stream(hub)
        await ensure_consumer(hub, "projector", ["fleetbus.events.>"])
        for _ in range(2):  # whatever it had loaded before
            assert run_nats_probe(tmp_path) == 0
        more = write_accounts(first, MORE)
        assert not await may_log_in(more, "subscriber-audit")
        assert run_nats_probe(tmp_path) == 0
        await eventually(lambda: may_log_in(more, "subscriber-audit"))
        assert run_nats_probe(tmp_path) == 0  # an account that is new gets its imports now
        await eventually(lambda: may_log_in(more, "watcher-us1"))
        async with connected(more.access("watcher-us1"), name="watcher.us1") as added:
            await eventually(lambda: may_publish(added, POD.replace("eu1", "us1")))
        # Nobody else has noticed: connections, streams and consumers are as they were.
        await watcher.request(POD, b"event")
        assert (await consumer_info(hub, "projector") or {})["num_pending"] == 2
        assert hub.disconnects == watcher.disconnects == 0

        changed = write_accounts(first, rotated("watcher-eu1"))
        assert run_nats_probe(tmp_path) == 0
        await eventually(lambda: watcher.disconnects == 1)  # it still has the old password
        assert not await may_log_in(more, "subscriber-audit")  # removed
        assert not await may_log_in(first, "watcher-eu1")
        assert await may_log_in(changed, "watcher-eu1")
        assert hub.disconnects == 0


def write_users(server: RenderedValkey, values: Object) -> RenderedValkey:
    """Write the users of other values, as the kubelet does; how they log in."""
    objects = render(values)
    rendered = secret(objects, "fb-fleetbus-valkey-config")
    for name in ("users.acl", "probe"):
        (server.folder / name).write_text(rendered[name])
    return RenderedValkey(server.port, objects, server.folder, server.ca)


async def logs_in(server: RenderedValkey, user: str) -> bool:
    try:
        async with server.client(user) as client:
            memory: Any = client.info("memory")
            return bool(await memory)
    except RedisError:
        return False


async def test_s2_valkey_takes_users_that_are_added_removed_and_changed(tmp_path: Path):
    if shutil.which("redis-cli") is None:
        pytest.skip("the probe needs a client: `apt-get install redis-tools`")
    async with rendered_valkey(FIRST, tmp_path) as first:
        probe = lambda: run_valkey_probe(first)  # noqa: E731 -- of this server
        assert probe() == 0
        async with first.client("projector") as hub, first.client("reconciler-shop") as shop:
            numbers = [await each_client.client_id() for each_client in (hub, shop)]
            more = write_users(first, MORE)
            assert not await logs_in(more, "reconciler-mail")
            assert probe() == 0
            assert await logs_in(more, "reconciler-mail")
            # Nobody else has noticed.
            assert [await each_client.client_id() for each_client in (hub, shop)] == numbers

            # The password of the probe is changed, too.
            changed = write_users(first, rotated("reconciler-shop", "probe"))
            assert changed.password("probe") != first.password("probe")
            assert probe() == 0
            assert not await logs_in(more, "reconciler-mail")  # removed
            assert not await logs_in(first, "reconciler-shop")
            assert await logs_in(changed, "reconciler-shop")
            assert await hub.client_id() == numbers[0]
            # Whoever has the old password is no longer connected, either.
            with pytest.raises(RedisError):
                await shop.client_id()
        assert probe() == 0


def test_users_are_no_reason_to_restart_a_store_and_settings_are():
    sized: Object = {
        **FIRST,
        "nats": {"embedded": {"maxPayload": 4194304}},
        "valkey": {"embedded": {"maxMemory": 536870912}},
    }
    for store in ("nats", "valkey"):
        first, same, changed = (
            find(render(values), "StatefulSet", f"fb-fleetbus-{store}")["spec"]["template"]
            for values in (FIRST, rotated("distributor", among=MORE), sized)
        )
        assert same == first
        assert changed["metadata"]["annotations"] != first["metadata"]["annotations"]
