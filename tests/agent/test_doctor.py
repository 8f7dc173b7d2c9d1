"""`fleetbus-agent doctor`: each thing that keeps an agent from working is one line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from fleetbus.clusters.member_rights import watcher_rules
from fleetbus.process.findings import Finding, Severity
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_agent.doctor import check_agent, check_clock
from fleetbus_agent.main import main
from fleetbus_agent.settings import AgentSettings
from fleetbus_emulator.apiserver import Cluster, User, serve
from support.rigs.secured_api import grant
from support.servers.restricted_nats import restricted_server

ROOT = User("root", ("system:masters",))


def settings_of(path: Path, document: object, **settings: object) -> AgentSettings:
    path.write_text(json.dumps(document))
    return load_settings(AgentSettings, cluster="eu1", kubeconfig=path, **settings)


async def findings(settings: AgentSettings, nats_url: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    async for finding in check_agent(settings, SharedSettings(nats_url=nats_url, health_port=0)):
        found.setdefault(finding.about, []).append(finding)
    return found


async def test_an_agent_that_works_has_no_bad_finding(nats_url: str, tmp_path: Path):
    async with serve([Cluster("eu1")]) as servers:
        found = await findings(settings_of(tmp_path / "k", servers.kubeconfig()), nats_url)
    assert {each.severity for about in found.values() for each in about} == {Severity.OK}
    assert found.keys() >= {"nats", "api server", "rights", "policy"}


async def test_rights_that_every_agent_needs_are_named(nats_url: str, tmp_path: Path):
    member = Cluster("eu1", authorize="rbac", tokens={"agent-token": User("agent"), "root": ROOT})
    async with serve([member]) as servers:
        settings = settings_of(
            *(tmp_path / "k", servers.kubeconfig("agent-token")), read_only=True, secret="own/nkey"
        )
        refused = await findings(settings, nats_url)
        [server] = refused["api server"]
        assert server.severity is Severity.ERROR
        assert "kube-system" in server.advice
        assert "agent-token" not in str(refused)

        identity = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}
        grant(member, "agent", identity)
        partly = await findings(settings, nats_url)
        [nkey] = partly["nkey"]
        assert nkey.severity is Severity.ERROR
        assert "Secret own/nkey cannot be read" in nkey.message
        assert "get and patch" in nkey.advice
        texts = [each.message for each in partly["rights"] if each.severity is Severity.ERROR]
        assert sorted(texts) == [
            "the account may not list apiservices.apiregistration.k8s.io",
            "the account may not list customresourcedefinitions.apiextensions.k8s.io",
        ]

        grant(member, "agent", *watcher_rules([]))
        enough = await findings(settings, nats_url)
        assert {each.severity for each in enough["rights"]} == {Severity.OK}
        assert "may only read" in enough["policy"][0].message


@pytest.mark.slow
async def test_a_server_and_a_bus_that_are_not_there(tmp_path: Path):
    async with serve([Cluster("eu1")]) as servers:
        document = servers.kubeconfig()
    found = await findings(settings_of(tmp_path / "k", document), "nats://127.0.0.1:1")
    assert [each.severity for each in found["nats"]] == [Severity.ERROR]
    assert "127.0.0.1:" in found["nats"][0].message
    assert "FLEETBUS_NATS_URL" in found["nats"][0].advice
    assert [each.severity for each in found["api server"]] == [Severity.ERROR]


async def test_a_nats_that_refuses_the_login_or_a_subject(tmp_path: Path):
    async with (
        serve([Cluster("eu1")]) as servers,
        restricted_server(tmp_path, "eu1") as address,  # `w` is a watcher, and no agent
    ):
        settings = settings_of(tmp_path / "k", servers.kubeconfig())
        for login, word in (("w:wrong", "Authorization"), ("w:p", "Permissions Violation")):
            found = await findings(settings, f"nats://{login}@{address}")
            [nats] = found["nats"]
            assert nats.severity is Severity.ERROR
            assert word.lower() in nats.message.lower()
            assert "fleetbus join --agent" in nats.advice
            assert "wrong" not in nats.message


def test_the_clock_is_compared_with_that_of_the_api_server():
    now = datetime.now(UTC)
    for ahead, severity in (
        (0, Severity.OK),
        (60, Severity.WARNING),
        (-3600, Severity.ERROR),
    ):
        headers = {"date": format_datetime(now - timedelta(seconds=ahead))}
        finding = check_clock(headers, now)
        assert finding is not None
        assert finding.severity is severity
    assert check_clock({}, now) is None
    assert check_clock({"Date": "yesterday"}, now) is None


def test_bad_settings_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FLEETBUS_AGENT_CLUSTER", "no/name")
    monkeypatch.setenv("FLEETBUS_NATS_URL", "nats://127.0.0.1:1")
    assert main(["doctor"]) == 2
    assert "FLEETBUS_AGENT_CLUSTER" in capsys.readouterr().err
