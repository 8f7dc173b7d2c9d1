"""Services: their defaults, and the addresses and ports that they are given."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from fleetbus_emulator.apiserver.errors import ApiError
from fleetbus_emulator.apiserver.json_tree import listing, mapping

JsonObject = dict[str, Any]
NETWORK = ipaddress.ip_network("10.96.0.0/12")
NODE_PORTS = range(30_000, 32_768)
AFFINITY_SECONDS = 10_800
BALANCER, OUTSIDE = "LoadBalancer", frozenset({"NodePort", "LoadBalancer"})
HEADLESS = "None"
# What only some types have, and a change to another type takes away.
ADDRESSES = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
OUTSIDE_ONLY = ("externalTrafficPolicy", "healthCheckNodePort")
BALANCER_ONLY = ("allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerIP")


def apply_defaults(obj: JsonObject) -> None:
    """Fill in what a write left out; the same on create and update."""
    spec: JsonObject = mapping(obj, "spec")
    obj["spec"] = spec
    spec["type"] = spec.get("type") or "ClusterIP"
    spec["sessionAffinity"] = spec.get("sessionAffinity") or HEADLESS
    if spec["sessionAffinity"] == "ClientIP":
        client = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        client.setdefault("timeoutSeconds", AFFINITY_SECONDS)
    for port in listing(spec, "ports"):
        port["protocol"] = port.get("protocol") or "TCP"
        port["targetPort"] = port.get("targetPort") or port.get("port")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in OUTSIDE:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == BALANCER:
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def allocate(obj: JsonObject, random: Random, others: Callable[[], Iterable[JsonObject]]) -> None:
    """Allocate the addresses and node ports that the Service's type has and the writer left out.

    Args:
        obj: The Service, with its defaults.
        random: Chooses.
        others: The Services that there are.

    Raises:
        ApiError: 500, there are not enough node ports.
    """
    spec = obj["spec"]
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        offset = random.randrange(2, NETWORK.num_addresses - 1)
        spec["clusterIP"] = str(NETWORK[offset])
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    wants_ports = spec["type"] in OUTSIDE and spec.get("allocateLoadBalancerNodePorts", True)
    lacking = [port for port in listing(spec, "ports") if not port.get("nodePort")]
    if wants_ports and lacking:
        ports = (port for other in others() for port in listing(other, "spec", "ports"))
        taken = {port.get("nodePort") for port in ports}
        free = [number for number in NODE_PORTS if number not in taken]
        if len(lacking) > len(free):
            why = "failed to allocate a nodePort: range is full"
            raise ApiError(500, "InternalError", f"Internal error occurred: {why}")
        for port, number in zip(lacking, random.sample(free, len(lacking)), strict=True):
            port["nodePort"] = number


def keep_allocated(old: JsonObject, new: JsonObject) -> None:
    """Keep what an update leaves out, and drop what its new type has no longer."""
    before: JsonObject = mapping(old, "spec")
    spec: JsonObject = mapping(new, "spec")
    kind = spec.get("type") or "ClusterIP"
    if "clusterIP" not in spec and kind != "ExternalName":
        spec.update({name: before[name] for name in ADDRESSES if name in before})
    if kind in OUTSIDE:
        given = {port.get("port"): port.get("nodePort") for port in listing(before, "ports")}
        for port in listing(spec, "ports"):
            if not port.get("nodePort") and given.get(port.get("port")):
                port["nodePort"] = given[port.get("port")]
    else:
        for port in listing(spec, "ports"):
            port.pop("nodePort", None)
        _drop(spec, before, OUTSIDE_ONLY)
    if kind != BALANCER:
        _drop(spec, before, BALANCER_ONLY)
    if kind == "ExternalName":
        _drop(spec, before, (*ADDRESSES, "internalTrafficPolicy"))


def _drop(spec: JsonObject, before: JsonObject, names: tuple[str, ...]) -> None:
    """Drop values that were allocated before; new ones of the writer stay, to be refused."""
    for name in names:
        if name in spec and spec[name] == before.get(name):
            del spec[name]
