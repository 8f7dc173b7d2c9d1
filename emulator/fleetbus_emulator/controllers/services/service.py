"""The pods behind a Service, and their ports: pure computation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.owners import labels_of
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import View, is_deleting, uid_of
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_ready

JsonObject = dict[str, Any]
HEADLESS = "service.kubernetes.io/headless"
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
Ports = tuple[tuple[str, int, str, str], ...]  # name, number, protocol, appProtocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A pod behind a Service.

    Attributes:
        ready: Whether requests shall go there.
        serving: Whether it would answer.
        hostname: Its name within a headless Service; empty if it has none.
    """

    ref: Ref
    uid: str
    address: str
    node: str
    ready: bool
    serving: bool
    terminating: bool
    hostname: str = ""

    def target(self) -> JsonObject:
        """The reference to the pod."""
        names = {"name": self.ref.name, "namespace": self.ref.namespace}
        return {"kind": "Pod", **names, "uid": self.uid}


def selector_of(service: JsonObject) -> JsonObject:
    """The labels that select the Service's pods; empty if it has no selector."""
    spec = mapping(service, "spec")
    return {} if spec.get("type") == "ExternalName" else mapping(spec, "selector")


def is_headless(service: JsonObject) -> bool:
    """Whether the Service has no address of its own."""
    return mapping(service, "spec").get("clusterIP") == "None"


def services_concerned(view: View, change: Change, ref: Ref) -> Iterable[Ref]:
    """The Services that a pod's change concerns: those that select it, or did before."""
    services = view.of_type("", "services", ref.namespace)
    if not services or (change.type == "MODIFIED" and not _matters(change)):
        return
    versions = [labels_of(obj).items() for obj in (change.new, change.old) if obj is not None]
    for service in services:
        selector = selector_of(view[service]).items()
        if selector and any(selector <= labels for labels in versions):
            yield service


def _matters(change: Change) -> bool:
    old = change.old or {}
    return _shown(old) != _shown(change.new)


def _shown(pod: JsonObject) -> tuple[Any, ...]:
    status, spec = mapping(pod, "status"), mapping(pod, "spec")
    place = (status.get("podIP"), spec.get("nodeName"), spec.get("hostname"))
    return *place, labels_of(pod), is_ready(pod), has_ended(pod), is_deleting(pod)


def endpoints_of(view: View, ref: Ref) -> dict[Ports, list[Endpoint]]:
    """The pods behind a Service, by the ports they listen on: named ones may differ."""
    service = view[ref]
    by_ports: dict[Ports, list[Endpoint]] = {}
    for pod in view.pods_with(ref.namespace, selector_of(service)):
        endpoint = endpoint_of(pod, view[pod], service)
        if endpoint is not None:
            by_ports.setdefault(ports_of(service, view[pod]), []).append(endpoint)
    return by_ports


def endpoint_of(ref: Ref, pod: JsonObject, service: JsonObject) -> Endpoint | None:
    """The pod as the Service has it; None if it cannot be reached."""
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    address = str(status.get("podIP") or "")
    if not address or has_ended(pod):
        return None
    serving, terminating = is_ready(pod), is_deleting(pod)
    eager = bool(mapping(service, "spec").get("publishNotReadyAddresses"))
    named = spec.get("subdomain") == service["metadata"]["name"] and is_headless(service)
    return Endpoint(
        ref=ref,
        uid=uid_of(pod),
        address=address,
        node=str(spec.get("nodeName") or ""),
        ready=eager or (serving and not terminating),
        serving=serving,
        terminating=terminating,
        hostname=str(spec.get("hostname") or "") if named else "",
    )


def ports_of(service: JsonObject, pod: JsonObject) -> Ports:
    """The ports of the Service as the pod listens on them."""
    ports: list[tuple[str, int, str, str]] = []
    for port in listing(service, "spec", "ports"):
        target = port.get("targetPort") or port.get("port")
        protocol = str(port.get("protocol") or "TCP")
        number = target if isinstance(target, int) else _named_port(pod, str(target), protocol)
        if number is not None:
            app = str(port.get("appProtocol") or "")
            ports.append((str(port.get("name") or ""), number, protocol, app))
    return tuple(ports)


def _named_port(pod: JsonObject, name: str, protocol: str) -> int | None:
    for container in listing(pod, "spec", "containers"):
        for port in listing(container, "ports"):
            if port.get("name") == name and (port.get("protocol") or "TCP") == protocol:
                number = port.get("containerPort")
                return number if isinstance(number, int) else None
    return None


def port_entries(ports: Ports, *, bare: bool) -> list[JsonObject]:
    """The ports as objects have them; `bare` leaves an empty name out, as Endpoints do."""
    entries: list[JsonObject] = []
    for name, number, protocol, app in ports:
        entry = {"name": name, "port": number, "protocol": protocol}
        if bare and not name:
            del entry["name"]
        entries.append({**entry, "appProtocol": app} if app else entry)
    return entries
