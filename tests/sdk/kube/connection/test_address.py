"""Rule S7: where an API server may be, as it is written and where its name leads."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

import pytest

from fleetbus.errors import ConfigError, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.address import AddressPolicy
from fleetbus.kube.connection.config import KubeConfig, connect, upload_refusal
from fleetbus_emulator.apiserver import Cluster, serve
from support.rows import each_row

STRICT: Final = AddressPolicy(http=False, loopback=False)
OPEN: Final = AddressPolicy(http=True, loopback=True)

NEVER: Final = [
    "https://169.254.169.254",
    "https://169.254.170.2:443/path",
    "https://169.254.169.254.",
    "https://2852039166",
    "https://0xa9fea9fe",
    "https://0251.0376.0251.0376",
    "https://169.254.43518",
    "https://user:pass@169.254.169.254",
    "https://[fe80::1]",
    "https://[fe80::1%25eth0]",
    "https://[::ffff:169.254.169.254]",
    "https://[::169.254.169.254]",
    "https://[64:ff9b::169.254.169.254]",
    "https://[2002:a9fe:a9fe::1]",
    "https://[fd00:ec2::254]",
    "https://100.100.100.200",
    "https://168.63.129.16",
    "https://metadata.google.internal",
    "https://METADATA.google.internal.",
    "https://224.0.0.1",
    "https://255.255.255.255",
    "unix:///var/run/docker.sock",
    "file:///etc/passwd",
    "//host",
    "host:6443",
    "https://",
    "https://h:99999",
    "https://[::1",
    "https://good\\@169.254.169.254",
    "https://h\n.example",
    "https://\uff11\uff16\uff19.254.169.254",
]
LOOPBACK: Final = [
    "https://127.0.0.1:6443",
    "https://127.1",
    "https://2130706433",
    "https://0.0.0.0",
    "https://0",
    "https://localhost",
    "https://LocalHost.",
    "https://a.localhost",
    "https://[::1]",
    "https://[::]",
    "https://[::ffff:127.0.0.1]",
    "http://127.0.0.1:8001",
]
FINE: Final = [
    "https://api.eu1.example:6443",
    "https://10.0.0.1",
    "https://192.168.1.1:6443/k8s/clusters/c-1",
    "https://[fd00::1]:6443",
    "https://1.2.3.4",
    "HTTPS://api.eu1.example",
]


@each_row("url", NEVER)
@each_row("policy", [STRICT, OPEN])
def test_s7_an_address_that_no_field_allows(policy: AddressPolicy, url: str):
    assert policy.refusal(url)


@each_row("url", LOOPBACK)
def test_s7_loopback_is_for_development_and_plain_http_is_allowed_there(url: str):
    assert "FLEETBUS_ALLOW_LOOPBACK" in STRICT.refusal(url)
    assert AddressPolicy(http=False, loopback=True).refusal(url) == ""


@each_row("url", FINE)
def test_s7_an_ordinary_address_is_allowed(url: str):
    assert STRICT.refusal(url) == ""


def test_s7_plain_http_needs_a_field():
    assert "plain http" in STRICT.refusal("http://api.eu1.example")
    assert AddressPolicy(http=True, loopback=False).refusal("http://api.eu1.example") == ""


def config(server: str, *, http: bool = False, proxy: str = "") -> KubeConfig:
    cluster = {"server": server} | ({"proxy-url": proxy} if proxy else {})
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": {"token": "s3cret"}}],
    }
    return KubeConfig(json.dumps(document), http=http)


@each_row("url", [*NEVER, *LOOPBACK])
def test_s7_an_upload_with_such_an_address_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FLEETBUS_ALLOW_LOOPBACK", raising=False)
    assert upload_refusal(config(url)).startswith("kubeconfig: server: ")


async def test_s7_the_proxy_of_a_kubeconfig_obeys_the_same_checks(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("FLEETBUS_ALLOW_LOOPBACK", raising=False)
    for proxy in ("http://169.254.169.254:3128", "http://127.0.0.1:3128"):
        with pytest.raises(ConfigError, match=r"proxy-url: .* is (link-local|loopback)"):
            await connect(config("https://api.eu1.example", proxy=proxy))


class Resolves:
    """A resolver that an attacker owns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.asked: list[str] = []
        self._addresses = addresses
        monkeypatch.setattr(socket, "getaddrinfo", self._getaddrinfo)

    def _getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(str(host))
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self._addresses
        ]


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "0.0.0.0"])  # noqa: S104
async def test_s7_a_name_that_resolves_to_such_an_address_is_not_connected_to(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    cluster = Cluster("eu1")
    async with serve([cluster]) as servers:
        port = servers.kubeconfig()["clusters"][0]["cluster"]["server"].rpartition(":")[2]
        monkeypatch.delenv("FLEETBUS_ALLOW_LOOPBACK", raising=False)
        resolver = Resolves(monkeypatch, address)
        access = config(f"http://rebound.example:{port}", http=True)
        async with KubeClient(access) as client:
            with pytest.raises(Unreachable, match=r"is (loopback|link-local)"):
                await client.get_json("/version")
    assert resolver.asked == ["rebound.example"]
    assert not cluster.requests


async def test_s7_of_two_addresses_only_the_allowed_one_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
):
    async with serve([Cluster("eu1")]) as servers:
        port = servers.kubeconfig()["clusters"][0]["cluster"]["server"].rpartition(":")[2]
        Resolves(monkeypatch, "169.254.169.254", "127.0.0.1")
        async with KubeClient(config(f"http://h.example:{port}", http=True)) as client:
            assert await client.get_json("/version")
