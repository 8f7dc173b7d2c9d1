"""EndpointSlices: the addresses behind a Service, a hundred per object.

A pod stays in the slice that it is in, so that a change of one pod rewrites one slice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.owners import labels_of, managers_concerned, owner_reference
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
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
DISCOVERY = "discovery.k8s.io"
SLICES = f"{DISCOVERY}/v1/endpointslices"
CAPACITY = 100
SERVICE_LABEL = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OURS = "endpointslice-controller.k8s.io"
ZONE = "topology.kubernetes.io/zone"


class EndpointSliceController:
    """Keeps the EndpointSlices of Services that have a selector."""

    name = "endpointslice"
    watches: Kinds = frozenset({("", "services"), (DISCOVERY, "endpointslices"), ("", "pods")})
    rank = LAST

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Services by themselves, by their slices, and by pods that they select."""
        if ref.resource == "services":
            return [ref]
        if ref.resource == "pods":
            return services_concerned(self._view, change, ref)
        return managers_concerned(self._view, change, "", "services")

    def reconcile(self, ref: Ref) -> None:
        """Write the slices that changed. Those of a deleted Service are garbage collected."""
        service = self._view[ref]
        if is_deleting(service) or not selector_of(service):
            return
        desired = {
            _key(port_entries(ports, bare=False)): (port_entries(ports, bare=False), endpoints)
            for ports, endpoints in endpoints_of(self._view, ref).items()
        }
        present: dict[str, list[Ref]] = {}
        for place in self._slices(ref):
            present.setdefault(_key(listing(self._view[place], "ports")), []).append(place)
        for key, places in present.items():
            if key not in desired:
                self._drop(places)
        for key, (ports, endpoints) in desired.items():
            self._fill(ref, ports, endpoints, present.get(key, []))

    def _slices(self, ref: Ref) -> list[Ref]:
        uid = uid_of(self._view[ref])
        refs = self._view.controlled(uid, DISCOVERY, "endpointslices")
        managed = (r for r in refs if labels_of(self._view[r]).get(MANAGED_BY) == OURS)
        return [r for r in managed if not is_deleting(self._view[r])]

    def _drop(self, places: list[Ref]) -> None:
        for place in places:
            self._world.delete(place)

    def _fill(
        self, ref: Ref, ports: list[JsonObject], endpoints: list[Endpoint], places: list[Ref]
    ) -> None:
        """Bring the slices of one set of ports to hold these pods."""
        waiting = {e.uid: entry_of(e, self._zone_of(e.node)) for e in endpoints}
        contents: list[list[JsonObject]] = []
        for place in places:
            there = [_uid(entry) for entry in listing(self._view[place], "endpoints")]
            contents.append([waiting.pop(uid) for uid in there if uid in waiting])
        for content in contents:
            while waiting and len(content) < CAPACITY:
                content.append(waiting.pop(next(iter(waiting))))
        for place, content in zip(places, contents, strict=True):
            self._rewrite(ref, place, content)
        while waiting:
            batch = [waiting.pop(uid) for uid in list(waiting)[:CAPACITY]]
            self._create(ref, ports, batch)

    def _rewrite(self, ref: Ref, place: Ref, content: list[JsonObject]) -> None:
        present = self._view[place]
        labels = self._labels(ref)
        if not content:
            self._world.delete(place)
        elif content != listing(present, "endpoints") or labels != labels_of(present):
            stale = {name: None for name in labels_of(present) if name not in labels}
            annotations = {TRIGGER_TIME: self._world.now()}
            meta = {"labels": {**stale, **labels}, "annotations": annotations}
            self._world.patch(place, {"metadata": meta, "endpoints": content})

    def _create(self, ref: Ref, ports: list[JsonObject], content: list[JsonObject]) -> None:
        meta = {
            "generateName": f"{ref.name}-",
            "namespace": ref.namespace,
            "labels": self._labels(ref),
            "annotations": {TRIGGER_TIME: self._world.now()},
            "ownerReferences": [owner_reference(self._view[ref])],
        }
        body = {"metadata": meta, "addressType": "IPv4", "ports": ports, "endpoints": content}
        self._world.create(SLICES, body)

    def _labels(self, ref: Ref) -> JsonObject:
        return slice_labels(self._view[ref])

    def _zone_of(self, node: str) -> str:
        obj = self._view.get(Ref("", "nodes", "", node))
        return labels_of(obj).get(ZONE, "") if obj is not None else ""


def slice_labels(service: JsonObject) -> JsonObject:
    """The labels of a Service's slices."""
    own_labels = {MANAGED_BY: OURS, SERVICE_LABEL: service["metadata"]["name"]}
    labels = {**labels_of(service), **own_labels}
    return {**labels, HEADLESS: ""} if is_headless(service) else labels


def _key(ports: list[JsonObject]) -> str:
    return repr([sorted(port.items()) for port in ports])


def _uid(entry: JsonObject) -> str:
    return str(mapping(entry, "targetRef").get("uid") or "")


def entry_of(endpoint: Endpoint, zone: str) -> JsonObject:
    """The pod as a slice has it; its node may be in no zone that is known."""
    conditions = {
        "ready": endpoint.ready,
        "serving": endpoint.serving,
        "terminating": endpoint.terminating,
    }
    entry: JsonObject = {"addresses": [endpoint.address], "conditions": conditions}
    if endpoint.hostname:
        entry["hostname"] = endpoint.hostname
    if endpoint.node:
        entry["nodeName"] = endpoint.node
    if zone:
        entry["zone"] = zone
    return {**entry, "targetRef": endpoint.target()}
