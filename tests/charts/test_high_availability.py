"""`ha: true`: what the chart renders for three servers each of NATS and Valkey.

How they behave is in test_three_servers.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.store.address import SentinelAddress, parse_address
from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_valkey_server
from fleetbus_emulator.ports import LOOPBACK, HeldPort
from support.api.rendered_chart import VALUES, Object, find, of_kind, render, secret
from support.eventually import eventually
from support.servers.rendered_servers import store_administrator, write_users

HA = VALUES["high availability"]
STORES = ("nats", "valkey")
SENTINELS = tuple(
    (f"fb-fleetbus-valkey-{number}.fb-fleetbus-valkey-headless.fleetbus.svc", 26379)
    for number in range(3)
)


def environment(objects: list[Object], name: str) -> dict[str, Any]:
    pod = find(objects, "Deployment", f"fb-fleetbus-{name}")["spec"]["template"]["spec"]
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in pod["containers"][0]["env"]}


def test_one_value_makes_three_servers_of_each_store_on_three_nodes():
    objects = render(HA)
    for store in STORES:
        name = f"fb-fleetbus-{store}"
        spec = find(objects, "StatefulSet", name)["spec"]
        assert spec["replicas"] == 3
        assert spec["podManagementPolicy"] == "Parallel"
        service = find(objects, "Service", spec["serviceName"])["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"], "they find each other before they are ready"
        spread = spec["template"]["spec"]["topologySpreadConstraints"]
        (apart,) = [one for one in spread if one["topologyKey"] == "kubernetes.io/hostname"]
        assert (apart["maxSkew"], apart["minDomains"]) == (1, 3), "one on each node"
        assert apart["whenUnsatisfiable"] == "DoNotSchedule"
        assert find(objects, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
    assert environment(objects, "projector")["FLEETBUS_RECONCILER_BUS_REPLICAS"] == "3"


def test_every_client_of_the_store_asks_the_sentinels_and_logs_in_there():
    objects = render(HA)
    for name in ("projector", "distributor", "query-api", "reconciler-shop"):
        variables = environment(objects, name)
        address = parse_address(variables["FLEETBUS_REDIS_URL"])
        assert isinstance(address, SentinelAddress)
        assert (address.sentinels, address.master, address.is_tls) == (SENTINELS, "fleetbus", True)
        for field in ("USERNAME", "PASSWORD_FILE"):
            of_sentinels = variables[f"FLEETBUS_REDIS_SENTINEL_{field}"]
            assert of_sentinels == variables[f"FLEETBUS_REDIS_{field}"]


def test_only_clients_and_servers_of_the_store_reach_its_ports():
    policies = {
        policy["metadata"]["name"].removeprefix("fb-fleetbus-"): policy["spec"]
        for policy in of_kind(render(HA), "NetworkPolicy")
    }

    def peers(rule: Object, way: str) -> set[str]:
        labels = [peer["podSelector"]["matchLabels"] for peer in rule[way]]
        return {label["fleetbus.dev/instance"] for label in labels}

    clients, servers = policies["valkey"]["ingress"]
    assert peers(clients, "from") == {"projector", "distributor", "query-api", "reconciler-shop"}
    assert peers(servers, "from") == {"valkey"}
    (egress,) = policies["valkey"]["egress"]
    assert peers(egress, "to") == {"valkey"}
    ports = [{"port": port, "protocol": "TCP"} for port in (6379, 26379)]
    for rule in (clients, servers, egress):
        assert rule["ports"] == ports
    of_projector = [rule for rule in policies["projector"]["egress"] if rule["ports"] == ports]
    assert [peers(rule, "to") for rule in of_projector] == [{"valkey"}]


def test_one_server_each_is_as_it_was():
    objects = render({})
    for store in STORES:
        stateful = find(objects, "StatefulSet", f"fb-fleetbus-{store}")["spec"]
        assert stateful["replicas"] == 1
        assert [c["name"] for c in stateful["template"]["spec"]["containers"]] == [store]
    assert find(objects, "StatefulSet", "fb-fleetbus-valkey")["spec"]["serviceName"] == (
        "fb-fleetbus-valkey"
    )
    text = secret(objects, "fb-fleetbus-valkey-config")["valkey.conf"]
    assert "replica" not in text
    assert set(secret(objects, "fb-fleetbus-valkey-config")) == {
        *("valkey.conf", "users.acl", "ready.sh", "probe"),
    }


def test_a_change_of_the_sentinels_restarts_the_pods():
    values = {**HA, "credentials": {"seed": "s" * 40}}
    rotated = {**HA, "credentials": {"seed": "s" * 40, "rotate": {"sentinel": "2"}}}
    first, other = (
        find(render(each), "StatefulSet", "fb-fleetbus-valkey")["spec"]["template"]["metadata"]
        for each in (values, rotated)
    )
    assert first["annotations"] != other["annotations"]


@asynccontextmanager
async def sentinel_administrator(users: str, folder: Path) -> AsyncGenerator[Any]:
    """An administrator of a Sentinel with rendered users."""
    path = write_users(users, folder)
    config, port = folder / "sentinel.conf", HeldPort(LOOPBACK, 0)
    config.write_text(f"port {port.number}\nbind {LOOPBACK}\ndir {folder}\naclfile {path}\n")
    child = Child(
        "sentinel", [find_valkey_server(), config, "--sentinel"], log=folder / "sentinel.log"
    )
    try:
        async with Redis(port=port.number, decode_responses=True) as admin:
            admin.response_callbacks.clear()
            await eventually(lambda: answers(admin))
            yield admin
    finally:
        await child.stop()
        port.release()


async def answers(client: Redis) -> bool:
    try:
        return bool(await cast("Any", client).execute_command("PING"))
    except RedisError:
        return False


async def allowed(admin: Any, user: str, *commands: str) -> set[str]:
    """Those of some commands that the user may send."""
    answers_of = {
        c: await admin.execute_command("ACL", "DRYRUN", user, *c.split()) for c in commands
    }
    return {command for command, answer in answers_of.items() if answer == "OK"}


async def test_s8_servers_follow_and_sentinels_appoint_and_neither_reads_a_key(tmp_path: Path):
    commands = ("GET x", "SET x y", "KEYS *", "FLUSHALL", "SHUTDOWN", "CONFIG GET *", "ACL LIST")
    following, appointing = ("PSYNC ? -1", "REPLCONF ack 1"), ("SLAVEOF a 1", "CONFIG REWRITE")
    every = (*commands, *following, *appointing)
    users = secret(render(HA), "fb-fleetbus-valkey-config")["users.acl"]
    async with store_administrator(users, tmp_path) as admin:
        assert await allowed(admin, "replica", *every) == set(following)
        assert await allowed(admin, "sentinel", *every) == set(appointing)
        for user in ("projector", "query-api", "probe"):
            assert not await allowed(admin, user, *following, *appointing), user


async def test_s8_a_component_may_ask_a_sentinel_for_the_master_and_nothing_else(tmp_path: Path):
    commands = (
        *("SENTINEL MASTERS", "SENTINEL FAILOVER fleetbus", "SENTINEL REMOVE fleetbus"),
        *("SENTINEL SET fleetbus quorum 1", "SENTINEL MONITOR a 10.0.0.1 1 1", "SENTINEL RESET *"),
        *("SENTINEL CONFIG GET *", "SHUTDOWN", "ACL LIST", "ACL SETUSER a", "PUBLISH a b"),
    )
    users = secret(render(HA), "fb-fleetbus-valkey-config")["sentinel.acl"]
    async with sentinel_administrator(users, tmp_path) as admin:
        for user in ("projector", "distributor", "query-api", "reconciler-shop"):
            assert await allowed(admin, user, *commands) == {"SENTINEL MASTERS"}, user
        assert await allowed(admin, "sentinel", *commands) == {"PUBLISH a b"}
        assert await allowed(admin, "probe", *commands) == {"SENTINEL FAILOVER fleetbus"}


@pytest.mark.parametrize("store", STORES)
def test_three_servers_of_one_store_are_possible_too(store: str):
    objects = render({store: {"embedded": {"replicas": 3}}})
    replicas = {
        obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in of_kind(objects, "StatefulSet")
    }
    assert replicas == {f"fb-fleetbus-{each}": 3 if each == store else 1 for each in STORES}
    spread = find(objects, "StatefulSet", f"fb-fleetbus-{store}")["spec"]["template"]["spec"]
    assert all("minDomains" not in each for each in spread["topologySpreadConstraints"])
