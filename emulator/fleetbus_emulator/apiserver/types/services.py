"""Services: their defaults, and the addresses and ports that they are given."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from fleetbus_emulator.apiserver.errors import ApiError, Cause
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import forbidden, invalid

JsonObject = dict[str, Any]
NETWORK = ipaddress.ip_network("10.96.0.0/12")
NODE_PORTS = range(30_000, 32_768)
_RANGE = f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
AFFINITY_SECONDS = 10_800
BALANCER, OUTSIDE = "LoadBalancer", frozenset({"NodePort", "LoadBalancer"})
LAST_PORT = 65535
LONGEST_PORT_NAME = 15
_PORT_NAME = re.compile("[-a-z0-9]+")
_LETTER = re.compile("[a-z]")
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


def target_port_problems(port: object) -> list[str]:
    """Validate a number or name of a port of pods."""
    if isinstance(port, int):
        return [] if 1 <= port <= LAST_PORT else [f"must be between 1 and {LAST_PORT}, inclusive"]
    text = str(port or "")
    if not text:
        return []
    problems: list[str] = []
    if len(text) > LONGEST_PORT_NAME:
        problems.append(f"must be no more than {LONGEST_PORT_NAME} characters")
    if not _PORT_NAME.fullmatch(text):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _LETTER.search(text):
        problems.append("must contain at least one letter (a-z)")
    if "--" in text:
        problems.append("must not contain consecutive hyphens")
    if text[0] == "-" or text[-1] == "-":
        problems.append("must not begin or end with a hyphen")
    return problems


def allocate(obj: JsonObject, random: Random, others: Callable[[], Iterable[JsonObject]]) -> None:
    """Allocate the addresses and node ports that the Service's type has and the writer left out.

    Args:
        obj: The Service, with its defaults.
        random: Chooses.
        others: The other Services that there are.

    Raises:
        ApiError: 500, there are not enough node ports.
    """
    spec = obj["spec"]
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        taken_addresses = {mapping(other, "spec").get("clusterIP") for other in others()}
        while (address := str(NETWORK[random.randrange(2, NETWORK.num_addresses - 1)])) in (
            taken_addresses
        ):
            pass
        spec["clusterIP"] = address
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    wants_ports = spec["type"] in OUTSIDE and spec.get("allocateLoadBalancerNodePorts", True)
    lacking = [port for port in listing(spec, "ports") if not port.get("nodePort")]
    if wants_ports and lacking:
        taken = _node_ports(others()) | _node_ports([obj])
        free = [number for number in NODE_PORTS if number not in taken]
        if len(lacking) > len(free):
            why = "failed to allocate a nodePort: range is full"
            raise ApiError(500, "InternalError", f"Internal error occurred: {why}")
        for port, number in zip(lacking, random.sample(free, len(lacking)), strict=True):
            port["nodePort"] = number


def unavailable(obj: JsonObject, others: Callable[[], Iterable[JsonObject]]) -> list[Cause]:
    """The address, or the first node port, that the writer chose and cannot have.

    Args:
        obj: The Service, with its defaults.
        others: The other Services that there are.
    """
    spec: JsonObject = mapping(obj, "spec")
    chosen = [
        (f"spec.ports[{index}].nodePort", port)
        for index, port in enumerate(listing(spec, "ports"))
        if port.get("nodePort")
    ]
    if chosen and spec["type"] not in OUTSIDE:
        why = f"may not be used when `type` is '{spec['type']}'"
        return [forbidden(field, why) for field, _ in chosen]
    address = spec.get("clusterIP")
    if address and address != HEADLESS and (why := _address_problem(address, others)):
        return [invalid("spec.clusterIPs", [address], f"failed to allocate IP {address}: {why}")]
    allocated = _node_ports(others()) if chosen else set[int]()
    taken: set[tuple[int, str]] = set()
    for field, port in chosen:
        number = port["nodePort"]
        if number not in NODE_PORTS:
            why = f"provided port is not in the valid range. The range of valid ports is {_RANGE}"
            return [invalid(field, number, why)]
        # A Service may have one port for several protocols.
        if number in allocated or (number, port["protocol"]) in taken:
            return [invalid(field, number, "provided port is already allocated")]
        taken.add((number, port["protocol"]))
    return []


def _address_problem(address: str, others: Callable[[], Iterable[JsonObject]]) -> str | None:
    try:
        if ipaddress.ip_address(address) not in NETWORK:
            return "the provided network does not match the current range"
    except ValueError:
        return None
    if any(mapping(other, "spec").get("clusterIP") == address for other in others()):
        return "provided IP is already allocated"
    return None


def _node_ports(services: Iterable[JsonObject]) -> set[int]:
    ports = (port for service in services for port in listing(service, "spec", "ports"))
    return {port["nodePort"] for port in ports if port.get("nodePort")}


def keep_allocated(old: JsonObject, new: JsonObject) -> None:
    """Keep what an update leaves out, and drop what its new type has no longer."""
    before: JsonObject = mapping(old, "spec")
    spec: JsonObject = mapping(new, "spec")
    kind = spec.get("type") or "ClusterIP"
    if "clusterIP" not in spec and kind != "ExternalName":
        spec.update({name: before[name] for name in ADDRESSES if name in before})
    if kind in OUTSIDE:
        node_ports = {port.get("port"): port.get("nodePort") for port in listing(before, "ports")}
        for port in listing(spec, "ports"):
            if not port.get("nodePort") and node_ports.get(port.get("port")):
                port["nodePort"] = node_ports[port.get("port")]
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
