"""Provider `cluster` against a hub that answers what no API server should."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from fleetbus.clusters import access as access_module
from fleetbus.clusters.access import SecretReader, read_kubeconfig
from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.providers.cluster import JOINED_UID, ClusterProvider, infos_of
from fleetbus.kube.connection.config import KubeConfig, read_upload, server_of
from fleetbus.process.settings import ProviderSettings
from support.rows import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def _hub(
    items: list[dict[str, Any]], paths: set[str] | None = None
) -> AsyncGenerator[KubeConfig]:
    """A hub that lists the same items whatever it is asked for, and never ends a watch."""
    closing = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if paths is not None:
            paths.add(request.path)
        if "watch" in request.query:
            await closing.wait()
        listed = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
        return web.json_response({**listed, "items": items})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        yield KubeConfig(
            json.dumps(
                {
                    "current-context": "hub",
                    "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "me"}}],
                    "clusters": [
                        {"name": "hub", "cluster": {"server": f"http://127.0.0.1:{port}"}}
                    ],
                    "users": [{"name": "me", "user": {}}],
                }
            )
        )
    finally:
        closing.set()
        await runner.cleanup()


async def test_s7_what_the_provider_cannot_read_is_reported_and_harms_no_other(
    capsys: pytest.CaptureFixture[str],
):
    items: list[Any] = [
        {"metadata": {"resourceVersion": "1"}},
        {"metadata": {"name": "eu1", "resourceVersion": "2"}, "spec": []},
    ]
    async with _hub(items) as hub, aclosing(ClusterProvider(hub).cluster_sets()) as sets:
        async with asyncio.timeout(5):
            infos = await anext(sets)
    assert [info.name for info in infos] == ["eu1"]
    assert "cluster_skipped" in capsys.readouterr().out


async def test_the_cluster_with_the_address_of_the_hub_is_the_hub():
    items: list[dict[str, Any]] = []
    async with _hub(items) as hub, aclosing(ClusterProvider(hub).cluster_sets()) as sets:
        for name, server in (("eu1", "https://eu1.example.com"), ("main", server_of(hub) + "/")):
            secret = _secret("1", server)
            secret["metadata"]["name"] = f"{name}-kubeconfig"
            reference = {"namespace": "n", "name": f"{name}-kubeconfig"}
            spec = {"kubeconfigSecretRef": reference, "allowHTTP": True}
            metadata = {"name": name, "resourceVersion": "1"}
            items += [secret, {"metadata": metadata, "spec": spec}]
        async with asyncio.timeout(5):
            infos = await anext(sets)
    assert {info.name for info in infos if info.hub} == {"main"}
    assert {info.name for info in infos} >= {"main", "eu1"}


async def test_s7_secrets_are_read_in_the_namespace_of_the_option_only():
    paths: set[str] = set()
    async with _hub([], paths) as hub:
        options = {"type": "cluster", "namespace": "fleet"}
        provider = build_provider(ProviderSettings.model_validate(options), hub)
        async with aclosing(provider.cluster_sets()) as sets, asyncio.timeout(5):
            await anext(sets)
    assert {path for path in paths if path.endswith("secrets")} == {
        "/api/v1/namespaces/fleet/secrets"
    }


JOINED: dict[str, Any] = {"annotations": {JOINED_UID: "joined"}}


@each_row(
    ("metadata", "status", "uid"),
    [
        ({}, {}, ""),
        (JOINED, {}, "joined"),
        (JOINED, {"status": {"uid": ""}}, "joined"),
        (JOINED, {"status": {"uid": "accepted"}}, "accepted"),
        ({}, {"status": {"uid": "accepted"}}, "accepted"),
        ({"annotations": None}, {"status": []}, ""),
    ],
)
def test_w13_a_cluster_has_the_uid_on_record_that_was_accepted_or_joined(
    metadata: dict[str, Any], status: dict[str, Any], uid: str
):
    cluster = {"metadata": {"name": "eu1", **metadata}, "spec": {}, **status}
    (info,), _ = infos_of({("", "eu1"): cluster}, {}, SecretReader(read_kubeconfig))
    assert info.uid == uid
    assert info == replace(info, uid="")  # that it was recorded is no change of the fleet


@each_row(
    ("spec", "access", "problem"),
    [
        ({"access": "Agent"}, "Agent", ""),
        ({"access": "Agent", "kubeconfigSecretRef": {"namespace": "n", "name": "s"}}, "Agent", ""),
        ({"access": "Agnet"}, "Direct", "'Agnet' is neither Direct nor Agent"),
        ({"access": ["Agent"]}, "Direct", "is neither Direct nor Agent"),
        ({"access": "Direct"}, "Direct", "kubeconfigSecretRef is missing"),
        ({}, "Direct", "kubeconfigSecretRef is missing"),
    ],
)
def test_a_cluster_with_an_agent_needs_no_access_data(
    spec: dict[str, Any], access: str, problem: str
):
    cluster = {"metadata": {"name": "eu1"}, "spec": spec}
    secrets = {("n", "s"): _secret("1", "https://one")}
    ((info,), skipped) = infos_of({("", "eu1"): cluster}, secrets, SecretReader(read_kubeconfig))
    assert (info.access, info.config, skipped) == (access, None, {})
    assert problem in info.problem
    assert bool(problem) is bool(info.problem)


def _secret(version: str, server: str, uid: str = "u1") -> dict[str, Any]:
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
    }
    encoded = base64.b64encode(json.dumps(document).encode()).decode()
    metadata = {"namespace": "n", "name": "s", "uid": uid, "resourceVersion": version}
    return {"metadata": metadata, "data": {"kubeconfig": encoded}}


def _servers(objects: dict[str, Any], kubeconfigs: SecretReader, *, insecure: bool = False) -> str:
    reference = {"namespace": "n", "name": "s"}
    spec = {"kubeconfigSecretRef": reference, "insecureSkipTLSVerify": insecure}
    cluster = {"metadata": {"name": "eu1"}, "spec": spec}
    ((info,), _) = infos_of({("", "eu1"): cluster}, {("n", "s"): objects}, kubeconfigs)
    assert info.config is not None
    assert info.config.insecure is insecure
    return server_of(info.config)


def test_a_secret_is_parsed_once_per_version_and_anew_when_it_changed(
    monkeypatch: pytest.MonkeyPatch,
):
    parsed: list[str] = []

    def counted(text: str, source: str) -> KubeConfig:
        parsed.append(text)
        return read_upload(text, source)

    monkeypatch.setattr(access_module, "read_upload", counted)
    kubeconfigs = SecretReader(read_kubeconfig)
    assert _servers(_secret("1", "https://one"), kubeconfigs) == "https://one"
    assert _servers(_secret("1", "https://one"), kubeconfigs, insecure=True) == "https://one"
    assert len(parsed) == 1
    assert _servers(_secret("2", "https://two"), kubeconfigs) == "https://two"
    assert _servers(_secret("2", "https://three", "u2"), kubeconfigs) == "https://three"
    assert len(parsed) == 3
    assert infos_of({}, {}, kubeconfigs) == ([], {})
    assert _servers(_secret("2", "https://three", "u2"), kubeconfigs) == "https://three"
    assert len(parsed) == 4  # what left is not kept
