"""The rows of what leads to pods."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns.printed import (
    NONE,
    UNSET,
    Printed,
    Row,
    labels,
    printed,
    selector,
    some,
)
from fleetbus_emulator.apiserver.json_tree import listing, mapping

JsonObject = dict[str, Any]


def _balancers(row: Row) -> list[str]:
    entries = listing(row.status, "loadBalancer", "ingress")
    return sorted({entry.get("ip") or entry.get("hostname") or "" for entry in entries} - {""})


def _external(row: Row) -> str:
    kind, addresses = row.spec.get("type"), listing(row.spec, "externalIPs")
    if kind == "ExternalName":
        return row.spec.get("externalName", "")
    if kind == "LoadBalancer":
        return ",".join([*_balancers(row), *addresses]) or "<pending>"
    return ",".join(addresses) or NONE


def _port(port: JsonObject) -> str:
    outside = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{outside}/{port.get('protocol', 'TCP')}"


def _service(row: Row) -> list[Any]:
    spec = row.spec
    ports = ",".join(_port(port) for port in listing(spec, "ports"))
    chosen = labels(mapping(spec, "selector"))
    address = spec.get("clusterIP") or NONE
    return [spec.get("type"), address, _external(row), ports or NONE, row.age, chosen]


def _endpoints(row: Row) -> list[Any]:
    pairs: list[str] = []
    for subset in listing(row.obj, "subsets"):
        addresses = [address.get("ip", "") for address in listing(subset, "addresses")]
        ports = listing(subset, "ports")
        pairs += [f"{a}:{port.get('port')}" for port in ports for a in addresses]
        pairs += [] if ports else addresses
    return [some(pairs) or NONE, row.age]


def _endpoint_slice(row: Row) -> list[Any]:
    ports = [str(p.get("port") or p.get("name") or "*") for p in listing(row.obj, "ports")]
    endpoints = listing(row.obj, "endpoints")
    addresses = [address for endpoint in endpoints for address in listing(endpoint, "addresses")]
    kind = row.obj.get("addressType", "")
    return [kind, some(ports) or UNSET, some(addresses) or UNSET, row.age]


def _ingress(row: Row) -> list[Any]:
    hosts = [rule["host"] for rule in listing(row.spec, "rules") if rule.get("host")]
    ports = "80, 443" if row.spec.get("tls") else "80"
    name = row.spec.get("ingressClassName") or NONE
    return [name, some(hosts) or "*", ",".join(_balancers(row)), ports, row.age]


def _ingress_class(row: Row) -> list[Any]:
    parameters = mapping(row.spec, "parameters")
    text = NONE
    if parameters:
        group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
        text = f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"
    return [row.spec.get("controller", ""), text, row.age]


COLUMNS: dict[tuple[str, str], Printed] = {
    ("", "Service"): printed(
        "Type, Cluster-IP, External-IP, Port(s), Age", _service, wide="Selector"
    ),
    ("", "Endpoints"): printed("Endpoints, Age", _endpoints),
    ("discovery.k8s.io", "EndpointSlice"): printed(
        "AddressType, Ports, Endpoints, Age", _endpoint_slice
    ),
    ("networking.k8s.io", "Ingress"): printed("Class, Hosts, Address, Ports, Age", _ingress),
    ("networking.k8s.io", "IngressClass"): printed("Controller, Parameters, Age", _ingress_class),
    ("networking.k8s.io", "NetworkPolicy"): printed(
        "Pod-Selector, Age", lambda row: [selector(mapping(row.spec, "podSelector")), row.age]
    ),
}
