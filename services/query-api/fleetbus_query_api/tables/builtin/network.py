"""The columns of what leads to Pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, mapping, number, text
from fleetbus_query_api.tables.cells import SHOWN, at, labels, selector, some, strings
from fleetbus_query_api.tables.column import (
    AGE,
    DEFAULT_MARK,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Column,
    column,
    name_of,
    wide,
)

_MAX_HOSTS: Final = 3
_DEFAULT_CLASS: Final = "ingressclass.kubernetes.io/is-default-class"


def _balancers(tree: Tree) -> list[str]:
    entries = first_maps(tree, "status", "loadBalancer", "ingress")
    return sorted({text(entry, "ip") or text(entry, "hostname") for entry in entries} - {""})


def _external_ip(service: Tree) -> str:
    kind, addresses = text(service, "spec", "type"), strings(service, "spec", "externalIPs")
    if kind == "ExternalName":
        return text(service, "spec", "externalName")
    if kind == "LoadBalancer":
        return ",".join([*_balancers(service), *addresses]) or "<pending>"
    return ",".join(addresses) or NONE if kind in {"ClusterIP", "NodePort"} else UNKNOWN


def _cluster_ip(service: Tree) -> str:
    several = strings(service, "spec", "clusterIPs")
    return several[0] if several else text(service, "spec", "clusterIP") or NONE


def _ports(service: Tree) -> str:
    def one(port: Tree) -> str:
        node = f":{port['nodePort']}" if number(port, "nodePort") > 0 else ""
        return f"{number(port, 'port')}{node}/{text(port, 'protocol') or 'TCP'}"

    return ",".join(map(one, first_maps(service, "spec", "ports"))) or NONE


def _endpoints(endpoints: Tree) -> str:
    """The first of all pairs of an address and a port, and how many more there are.

    A subset stands for their product, which is never built: it grows with the square of the object.
    """
    subsets = first_maps(endpoints, "subsets")
    if not subsets:
        return NONE
    total = 0
    pairs: list[str] = []
    for subset in subsets:
        addresses, ports = first_maps(subset, "addresses"), first_maps(subset, "ports")
        total += len(addresses) * (len(ports) or 1)
        pairs += islice(_pairs(addresses, ports), SHOWN - len(pairs))
    return some(pairs, total)


def _pairs(addresses: Sequence[Tree], ports: Sequence[Tree]) -> Iterator[str]:
    if not ports:
        yield from (text(address, "ip") for address in addresses)
    for port in ports:
        yield from (_joined(text(address, "ip"), number(port, "port")) for address in addresses)


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _slice_ports(endpoint_slice: Tree) -> str:
    def one(port: Tree) -> str:
        if port.get("port") is not None:
            return text(port, "port")
        return "*" if port.get("name") is None else text(port, "name")

    return some([one(port) for port in first_maps(endpoint_slice, "ports")]) or UNSET


def _slice_endpoints(endpoint_slice: Tree) -> str:
    endpoints = first_maps(endpoint_slice, "endpoints")
    return (
        some([address for endpoint in endpoints for address in strings(endpoint, "addresses")])
        or UNSET
    )


def _hosts(ingress: Tree) -> str:
    """The hosts of the first rules; how many more is counted in rules, as API servers do."""
    hosts, has_more = list[str](), False
    rules = first_maps(ingress, "spec", "rules")
    for rule in rules:
        has_more = has_more or len(hosts) == _MAX_HOSTS
        if not has_more and (host := text(rule, "host")):
            hosts.append(host)
    more = f" + {len(rules) - _MAX_HOSTS} more..." if has_more else ""
    return ",".join(hosts) + more if hosts else "*"


def _ingress_ports(ingress: Tree) -> str:
    return "80, 443" if first_maps(ingress, "spec", "tls") else "80"


def _parameters(ingress_class: Tree) -> str:
    parameters = mapping(ingress_class, "spec", "parameters")
    if not parameters:
        return NONE
    group = parameters.get("apiGroup")
    kind = text(parameters, "kind") if group is None else f"{text(parameters, 'kind')}.{group}"
    return f"{kind}/{text(parameters, 'name')}"


def _ingress_class_name(ingress_class: Tree) -> str:
    is_default = look(ingress_class, "metadata", "annotations", _DEFAULT_CLASS) == "true"
    return name_of(ingress_class) + (DEFAULT_MARK if is_default else "")


def _parent(address: Tree) -> str:
    parent = mapping(address, "spec", "parentRef")
    if not parent:
        return NONE
    group = text(parent, "group")
    resource = f"{text(parent, 'resource')}{'.' if group else ''}{group}".lower()
    namespace = text(parent, "namespace")
    return f"{resource}/{namespace}{'/' if namespace else ''}{text(parent, 'name')}"


def _cidrs(tree: Tree) -> str:
    return ",".join(strings(tree, "spec", "cidrs"))


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "core/services": (
        NAME,
        column("Type", at("spec", "type")),
        column("Cluster-IP", _cluster_ip),
        column("External-IP", _external_ip),
        column("Port(s)", _ports),
        AGE,
        wide("Selector", labels("spec", "selector")),
    ),
    "core/endpoints": (NAME, column("Endpoints", _endpoints), AGE),
    "discovery.k8s.io/endpointslices": (
        NAME,
        column("AddressType", at("addressType")),
        column("Ports", _slice_ports),
        column("Endpoints", _slice_endpoints),
        AGE,
    ),
    "networking.k8s.io/ingresses": (
        NAME,
        column("Class", at("spec", "ingressClassName", default=NONE)),
        column("Hosts", _hosts),
        column("Address", lambda ingress: ",".join(_balancers(ingress))),
        column("Ports", _ingress_ports),
        AGE,
    ),
    "networking.k8s.io/ingressclasses": (
        replace(NAME, cell=_ingress_class_name),
        column("Controller", at("spec", "controller")),
        column("Parameters", _parameters),
        AGE,
    ),
    "networking.k8s.io/networkpolicies": (
        NAME,
        column("Pod-Selector", selector("spec", "podSelector")),
        AGE,
    ),
    "networking.k8s.io/servicecidrs": (NAME, column("CIDRs", _cidrs), AGE),
    "networking.k8s.io/ipaddresses": (NAME, column("ParentRef", _parent)),
}
