"""`fleetbus kubeconfig`: contexts with which kubectl reads the fleet, and never a token in them."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import yaml

from fleetbus.errors import ConfigError
from fleetbus_cli.kubeconfig.contexts import Contexts, write_contexts
from fleetbus_cli.kubeconfig.credential import print_credential
from fleetbus_cli.target import ApiFlags
from support.processes.kubectls import chosen, kubectls
from support.rigs.secured_api import grant, rule, secured_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis

    from support.rigs.secured_api import SecuredApi

ALL = Contexts(name="fleet", clusters=None, namespace="")
VARIABLES = ("TOKEN", "API_TOKEN_FILE", "API_CA_FILE", "API_URL", "HUB_KUBECONFIG", "HUB_CONTEXT")
OTHERS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "work",
    "clusters": [{"name": "work", "cluster": {"server": "https://work.example"}}],
    "contexts": [{"name": "work", "context": {"cluster": "work", "user": "me"}}],
    "users": [{"name": "me", "user": {"token": "mine"}}],
    "preferences": {"colors": True},
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"FLEETBUS_{name}", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig-of-the-user"))
    monkeypatch.setenv("FLEETBUS_CONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def api(
    redis: Redis,
    valkey_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[SecuredApi]:
    async with secured_api(redis, valkey_url, tmp_path) as server:
        everything = ("clusters", "clusters/pods", "clusters/configmaps", "clusters/namespaces")
        grant(server.hub, "ann", rule("get list", "fleetbus.dev", *everything))
        ca = trustme.CA()
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        await server.start(
            tls_cert_file=tmp_path / "server.pem", tls_key_file=tmp_path / "server.pem"
        )
        (tmp_path / "token").write_text(server.user("ann"))
        monkeypatch.setenv("FLEETBUS_API_CA_FILE", str(tmp_path / "ca.pem"))
        yield server


def flags(api: SecuredApi, tmp_path: Path) -> ApiFlags:
    return ApiFlags(url=api.url, token_file=tmp_path / "token")


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """The printed text, without the log of the service."""
    return re.sub(r"(?m)^\d{4}-\d\d-\d\d .*\n", "", capsys.readouterr().out)


async def write(wanted: Contexts, api_flags: ApiFlags, *, merge: bool = False) -> int:
    return await asyncio.to_thread(write_contexts, wanted, api_flags, merge=merge)


async def test_the_fleet_and_each_cluster_have_a_context(
    api: SecuredApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert await write(ALL, flags(api, tmp_path)) == 0
    out = printed(capsys)
    assert "token-of-ann" not in out
    document = yaml.safe_load(out)
    assert {e["name"]: e["cluster"]["server"] for e in document["clusters"]} == {
        "fleet": f"{api.url}/kube/-",
        "fleet-eu1": f"{api.url}/kube/eu1",
        "fleet-us1": f"{api.url}/kube/us1",
    }
    assert document["current-context"] == "fleet"
    authority = str(tmp_path / "ca.pem")
    assert {e["cluster"]["certificate-authority"] for e in document["clusters"]} == {authority}
    assert document["users"] == [{"name": "fleet", "user": {"tokenFile": str(tmp_path / "token")}}]
    fleet_contexts = Contexts(name="prod", clusters=["eu1"], namespace="shop")
    assert await write(fleet_contexts, flags(api, tmp_path)) == 0
    contexts = yaml.safe_load(printed(capsys))["contexts"]
    context = {"cluster": "prod-eu1", "user": "prod", "namespace": "shop"}
    assert contexts[1] == {"name": "prod-eu1", "context": context}


async def test_who_may_list_no_clusters_names_them(
    api: SecuredApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "token").write_text(api.user("narrow"))
    assert await write(ALL, flags(api, tmp_path)) == 0
    printed = capsys.readouterr()
    assert "you may not list any cluster: name them with --cluster" in printed.err
    assert "kube/eu1" not in printed.out


async def test_merging_keeps_what_others_have(
    api: SecuredApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "kubeconfig-of-the-user"
    path.write_text(yaml.safe_dump(OTHERS))
    path.chmod(0o644)
    gone = Contexts(name="fleet", clusters=["gone"], namespace="")
    assert await write(gone, flags(api, tmp_path), merge=True) == 0
    assert await write(ALL, flags(api, tmp_path), merge=True) == 0
    assert "kubectl --context fleet get pods -A" in capsys.readouterr().out
    merged = yaml.safe_load(path.read_text())
    assert [entry["name"] for entry in merged["contexts"]] == [
        "work",
        "fleet",
        "fleet-eu1",
        "fleet-us1",
    ], "the context of the cluster that left is gone"
    assert merged["current-context"] == "work"
    assert merged["preferences"] == OTHERS["preferences"]
    assert merged["users"][0] == OTHERS["users"][0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.lock"))


async def test_a_file_that_is_no_kubeconfig_is_left_as_it_is(api: SecuredApi, tmp_path: Path):
    path = tmp_path / "kubeconfig-of-the-user"
    for text, problem in (
        ("a: [", "not valid YAML"),
        ("- a", "not a kubeconfig"),
        ("users: 5", "`users` is not a list"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            await write(ALL, flags(api, tmp_path), merge=True)
        assert path.read_text() == text
    lock = tmp_path / "kubeconfig-of-the-user.lock"
    lock.touch()
    with pytest.raises(ConfigError, match="locked by another program"):
        await write(ALL, flags(api, tmp_path), merge=True)
    assert lock.exists()


async def test_bad_names_and_passwords_are_refused(api: SecuredApi, tmp_path: Path):
    for name in ("", "a" * 64, "a\nb"):
        with pytest.raises(ConfigError, match="--name"):
            await write(Contexts(name=name, clusters=[], namespace=""), flags(api, tmp_path))
    with pytest.raises(ConfigError, match="password"):
        await write(ALL, ApiFlags(url="https://ann:secret@fleet.example"))


async def test_other_tokens_come_from_a_plugin(
    api: SecuredApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("FLEETBUS_TOKEN", api.user("ann"))
    api_flags = ApiFlags(url=api.url)
    assert await write(ALL, api_flags) == 0
    out = printed(capsys)
    assert "token-of-ann" not in out
    plugin = yaml.safe_load(out)["users"][0]["user"]["exec"]
    assert plugin["args"] == ["kubeconfig", "credential", "--api-url", api.url]
    assert plugin["interactiveMode"] == "Never"
    assert print_credential(api_flags) == 0
    assert json.loads(printed(capsys)) == {
        "apiVersion": plugin["apiVersion"],
        "kind": "ExecCredential",
        "status": {"token": "token-of-ann"},
    }
    monkeypatch.delenv("FLEETBUS_TOKEN")
    with pytest.raises(ConfigError, match="no token is configured"):
        print_credential(api_flags)


@pytest.mark.skipif(not kubectls(), reason="no kubectl is installed")
async def test_kubectl_reads_with_the_token_file_and_with_the_plugin(
    api: SecuredApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    kubectl = str(kubectls()[chosen()[-1]])

    async def names(context: str) -> list[str]:
        command = (kubectl, "--context", context, "get", "pods", "-A", "--no-headers")
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return [" ".join(line.split()[1:3]) for line in out.decode().splitlines()]

    monkeypatch.setenv("HOME", str(tmp_path))
    assert await write(ALL, flags(api, tmp_path), merge=True) == 0
    assert await names("fleet") == ["eu1 prod-1", "eu1 test-1", "us1 prod-1", "us1 test-1"]
    monkeypatch.setenv("FLEETBUS_TOKEN", api.user("ann"))
    assert await write(ALL, ApiFlags(url=api.url), merge=True) == 0
    assert [each.split()[0] for each in await names("fleet-us1")] == ["prod-1", "test-1"]
