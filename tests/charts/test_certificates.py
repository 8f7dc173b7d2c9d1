"""TLS between components and embedded stores: by default, of one's own, or off (rule S2)."""

from __future__ import annotations

import asyncio
import base64
import functools
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_stream
from support.api.rendered_chart import AUDIT, VALUES, Object, find, of_kind, render, secret
from support.eventually import eventually
from support.rows import each_row
from support.servers.plain_nats_client import plain_client
from support.servers.rendered_servers import rendered_nats, run_nats_probe, write_certificate

ANOTHER = functools.partial(render, {"shards": 2})
"""Objects with certificates of another CA."""
POD = "fleetbus.events.eu1.core.pods.a.b.added"
HOSTS = {
    "nats": ["fb-fleetbus-nats.fleetbus.svc", "*.fb-fleetbus-nats-headless.fleetbus.svc"],
    "valkey": ["fb-fleetbus-valkey.fleetbus.svc"],
    "query-api": ["fb-fleetbus-query-api.fleetbus.svc"],
}


def certificate(objects: list[Object], name: str, key: str = "tls.crt") -> x509.Certificate:
    data = find(objects, "Secret", f"fb-fleetbus-{name}")["data"]
    return x509.load_pem_x509_certificate(base64.b64decode(data[key]))


def settings(objects: list[Object], name: str) -> dict[str, Any]:
    pod = find(objects, "Deployment", f"fb-fleetbus-{name}")["spec"]["template"]["spec"]
    return {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}


def ca_sources(objects: list[Object]) -> list[tuple[str, str]]:
    """Volume and Secret of each CA that the distributor trusts."""
    pod = find(objects, "Deployment", "fb-fleetbus-distributor")["spec"]["template"]["spec"]
    return [
        (volume["name"], source["secret"]["name"])
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        if source["secret"].get("items") == [{"key": "ca.crt", "path": "ca.crt"}]
    ]


def test_certificates_are_of_one_ca_and_for_the_names_that_clients_use():
    objects = render({})
    ca = certificate(objects, "ca", "tls.crt")
    for name, hosts in HOSTS.items():
        issued = certificate(objects, f"{name}-tls")
        issued.verify_directly_issued_by(ca)
        assert certificate(objects, f"{name}-tls", "ca.crt") == ca
        names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {*hosts, "localhost"} <= set(names.get_values_for_type(x509.DNSName))
        lasts = issued.not_valid_after_utc - issued.not_valid_before_utc
        assert lasts == timedelta(days=5 * 365)
        assert isinstance(issued.public_key(), EllipticCurvePublicKey)
    lasts = ca.not_valid_after_utc - ca.not_valid_before_utc
    assert lasts == timedelta(days=20 * 365)


@pytest.mark.slow
@each_row(
    ("url", "name", "address"),
    [
        ("tls://nats.example.com:4222", "nats.example.com", None),
        ("tls://a.example.com:4222,b.example.com:4222", "b.example.com", None),
        ("tls://10.2.3.4:4222", None, "10.2.3.4"),
        ("tls://[2001:db8::1]:4222", None, "2001:db8::1"),
    ],
)
def test_s2_the_certificate_of_nats_is_for_the_address_of_agents(
    url: str, name: str | None, address: str | None
):
    def hosts(values: Object, instance: str) -> tuple[set[str], set[str]]:
        issued = certificate(render(values), f"{instance}-tls")
        names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = map(str, names.get_values_for_type(x509.IPAddress))
        return set(names.get_values_for_type(x509.DNSName)), set(addresses)

    agents: Object = {"agents": {"enabled": True, "url": url}}
    names, addresses = hosts(agents, "nats")
    assert name is None or name in names
    assert address is None or address in addresses
    assert hosts(agents, "valkey") == hosts({}, "valkey")
    issuer: Object = {"tls": {"issuerRef": {"name": "ca", "kind": "Issuer"}}}
    spec = find(render({**agents, **issuer}), "Certificate", "fb-fleetbus-nats-tls")["spec"]
    assert name is None or name in spec["dnsNames"]
    assert address is None or address in spec["ipAddresses"]


def test_s2_every_component_speaks_tls_with_the_embedded_stores():
    objects = render({})
    for name in ("projector", "distributor", "pool", "watcher-hub"):
        variables = settings(objects, name)
        assert variables["FLEETBUS_NATS_URL"] == "tls://fb-fleetbus-nats.fleetbus.svc:4222"
        assert variables["FLEETBUS_NATS_CA_FILE"] == "/etc/fleetbus/nats/ca.crt"
    for name in ("projector", "distributor", "query-api"):
        variables = settings(objects, name)
        assert variables["FLEETBUS_REDIS_URL"].startswith("rediss://")
        assert variables["FLEETBUS_REDIS_CA_FILE"] == "/etc/fleetbus/redis/ca.crt"
    assert ca_sources(objects) == [
        ("nats", "fb-fleetbus-nats-tls"),
        ("redis", "fb-fleetbus-valkey-tls"),
    ]
    text = secret(objects, "fb-fleetbus-valkey-config")["valkey.conf"]
    assert "\nport 0\ntls-port 6379\n" in text
    three = render({"nats": {"embedded": {"replicas": 3}}})
    text = secret(three, "fb-fleetbus-nats-config")["nats.conf"]
    assert text.count("tls { cert_file") == 2, "clients and routes"


def test_one_value_switches_it_off_for_a_mesh():
    objects = render({"tls": {"enabled": False}})
    variables = settings(objects, "distributor")
    assert variables["FLEETBUS_NATS_URL"].startswith("nats://")
    assert variables["FLEETBUS_REDIS_URL"].startswith("redis://")
    assert "FLEETBUS_NATS_CA_FILE" not in variables
    assert "FLEETBUS_REDIS_CA_FILE" not in variables
    assert ca_sources(objects) == []
    secret_names = {obj["metadata"]["name"] for obj in of_kind(objects, "Secret")}
    assert "fb-fleetbus-nats-tls" not in secret_names
    assert "fb-fleetbus-query-api-tls" in secret_names, "tokens never travel in clear text"


def test_a_secret_of_ones_own_is_used_and_none_is_made():
    objects = render(VALUES["three servers, certificates of yours"])
    assert ca_sources(objects) == [("nats", "nats-tls"), ("redis", "valkey-tls")]
    secret_names = {obj["metadata"]["name"] for obj in of_kind(objects, "Secret")}
    assert not {"fb-fleetbus-nats-tls", "fb-fleetbus-valkey-tls"} & secret_names


def test_cert_manager_makes_them_where_an_issuer_is_named():
    issuer = {"name": "fleet-ca", "kind": "ClusterIssuer"}
    objects = render({"tls": {"issuerRef": issuer}, "externalSubscribers": [AUDIT]})
    certificates = of_kind(objects, "Certificate")
    assert {certificate_object["spec"]["secretName"] for certificate_object in certificates} == {
        f"fb-fleetbus-{name}-tls" for name in HOSTS
    }
    assert all(
        certificate_object["spec"]["issuerRef"] == issuer for certificate_object in certificates
    )
    assert [
        secret_object
        for secret_object in of_kind(objects, "Secret")
        if secret_object["type"] == "kubernetes.io/tls"
    ] == []
    assert "ca.crt" not in secret(objects, "fb-fleetbus-subscriber-audit-nats")
    assert ca_sources(objects)[0] == ("nats", "fb-fleetbus-nats-tls")


async def test_s2_a_server_of_another_authority_is_not_trusted(tmp_path: Path):
    other = write_certificate(ANOTHER(), "nats", new(tmp_path / "other"))
    async with rendered_nats({}, tmp_path) as server:
        login = server.login("projector") | {"tls": ssl.create_default_context(cafile=other)}
        with pytest.raises(ssl.SSLCertVerificationError):
            async with plain_client(server.address, **login):
                pass
        async with connected(server.access("projector"), name="projector") as bus:
            await ensure_stream(bus)


async def test_s2_the_probe_of_the_pod_takes_a_new_certificate_into_use(tmp_path: Path):
    async with rendered_nats({}, tmp_path) as server:
        async with connected(server.access("projector"), name="projector") as bus:
            await ensure_stream(bus)
            before = await served(server.address)
            write_certificate(ANOTHER(), "nats", tmp_path)
            assert await served(server.address) == before
            assert run_nats_probe(tmp_path) == 0

            async def is_another() -> bool:
                return await served(server.address) != before

            await eventually(is_another)
            await bus.request(POD, b"event")  # this connection stays
        # The CA is read anew, too.
        async with connected(server.access("projector"), name="projector") as bus:
            assert await bus.request(POD, b"event")


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def served(address: str) -> bytes | None:
    """The certificate that the server shows."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        await reader.readline()  # INFO
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        await writer.start_tls(trusting)
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True)
    finally:
        writer.close()
