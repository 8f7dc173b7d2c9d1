"""Authority `member` in clusters behind agents: their RBAC decides, asked over NATS (rule A3)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from support.eventually import eventually
from support.rigs.agents import agent_rig
from support.rigs.mixed_access import mixed
from support.rigs.query_api import served
from support.rigs.secured_api import OWN_TOKEN, SecuredApi, grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

LIST = "/fleet/v1/resources/pods"
PODS = rule("get list", "", "pods")
CLUSTERS = rule("get list", "fleetbus.dev", "clusters")
BRIEF = {"token_cache": timedelta(0), "allow_cache": timedelta(0), "deny_cache": timedelta(0)}


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        yield server


@asynccontextmanager
async def started(api: SecuredApi, nats_url: str) -> AsyncGenerator[str]:
    """The API with us1 behind an agent, and history switched off; the token of a user."""
    (provider,) = api.shared["providers"]
    shared = api.shared | {"providers": [mixed(provider, ["us1"])], "nats_url": nats_url}
    settings = {"authentication": "token", "authority": "member", "history": False, **BRIEF}
    async with served(api.redis_url, api.folder, shared=shared, **settings) as url:
        await api.use(url)
        grant(api.hub, "ann", CLUSTERS)
        for member in api.members.values():
            grant(member, "ann", PODS)
        yield api.user("ann")


async def undecided(api: SecuredApi, token: str) -> list[str] | None:
    return (await api.get(token, LIST)).json().get("incomplete")


async def test_a3_a_member_behind_an_agent_decides_while_the_agent_is_there(
    api: SecuredApi, nats_url: str, tmp_path: Path
):
    document = api.servers.kubeconfig(OWN_TOKEN)
    async with started(api, nats_url) as token, agent_rig(nats_url, tmp_path) as rig:
        assert await undecided(api, token) == ["us1"]
        agent = await rig.start(document, "us1", context="us1")
        await eventually(lambda: _are_all_decided(api, token))
        names = [f"{cluster}/{name}-1" for cluster in ("eu1", "us1") for name in ("prod", "test")]
        assert await api.names(token) == names
        assert api.reviews("subjectaccessreviews", at="us1")
        await rig.stop(agent)
        assert await undecided(api, token) == ["us1"]
        assert await api.names(token) == names[:2]


async def test_a3_an_agent_that_is_read_only_passes_no_reviews_on(
    api: SecuredApi, nats_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    document = api.servers.kubeconfig(OWN_TOKEN)
    async with started(api, nats_url) as token, agent_rig(nats_url, tmp_path) as rig:
        await rig.start(document, "us1", context="us1", read_only=True)
        seen: list[str] = []

        async def is_logged() -> bool:
            assert await undecided(api, token) == ["us1"]
            seen.append("".join(capsys.readouterr()))
            return "the agent is read-only" in "".join(seen)

        await eventually(is_logged)
        assert not api.reviews("subjectaccessreviews", at="us1")


async def _are_all_decided(api: SecuredApi, token: str) -> bool:
    return await undecided(api, token) == []


async def test_without_nats_the_log_says_what_to_set_and_the_others_decide(
    api: SecuredApi, capsys: pytest.CaptureFixture[str]
):
    async with started(api, "nats://127.0.0.1:1") as token:
        assert await undecided(api, token) == ["us1"]
        assert await api.names(token) == ["eu1/prod-1", "eu1/test-1"]
    output = "".join(capsys.readouterr())
    assert "cluster 'us1': its agent is called over NATS (nats://127.0.0.1:1)" in output
    assert "set FLEETBUS_NATS_URL" in output
