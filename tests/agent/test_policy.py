"""The local policy, and how a request is read for it: as an API server reads it, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus import errors
from fleetbus.errors import ConfigError
from fleetbus.kube.impersonation import ActingClient
from fleetbus.kube.requests import Call
from fleetbus.process.settings import load_settings
from fleetbus_agent.attributes import (
    Attributes,
    UnclearRequest,
    impersonation,
    read_attributes,
)
from fleetbus_agent.policy import VERBS, InvalidRule, Policy, Rule
from fleetbus_agent.settings import AgentSettings
from fleetbus_emulator.apiserver import Access, Cluster
from support.objects import config_map
from support.rigs.agents import one_agent
from support.rows import each_row

MAPS = "v1/configmaps"
SECRETS = "/api/v1/namespaces/prod/secrets"


def policy(allow: str = "*:*", deny: str = "", *, read_only: bool = False) -> Policy:
    rules = [[Rule.parse(text) for text in each.split()] for each in (allow, deny)]
    return Policy(*rules, read_only=read_only)


# --- what is asked for --------------------------------------------------------------------------


@each_row(
    ("method", "path", "query", "expected"),
    [
        ("GET", SECRETS, {}, ("list", "core/secrets", "prod", "")),
        ("GET", SECRETS, {"watch": "true"}, ("watch", "core/secrets", "prod", "")),
        ("GET", SECRETS, {"watch": "1"}, ("watch", "core/secrets", "prod", "")),
        ("GET", SECRETS, {"watch": "0"}, ("list", "core/secrets", "prod", "")),
        ("GET", f"{SECRETS}/db", {}, ("get", "core/secrets", "prod", "db")),
        ("POST", SECRETS, {}, ("create", "core/secrets", "prod", "")),
        ("PUT", f"{SECRETS}/db", {}, ("update", "core/secrets", "prod", "db")),
        ("PATCH", f"{SECRETS}/db", {}, ("patch", "core/secrets", "prod", "db")),
        ("DELETE", f"{SECRETS}/db", {}, ("delete", "core/secrets", "prod", "db")),
        ("DELETE", SECRETS, {}, ("deletecollection", "core/secrets", "prod", "")),
        (
            "GET",
            "/api/v1/namespaces/prod/pods/web/log",
            {},
            ("get", "core/pods/log", "prod", "web"),
        ),
        (
            "PUT",
            "/apis/apps/v1/namespaces/prod/deployments/web/scale",
            {},
            ("update", "apps/deployments/scale", "prod", "web"),
        ),
        ("GET", "/api/v1/namespaces/prod", {}, ("get", "core/namespaces", "", "prod")),
        (
            "PUT",
            "/api/v1/namespaces/prod/finalize",
            {},
            ("update", "core/namespaces/finalize", "", "prod"),
        ),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            {},
            ("get", "rbac.authorization.k8s.io/clusterroles", "", "system:node"),
        ),
        ("GET", "/version", {}, ("get", "/version", "", "")),
        ("GET", "/apis/apps/v1", {}, ("get", "/apis/apps/v1", "", "")),
        ("GET", "/openapi/v3/apis/apps/v1", {}, ("get", "/openapi/v3/apis/apps/v1", "", "")),
    ],
)
def test_a_request_is_read_as_an_api_server_reads_it(
    method: str, path: str, query: dict[str, str], expected: tuple[str, str, str, str]
):
    assert read_attributes(method, path, query) == Attributes(*expected)


@each_row(
    ("method", "path", "query"),
    [
        ("HEAD", SECRETS, {}),
        ("CONNECT", SECRETS, {}),
        ("OPTIONS", "/version", {}),
        ("GET", "", {}),
        ("GET", "api/v1/pods", {}),
        ("GET", "//api/v1/pods", {}),
        ("GET", "/api/v1/../v1/secrets", {}),
        ("GET", "/api/v1/%2e%2e/v1/secrets", {}),
        ("GET", "/api/v1/namespaces/a%2Fsecrets", {}),  # a server reads the decoded path
        ("GET", "/api/v1/pods/", {}),
        ("GET", "/api/v1/pods?x=1", {}),
        ("GET", "/api/v1/pods#x", {}),
        ("GET", "/api/v1/po ds", {}),
        ("GET", "/api/v1/pods\r\nX: y", {}),
        ("GET", "/api/v1/pods/%zz", {}),
        ("GET", "/api/v1/watch/secrets", {}),
        ("GET", "/api/v1/proxy/namespaces/a/pods/b", {}),
        ("GET", "/logs", {}),
        ("GET", "/debug/pprof", {}),
        ("GET", "/metrics", {}),
        ("GET", SECRETS, {"watch": "maybe"}),
        ("GET", SECRETS, {"watch": ""}),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(method: str, path: str, query: dict[str, str]):
    with pytest.raises(UnclearRequest):
        read_attributes(method, path, query)


@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "PATCH", "DELETE"]))
def test_no_path_raises_anything_else(path: str, method: str):
    try:
        attributes = read_attributes(method, "/api/v1/" + path, {})
    except UnclearRequest:
        return
    assert attributes.verb in VERBS
    assert attributes.resource


# --- rules --------------------------------------------------------------------------------------


@each_row(
    ("rules", "verb", "resource", "passes"),
    [
        ({}, "delete", "core/secrets", True),
        ({}, "get", "core/pods/log", True),
        ({"allow": "get,list:*"}, "list", "apps/deployments", True),
        ({"allow": "get,list:*"}, "patch", "apps/deployments", False),
        ({"allow": "*:apps/deployments"}, "patch", "apps/deployments", True),
        ({"allow": "*:apps/deployments"}, "update", "apps/deployments/status", False),
        ({"allow": "*:apps/deployments/*"}, "update", "apps/deployments/status", True),
        ({"allow": "*:apps/*"}, "patch", "apps/statefulsets", True),
        ({"allow": "*:apps/*"}, "patch", "core/pods", False),
        ({"allow": "*:apps/deploy"}, "patch", "apps/deployments", False),
        ({"deny": "*:core/secrets"}, "get", "core/secrets", False),
        ({"deny": "*:core/secrets"}, "get", "core/secretsx", True),
        ({"deny": "*:core/serviceaccounts"}, "create", "core/serviceaccounts/token", False),
        ({"deny": "impersonate:*"}, "impersonate", "core/users", False),
        ({"read_only": True}, "list", "core/pods", True),
        ({"read_only": True}, "impersonate", "core/users", True),
        ({"read_only": True}, "patch", "core/pods", False),
        ({"read_only": True}, "create", "authorization.k8s.io/selfsubjectaccessreviews", True),
        ({"read_only": True}, "create", "authorization.k8s.io/subjectaccessreviews", False),
        ({}, "create", "core/pods/exec", False),
        ({}, "get", "core/pods/exec", False),
        ({}, "create", "core/pods/attach", False),
        ({}, "create", "core/pods/portforward", False),
        ({}, "get", "core/services/proxy", False),
        ({}, "get", "core/nodes/proxy/metrics", False),
        ({"allow": "*:core/pods/exec"}, "create", "core/pods/exec", False),
        ({}, "get", "/version", True),
        ({"allow": "get:core/pods"}, "get", "/apis", True),
        ({}, "create", "/version", False),
    ],
)
def test_the_policy_decides(rules: dict[str, object], verb: str, resource: str, passes: bool):
    problem = policy(**rules).problem(Attributes(verb, resource))  # pyright: ignore[reportArgumentType]
    assert bool(problem) is not passes, problem


def test_an_impersonation_is_of_an_account_or_of_a_user():
    account = impersonation("system:serviceaccount:prod:deployer")
    assert account == ("impersonate", "core/serviceaccounts", "prod", "deployer")
    assert impersonation("ann@example.com")[1] == "core/users"
    assert impersonation("system:serviceaccount:prod")[1] == "core/users"


@each_row(
    ("text", "problem"),
    [
        ("get", "is not VERBS:RESOURCES"),
        ("read:*", "'read' in"),
        ("get:secrets", "is not GROUP/PLURAL"),
        ("get:", "is not GROUP/PLURAL"),
        (":*", "'' in"),
        ("get:core/pods/log/x", "is not GROUP/PLURAL"),
    ],
)
def test_a_wrong_rule_is_a_configuration_error_that_says_what_is_wrong(text: str, problem: str):
    with pytest.raises(InvalidRule, match=problem):
        Rule.parse(text)
    with pytest.raises(ConfigError, match="ALLOW"):
        load_settings(AgentSettings, cluster="eu1", allow=(text,))


def test_rules_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLEETBUS_AGENT_CLUSTER", "eu1")
    monkeypatch.setenv("FLEETBUS_AGENT_ALLOW", "get,list:*  *:apps/deployments")
    monkeypatch.setenv("FLEETBUS_AGENT_DENY", "*:core/secrets")
    monkeypatch.setenv("FLEETBUS_AGENT_READ_ONLY", "false")
    settings = load_settings(AgentSettings)
    assert settings.allow == ("get,list:*", "*:apps/deployments")
    assert settings.deny == ("*:core/secrets",)


# --- on the wire --------------------------------------------------------------------------------


async def test_a_denied_call_is_forbidden_and_never_sent(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path, deny=("*:core/secrets",)) as rig:
        await rig.client.create(MAPS, config_map("a"))
        before = len(rig.cluster.requests)
        with pytest.raises(errors.Forbidden, match="denied by the agent's policy"):
            await rig.client.get("v1/secrets", "default", "a")
        with pytest.raises(errors.Forbidden, match="never passed on"):
            await rig.client.request(Call("POST", "/api/v1/namespaces/default/pods/a/exec"))
        with pytest.raises(errors.Invalid, match="path"):
            await rig.client.request(Call("GET", "/api/v1/namespaces/a/../b"))
        assert len(rig.cluster.requests) == before


async def test_a_read_only_agent_reads(nats_url: str, tmp_path: Path):
    cluster = Cluster("eu1")
    cluster.create(MAPS, config_map("a"), "default")
    async with one_agent(nats_url, tmp_path, cluster, read_only=True) as rig:
        assert await rig.client.get(MAPS, "default", "a")
        with pytest.raises(errors.Forbidden, match="read-only"):
            await rig.client.delete(MAPS, "default", "a")
    assert cluster.get(MAPS, "default", "a")


async def test_a_call_as_another_user_needs_the_policys_consent_and_shows_the_user(
    nats_url: str, tmp_path: Path
):
    users: list[str] = []

    def authorize(access: Access) -> bool:
        users.append(access.user.name)
        return True

    account = "system:serviceaccount:prod:deployer"
    cluster = Cluster("eu1", tokens={"t": "agent"}, authorize=authorize)
    async with one_agent(nats_url, tmp_path, cluster, user={"token": "t"}) as rig:
        await ActingClient(rig.client, account).create(MAPS, config_map("a"))
        assert account in users
        await rig.client.get(MAPS, "default", "a")
        assert users[-1] == "agent"
    async with one_agent(nats_url, tmp_path, deny=("impersonate:*",)) as rig:
        with pytest.raises(errors.Forbidden, match="impersonate of core/serviceaccounts"):
            await ActingClient(rig.client, account).create(MAPS, config_map("b"))
