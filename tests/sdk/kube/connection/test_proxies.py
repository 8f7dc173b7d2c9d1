"""Proxies of a kubeconfig and of the environment are used, within the rule of addresses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml

from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig, connect, upload_refusal
from fleetbus_emulator.apiserver import ApiServers, Cluster, serve
from support.rows import each_row


@dataclass
class Proxy:
    """A proxy that forwards what CONNECT asks for, whatever name it has, to one port."""

    target: int
    port: int = 0
    heads: list[str] = field(default_factory=list[str])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, to_writer))
            group.create_task(_copy(to_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxied_servers() -> AsyncGenerator[tuple[ApiServers, Proxy]]:
    """An API server behind TLS, and a proxy that leads to it."""
    async with serve([Cluster("eu1")], tls=True) as servers:
        server = str(servers.kubeconfig()["clusters"][0]["cluster"]["server"])
        proxy = Proxy(int(server.rpartition(":")[2]))
        listener = await asyncio.start_server(proxy.answer, "127.0.0.1", 0)
        proxy.port = listener.sockets[0].getsockname()[1]
        async with listener:
            yield servers, proxy


def _behind(servers: ApiServers, **cluster: str) -> KubeConfig:
    """Access data whose address only a proxy can resolve."""
    document: dict[str, Any] = servers.kubeconfig()
    fields = document["clusters"][0]["cluster"]
    fields |= {"server": "https://api.invalid:6443", "tls-server-name": "localhost", **cluster}
    return KubeConfig(yaml.safe_dump(document), source="f", own=True)


async def test_the_proxy_of_a_kubeconfig_is_used_with_its_login():
    async with proxied_servers() as (servers, proxy):
        config = _behind(servers, **{"proxy-url": f"http://me:pass@127.0.0.1:{proxy.port}"})
        async with KubeClient(config) as client:
            assert await client.get_json("/version")
    assert proxy.heads[0].startswith("CONNECT api.invalid:6443 HTTP/1.1\r\n")
    login = base64.b64encode(b"me:pass").decode()
    assert f"Proxy-Authorization: Basic {login}" in proxy.heads[0]
    assert "Bearer" not in proxy.heads[0]


async def test_the_proxy_of_the_environment_is_used_unless_it_is_exempt(
    monkeypatch: pytest.MonkeyPatch,
):
    async with proxied_servers() as (servers, proxy):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        async with KubeClient(_behind(servers)) as client:
            assert await client.get_json("/version")
        monkeypatch.setenv("NO_PROXY", "invalid")
        async with KubeClient(_behind(servers)) as client:
            with pytest.raises(Unreachable):
                await client.get_json("/version")
    assert len(proxy.heads) == 1


async def test_a_proxy_that_is_away_is_unreachable():
    async with (
        proxied_servers() as (servers, _),
        KubeClient(_behind(servers, **{"proxy-url": "http://127.0.0.1:1"})) as client,
    ):
        with pytest.raises(Unreachable):
            await client.get_json("/version")


@each_row(
    ("proxy", "reason"),
    [
        ("http://squid.example.org:3128", ""),
        ("http://169.254.169.254", "link-local"),
        ("http://metadata.google.internal", "metadata"),
        ("socks5://squid.example.org", "'proxy-url' is not the URL of an http or https proxy"),
        ("squid.example.org:3128", "'proxy-url' is not the URL of an http or https proxy"),
    ],
)
def test_s7_the_proxy_of_an_upload_is_held_to_the_rule_of_addresses(proxy: str, reason: str):
    document = {
        "current-context": "a",
        "clusters": [
            {"name": "a", "cluster": {"server": "https://api.example.org", "proxy-url": proxy}}
        ],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }
    refusal = upload_refusal(KubeConfig(json.dumps(document)))
    assert reason in refusal
    assert bool(refusal) == bool(reason)


async def test_s7_a_proxy_whose_name_leads_to_this_machine_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("FLEETBUS_ALLOW_LOOPBACK", "0")
    async with proxied_servers() as (servers, proxy):
        url = f"http://proxy.localhost.example:{proxy.port}"
        config = replace(_behind(servers, **{"proxy-url": url}), own=False)
        loop = asyncio.get_running_loop()

        async def resolve(host: str, port: int, **_: object) -> list[Any]:
            assert host == "proxy.localhost.example"
            return [(2, 1, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        async with KubeClient(config) as client:
            with pytest.raises(Unreachable, match="loopback"):
                await client.get_json("/version")
    assert proxy.heads == []


async def test_whoever_a_kubeconfig_impersonates_is_not_mixed_with_another(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    async with serve([Cluster("eu1")], tls=True) as servers:
        document: dict[str, Any] = servers.kubeconfig()
        document["users"][0]["user"] = {
            "token": "t",
            "as": "jane",
            "as-groups": ["system:masters"],
            "as-user-extra": {"scopes": ["all"]},
        }
        connection = await connect(KubeConfig(yaml.safe_dump(document), source="f", own=True))
    assert connection.headers_as("").getall("Impersonate-Group") == ["system:masters"]
    assert dict(connection.headers_as("system:serviceaccount:a:b")) == {
        "Authorization": "Bearer t",
        "Impersonate-User": "system:serviceaccount:a:b",
    }
