"""`fleetbus doctor` on the registrations of agents: what waits, expired or was refused, and why."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from fleetbus.agents.nkeys import make_seed, public_key
from fleetbus.agents.records import AgentRecord, record_secret
from fleetbus.clusters.info import ClusterAccess
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.process.clock import rfc3339
from fleetbus.process.findings import Finding, Severity
from fleetbus_cli.doctor.registrations import check_registrations
from fleetbus_emulator.apiserver import ApiServers, Cluster, User, serve
from support.rigs.secured_api import grant, rule

RECORDS = "fleetbus-clusters"
ROOT, READER, NOBODY = "token-of-root", "token-of-reader", "token-of-nobody"
KEY, ONE = (public_key(make_seed()) for _ in range(2))
ERROR, WARNING, OK = Severity.ERROR, Severity.WARNING, Severity.OK


def at(hours: float) -> str:
    return rfc3339(datetime.now(UTC) + timedelta(hours=hours), timespec="seconds")


def hub_with(*records: AgentRecord) -> Cluster:
    root = User("root", ("system:masters",))
    tokens = {ROOT: root, READER: "reader", NOBODY: "nobody"}
    hub = Cluster("hub", authorize="rbac", tokens=tokens)
    hub.create("v1/namespaces", {"metadata": {"name": RECORDS}})
    for record in records:
        hub.create("v1/secrets", record_secret(record, RECORDS))
    return hub


async def findings(
    servers: ApiServers, *agents: str, token: str = ROOT, **direct: Any
) -> dict[str, Finding]:
    """By cluster, for a registry with these clusters behind agents, and direct ones."""
    access = dict.fromkeys(agents, ClusterAccess.AGENT) | dict.fromkeys(
        direct, ClusterAccess.DIRECT
    )
    config = KubeConfig(json.dumps(servers.kubeconfig(token)), http=True, own=True)
    async with KubeClient(config) as hub:
        found = [each async for each in check_registrations(hub, access, ["", RECORDS])]
    return {each.about.removeprefix("registration of "): each for each in found}


async def test_each_state_has_the_command_that_mends_it():
    in_use = {"key": KEY, "changed": at(-30)}
    late = {"one_time": ONE, "expires": at(-1)}
    hub = hub_with(
        AgentRecord(cluster="fine", **in_use),
        AgentRecord(cluster="waits", pending=KEY, uid="0d8f", instance="agent-a", changed=at(-30)),
        AgentRecord(cluster="waits-again", pending=ONE, **in_use),
        AgentRecord(cluster="joining", one_time=ONE, expires=at(1)),
        AgentRecord(cluster="joining-again", one_time=ONE, expires=at(1), **in_use),
        AgentRecord(cluster="late", **late),
        AgentRecord(cluster="late-again", **late, **in_use),
        AgentRecord(cluster="refused", **late, refused="another cluster has it", refused_at=at(-2)),
    )
    names = (*("fine", "waits", "waits-again", "joining", "joining-again"), "late", "late-again")
    async with serve([hub]) as servers:
        found = await findings(servers, *names, "refused", "unknown")
    assert {name: each.severity for name, each in found.items()} == {
        "fine": OK,
        "waits": ERROR,
        "waits-again": WARNING,
        "joining": WARNING,
        "joining-again": OK,
        "late": ERROR,
        "late-again": OK,
        "refused": ERROR,
        "unknown": OK,
    }
    assert found["waits"].advice == "`fleetbus clusters accept waits`"
    assert all(text in found["waits"].message for text in ("0d8f", "agent-a", "since"))
    assert "expired at" in found["late"].message
    assert "another cluster has it" in found["refused"].message
    for name in ("joining", "late", "refused"):
        assert f"`fleetbus join {name} --agent`" in found[name].advice
    assert KEY not in str(found)


async def test_a_damaged_record_and_one_of_no_cluster_with_an_agent():
    hub = hub_with(*(AgentRecord(cluster=name, key=KEY) for name in ("eu1", "us1", "gone")))
    hub.patch("v1/secrets", RECORDS, "eu1-agent", {"data": {"key": "bm8ga2V5"}})
    async with serve([hub]) as servers:
        found = await findings(servers, "eu1", us1=True)
    assert {name: each.severity for name, each in found.items()} == {
        "eu1": ERROR,
        "us1": WARNING,
        "gone": WARNING,
    }
    assert f"`kubectl -n {RECORDS} delete secret eu1-agent`" in found["eu1"].advice
    for name in ("us1", "gone"):
        assert f"`kubectl -n {RECORDS} delete secret {name}-agent`" in found[name].advice


async def test_a_user_with_few_rights_reads_those_of_the_namespace_or_is_warned():
    hub = hub_with(AgentRecord(cluster="eu1", pending=KEY))
    grant(hub, "reader", rule("list", "", "secrets"), namespace=RECORDS)
    async with serve([hub]) as servers:
        assert (await findings(servers, "eu1", token=READER))["eu1"].severity is ERROR
        [not_checked] = (await findings(servers, "eu1", token=NOBODY)).values()
        assert (not_checked.about, not_checked.severity) == ("registrations", WARNING)
        assert await findings(servers, eu1=True, token=NOBODY) == {}
