"""Checks a whole fleet for `fleetbus doctor`: NATS, the store, files, the hub and the clusters."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress

from redis.exceptions import RedisError

from fleetbus.agent_calls.calls import AgentCalls, agent_calls
from fleetbus.bus.refusals import Refused
from fleetbus.clusters.info import ClusterAccess
from fleetbus.errors import BusError, ConfigError, KubeError, StoreError, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.secret_files import SecretFile, TlsFiles
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.findings import Finding, error, warning
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.shards import find_shards
from fleetbus.store.refusals import hint_for
from fleetbus_cli.api_url import split_api_url
from fleetbus_cli.doctor.clusters import Watched, check_clusters, watched_resources
from fleetbus_cli.doctor.expiry import check_kubeconfig, check_nats_files, check_tls_files
from fleetbus_cli.doctor.hub import check_components, check_versions
from fleetbus_cli.doctor.members import (
    check_members,
    kubeconfig_namespaces,
    read_members,
    unreadable,
)
from fleetbus_cli.doctor.nats import check_nats
from fleetbus_cli.doctor.registrations import check_registrations
from fleetbus_cli.doctor.server_certificates import (
    check_api_certificate,
    check_nats_certificates,
    check_store_certificates,
)
from fleetbus_cli.doctor.store import check_store
from fleetbus_cli.hub import Hub, find_hub
from fleetbus_cli.nats import agent_caller, connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import Target


async def check_fleet(
    target: Target, nats: NatsAccess, store: StoreAccess, hub: Hub
) -> list[Finding]:
    """Check everything; what does not answer is a finding."""
    watched: Watched = {}
    on_bus, on_store, of_files = await asyncio.gather(
        _check_bus(nats, is_dev=bool(target.hub)),
        _check_store(store, watched),
        _check_credentials(target, nats, store),
    )
    return [*on_bus, *on_store, *of_files, *await _check_access(hub, nats, watched)]


async def _check_credentials(target: Target, nats: NatsAccess, store: StoreAccess) -> list[Finding]:
    found = [*check_nats_files(nats), *check_tls_files("credentials of store", store.tls)]
    await _collect(found, check_nats_certificates(nats))
    await _collect(found, check_store_certificates(store))
    if target.api_url:
        ca = SecretFile("FLEETBUS_API_CA_FILE", pathlib.Path(target.ca)) if target.ca else None
        url = split_api_url(target.require("api_url")).geturl()
        await _collect(found, check_api_certificate(url, TlsFiles(ca)))
    return found


async def _check_access(given: Hub, nats: NatsAccess, watched: Watched) -> list[Finding]:
    """Check the rights and credentials of the components, on the hub and in the clusters."""
    try:
        config = find_hub(given)
    except ConfigError as e:
        if given[0] is not None or os.environ.get("FLEETBUS_HUB_KUBECONFIG"):
            return [error("hub", str(e), "correct --hub-kubeconfig or FLEETBUS_HUB_KUBECONFIG")]
        advice = "give --hub-kubeconfig FILE to check rights and credentials"
        return [warning("hub", f"not checked: {e}", advice)]
    found: list[Finding] = []
    namespaces: set[str] = set()
    async with KubeClient(config) as hub:
        if config is not None:
            found += check_kubeconfig("hub", config, "get a new kubeconfig of the hub")
        try:
            members, not_checked = await read_members(hub, watched)
        except Unreachable as e:  # each further call would wait as long
            advice = "is its API server reachable, and are the credentials right?"
            return [*found, error("hub", str(e), advice)]
        except (KubeError, ConfigError) as e:
            found.append(unreadable(e))
        else:
            namespaces = kubeconfig_namespaces(members)
            has_agents = any(member.info.access is ClusterAccess.AGENT for member in members)
            async with calls_to_agents(nats) if has_agents else nullcontext() as calls:
                await _collect(found, check_members(members, not_checked, calls))
            access = {member.info.name: member.info.access for member in members}
            await _collect(found, check_registrations(hub, access, namespaces))
        await _collect(found, check_components(hub, sorted(namespaces)))
        await _collect(found, check_versions(hub))
    return found


@asynccontextmanager
async def calls_to_agents(access: NatsAccess) -> AsyncGenerator[AgentCalls | None]:
    """The way to agents; None if NATS does not let us in."""
    async with AsyncExitStack() as stack:
        calls: AgentCalls | None = None
        with suppress(BusError):  # which is a finding of its own
            bus = await stack.enter_async_context(connect_nats(access, name="fleetbus-doctor"))
            calls = await stack.enter_async_context(agent_calls(bus, agent_caller(access)))
        yield calls


async def _check_bus(access: NatsAccess, *, is_dev: bool) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with connect_nats(access, name="fleetbus-doctor") as bus:
            await _collect(found, check_nats(bus, is_dev=is_dev))
    except BusError as e:
        found.append(_nats_fails(e))
    return found


def _nats_fails(problem: BusError) -> Finding:
    if isinstance(problem, Refused):
        advice = "give its user this right, or log in as one who has it; see docs/threat-model.md"
    else:
        advice = "is it running, is the address right, and has this user all rights on JetStream?"
    return error("nats", str(problem), advice)


async def _check_store(access: StoreAccess, watched: Watched) -> list[Finding]:
    """Check the store and what the snapshot knows; also fills in what is watched, by cluster."""
    found: list[Finding] = []
    try:
        redis = await connect_store(access)
        async with redis:
            keys = await find_shards(redis)
            await _collect(found, check_store(redis, keys))
            reader = SnapshotReader(redis, keys)
            await _collect(found, check_clusters(reader))
            watched.update(await watched_resources(reader))
    except (StoreError, RedisError) as e:
        usual = "is it running, and are address and credentials right? See docs/store.md"
        found.append(error("store", str(e), hint_for(e) or usual))
    return found


async def _collect(found: list[Finding], checks: AsyncIterator[Finding]) -> None:
    """Add findings as they come: what was found before a failure counts."""
    async for one in checks:
        found.append(one)  # noqa: PERF401 -- an extension would lose them
