"""Agents reach the chart's NATS from outside of the hub: its Service, certificate and policy."""

from __future__ import annotations

import base64
import ipaddress

from cryptography import x509

from support.api.rendered_chart import Object, find, of_kind, render

NATS = "fb-fleetbus-nats"
OUTSIDE = f"{NATS}-outside"


def agents(**values: object) -> Object:
    return {"agents": {"enabled": True, **values}}


def names_in_certificate(objects: list[Object]) -> tuple[list[str], list[str]]:
    data = find(objects, "Secret", f"{NATS}-tls")["data"]
    issued = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return names.get_values_for_type(x509.DNSName), [str(address) for address in addresses]


def lets_everybody_in(objects: list[Object]) -> bool:
    """Whether the network policy of NATS has a rule for its port without peers."""
    rules = find(objects, "NetworkPolicy", NATS)["spec"]["ingress"]
    return any("from" not in rule and rule["ports"][0]["port"] == 4222 for rule in rules)


def test_by_default_there_is_no_way_from_outside():
    for values in ({}, agents(), {"agents": {"service": {"type": "LoadBalancer"}}}):
        objects = render(values)
        services = [one["metadata"]["name"] for one in of_kind(objects, "Service")]
        assert NATS in services
        assert OUTSIDE not in services
        assert not lets_everybody_in(objects)


def test_a_load_balancer_leads_to_the_servers_and_may_be_bounded():
    service = {
        "type": "LoadBalancer",
        "port": 443,
        "annotations": {"cloud.example.com/kind": "tcp"},
        "loadBalancerSourceRanges": ["192.0.2.0/24"],
    }
    objects = render(agents(service=service))
    made, inner = find(objects, "Service", OUTSIDE), find(objects, "Service", NATS)
    assert made["spec"]["selector"] == inner["spec"]["selector"]
    assert made["spec"]["type"] == "LoadBalancer"
    assert made["spec"]["ports"] == [{"name": "nats", "port": 443, "targetPort": "nats"}]
    assert made["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    assert made["metadata"]["annotations"] == {"cloud.example.com/kind": "tcp"}
    assert lets_everybody_in(objects)


def test_a_port_of_the_nodes_may_be_chosen():
    objects = render(agents(service={"type": "NodePort", "nodePort": 30422}))
    (port,) = find(objects, "Service", OUTSIDE)["spec"]["ports"]
    assert (port["port"], port["nodePort"]) == (4222, 30422)


def test_s2_the_certificate_is_valid_for_the_hosts_of_the_address():
    urls = "tls://nats.example.com:4222,tls://203.0.113.7:443,tls://[2001:db8::7]"
    hosts, addresses = names_in_certificate(render(agents(url=urls)))
    assert "nats.example.com" in hosts
    outside = {str(ipaddress.ip_address(each)) for each in ("203.0.113.7", "2001:db8::7")}
    assert {*outside, "127.0.0.1"} == set(addresses)
    plain = render({"agents": {"url": urls}})
    assert "nats.example.com" not in names_in_certificate(plain)[0]
    issuer = {"tls": {"issuerRef": {"name": "fleet-ca", "kind": "ClusterIssuer"}}}
    asked = find(render(agents(url=urls) | issuer), "Certificate", f"{NATS}-tls")["spec"]
    assert "nats.example.com" in asked["dnsNames"]
    assert "203.0.113.7" in asked["ipAddresses"]
