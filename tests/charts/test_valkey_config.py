"""The rendered configuration on a real Valkey: each user's keys, what nobody may (rule S8)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from fleetbus.store.connection import connect
from support.api.rendered_chart import CHART, VALUES, Object, find, render, secret
from support.servers.rendered_servers import RenderedValkey, rendered_valkey

FLEET: Object = {**VALUES["everything"], "tls": {"enabled": False}}
USERS = ["projector", "distributor", "query-api", "reconciler-shop", "reconciler-mail"]
ALL = set(USERS)
WRITES: dict[str, set[str]] = {
    # key → who may write it
    "fleetbus:{fleet:0}:clusters": ALL - {"query-api"},
    "fleetbus:{q:shop}:ready": {"reconciler-shop"},
    "fleetbus:{q:shop-stock}:ready": {"reconciler-shop"},
    "fleetbus:{q:mail}:ready": {"reconciler-mail"},
    "fleetbus:{q:distributor}:ready": {"distributor"},
    "fleetbus:{q:distributor-targets}:ready": {"distributor"},
    "fleetbus:{deletions}:budget": {"distributor"},
    "fleetbus:{mcr:1}:missing": {"distributor"},
    "fleetbus:{mcr:1}:written": {"distributor"},
    "fleetbus:{targets}:cooldowns": {"distributor"},
    "fleetbus:{targets}:settings": {"distributor"},
    "other": set(),
}
FORBIDDEN: list[tuple[Any, ...]] = [
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCRIPT", "FLUSH"),
    ("SCRIPT", "KILL"),
    ("FUNCTION", "FLUSH"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "mallory"),
    ("SHUTDOWN",),
    ("REPLICAOF", "10.0.0.1", "6379"),
    ("MODULE", "LIST"),
    ("MONITOR",),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("SAVE",),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[RenderedValkey]:
    async with rendered_valkey(FLEET, tmp_path) as server:
        yield server


async def is_allowed(client: Redis, *command: Any) -> bool:
    try:
        await cast("Any", client).execute_command(*command)
    except NoPermissionError:
        return False
    except RedisError:
        return True
    return True


async def test_s8_each_user_writes_its_own_keys_and_nobody_administers(server: RenderedValkey):
    wrong: list[str] = []
    for user in USERS:
        async with server.client(user) as client:
            for key, allowed in WRITES.items():
                if await is_allowed(client, "SADD", key, "x") != (user in allowed):
                    wrong.append(f"{user}: {key}")
            wrong += [
                f"{user}: {command}" for command in FORBIDDEN if await is_allowed(client, *command)
            ]
    assert wrong == []


async def test_s8_a_script_has_no_more_rights_than_its_user(server: RenderedValkey):
    script = "return redis.call('SADD', KEYS[1], 'x')"
    async with server.client("reconciler-shop") as client:
        assert not await is_allowed(client, "EVAL", script, 1, "fleetbus:{q:mail}:ready")
        assert await is_allowed(client, "EVAL", script, 1, "fleetbus:{q:shop}:ready")
    async with server.client("query-api") as client:
        assert not await is_allowed(client, "EVAL", script, 1, "fleetbus:{fleet:0}:clusters")


async def test_s8_only_its_own_user_wakes_a_queue(server: RenderedValkey):
    async with server.client("reconciler-shop") as client:
        assert await is_allowed(client, "PUBLISH", "fleetbus:{q:shop}:notify", "")
        assert not await is_allowed(client, "PUBLISH", "fleetbus:{q:mail}:notify", "")


async def test_nobody_gets_in_without_a_password(server: RenderedValkey):
    async with Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client:
        with pytest.raises(AuthenticationError):
            await cast("Any", client).execute_command("PING")
    async with server.client("probe") as client:
        assert not await is_allowed(client, "GET", "fleetbus:{fleet:0}:generation")
        # It loads users and ends the connections of those that were changed.
        allowed = [command for command in FORBIDDEN if await is_allowed(client, *command)]
        assert [command[:2] for command in allowed] == [("CLIENT", "KILL")]


async def test_p16_the_configuration_passes_the_checks_of_every_service(server: RenderedValkey):
    for user in USERS:
        redis = await connect(server.access(user))
        try:
            memory: Any = await redis.info("memory")
            assert memory["maxmemory_policy"] == "noeviction"
            persistence: Any = await redis.info("persistence")
            assert persistence["aof_enabled"] == 1
        finally:
            await redis.aclose()


def test_the_memory_limit_leaves_room_for_a_rewrite():
    objects = render({})
    container = find(objects, "StatefulSet", "fb-fleetbus-valkey")["spec"]["template"]["spec"]
    assert container["containers"][0]["resources"]["limits"]["memory"] == "3Gi"
    text = secret(objects, "fb-fleetbus-valkey-config")["valkey.conf"]
    assert f"maxmemory {3 * 1024**3 // 2}\n" in text
    assert "maxmemory-policy noeviction" in text
    assert "appendfsync everysec" in text


def test_s8_the_page_of_the_store_shows_the_users_of_the_chart():
    shop: Object = {"name": "shop", "modules": ["shop.controllers"], "controllers": ["shop"]}
    objects = render({"reconcilers": [shop]})
    text = secret(objects, "fb-fleetbus-valkey-config")["users.acl"]
    lines = [re.sub(r"#\w{64}", ">PASSWORD", line) for line in text.splitlines()]
    page = (CHART.parents[1] / "docs" / "store.md").read_text()
    users_shown = re.findall(r"^ACL SETUSER (.*)$", page, re.MULTILINE)
    of_the_server = ("user default", "user probe")
    assert [f"user {user}" for user in users_shown] == [
        line for line in lines if line and not line.startswith(of_the_server)
    ]
