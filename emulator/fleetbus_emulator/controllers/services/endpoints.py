"""Endpoints: the addresses behind a Service, in one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.owners import labels_of
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import LAST, Kinds, World
from fleetbus_emulator.controllers.services.service import (
    HEADLESS,
    TRIGGER_TIME,
    Endpoint,
    endpoints_of,
    is_headless,
    port_entries,
    selector_of,
    services_concerned,
)

JsonObject = dict[str, Any]
CAPACITY = 1000
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
Subset = tuple[list[JsonObject], list[Endpoint]]  # its ports, its pods


class EndpointsController:
    """Keeps the Endpoints of Services that have a selector."""

    name = "endpoint"
    watches: Kinds = frozenset({("", "services"), ("", "endpoints"), ("", "pods")})
    rank = LAST

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Services by themselves and by pods that they select; leftovers of a deleted one."""
        if ref.resource == "pods":
            return services_concerned(self._view, change, ref)
        gone = change.type == "DELETED"
        if ref.resource == "services":
            left = ref._replace(resource="endpoints")
            return [ref] if not gone else [left] if left in self._view else []
        service = ref._replace(resource="services")
        return [service] if gone and service in self._view else []

    def reconcile(self, ref: Ref) -> None:
        """Write the addresses if they changed, or delete those of a deleted Service."""
        if ref.resource == "endpoints":
            if ref._replace(resource="services") not in self._view:
                self._world.delete(ref)
            return
        service = self._view[ref]
        if is_deleting(service) or not selector_of(service):
            return
        subsets = [
            (port_entries(ports, bare=True), endpoints)
            for ports, endpoints in endpoints_of(self._view, ref).items()
        ]
        self._write(ref, subsets)

    def _write(self, ref: Ref, subsets: list[Subset]) -> None:
        service, place = self._view[ref], ref._replace(resource="endpoints")
        present = self._view.get(place)
        total = sum(len(endpoints) for _, endpoints in subsets)
        body = subsets_of(subsets)
        labels = {**labels_of(service), **({HEADLESS: ""} if is_headless(service) else {})}
        annotations = {OVER_CAPACITY: "truncated"} if total > CAPACITY else {}
        if present is None:
            annotations[TRIGGER_TIME] = self._world.now()
            meta = {"name": ref.name, "namespace": ref.namespace}
            meta |= {"labels": labels, "annotations": annotations}
            self._world.create("v1/endpoints", {"metadata": meta, "subsets": body})
            return
        truncated = OVER_CAPACITY in mapping(present, "metadata", "annotations")
        current = listing(present, "subsets"), labels_of(present), truncated
        if current == (body, labels, bool(annotations)):
            return
        annotations = {OVER_CAPACITY: None, **annotations, TRIGGER_TIME: self._world.now()}
        stale = {name: None for name in labels_of(present) if name not in labels}
        meta = {"labels": {**stale, **labels}, "annotations": annotations}
        self._world.patch(place, {"metadata": meta, "subsets": body})


def subsets_of(subsets: list[Subset]) -> list[JsonObject]:
    """The subsets of an Endpoints object, cut where it would be too large."""
    objects: list[JsonObject] = []
    room = CAPACITY
    for ports, endpoints in subsets:
        some = sorted(endpoints, key=lambda e: (not e.ready, e.address))[:room]
        room -= len(some)
        ready = [_address(e) for e in some if e.ready]
        waiting = [_address(e) for e in some if not e.ready]
        parts = {"addresses": ready, "notReadyAddresses": waiting, "ports": ports}
        if some:
            objects.append({name: value for name, value in parts.items() if value})
    return objects


def _address(endpoint: Endpoint) -> JsonObject:
    address: JsonObject = {"ip": endpoint.address}
    if endpoint.hostname:
        address["hostname"] = endpoint.hostname
    if endpoint.node:
        address["nodeName"] = endpoint.node
    return {**address, "targetRef": endpoint.target()}
