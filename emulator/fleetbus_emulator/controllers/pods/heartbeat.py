"""Kubelets as their nodes show them: the status of a new node, and the Lease that is renewed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.pods.node_fit import is_dead
from fleetbus_emulator.controllers.pods.nodes import healthy_status
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Item, Kinds, World

JsonObject = dict[str, Any]
LEASES = "coordination.k8s.io"
NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40


class Heartbeats:
    """Makes nodes without a Ready condition Ready, and renews their Leases.

    A node whose Ready condition is False or Unknown is left alone: its kubelet is dead.
    """

    name = "heartbeat"
    watches: Kinds = frozenset({("", "nodes")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Nodes."""
        del change
        return [ref]

    def reconcile(self, ref: Ref) -> None:
        """Bring a new node to life, and renew its Lease when it is time."""
        node = self._world.view[ref]
        if is_deleting(node) or is_dead(node):
            return
        if not listing(node, "status", "conditions"):
            status = {**healthy_status(ref.name, self._world.now()), **mapping(node, "status")}
            self._world.write_status(ref, status)
        self._keep_lease(ref)

    def _keep_lease(self, ref: Ref) -> None:
        place = Ref(LEASES, "leases", NAMESPACE, ref.name)
        lease = self._world.view.get(place)
        period = self._world.timing.heartbeat.total_seconds()
        if lease is None:
            self._create_lease(ref)
        elif period:
            renewed = str(mapping(lease, "spec").get("renewTime") or "")
            if self._world.seconds_since(renewed) >= period:
                self._world.patch(place, {"spec": {"renewTime": self._moment()}})
        if period:
            self._world.stage_timers.alarm(Item(self.name, ref), period)

    def _create_lease(self, ref: Ref) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": ref.name}
        owner["uid"] = uid_of(self._world.view[ref])
        meta = {"name": ref.name, "namespace": NAMESPACE, "ownerReferences": [owner]}
        spec = {
            "holderIdentity": ref.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": self._moment(),
        }
        self._world.create(f"{LEASES}/v1/leases", {"metadata": meta, "spec": spec})

    def _moment(self) -> str:
        return self._world.clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
