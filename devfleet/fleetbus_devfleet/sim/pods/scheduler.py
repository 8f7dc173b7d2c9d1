"""The scheduler: pods without a node get the suitable one with the fewest pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.brood import ENDED
from fleetbus_devfleet.sim.conditions import is_true
from fleetbus_devfleet.sim.index import Ref
from fleetbus_devfleet.sim.pods import pod_status
from fleetbus_devfleet.sim.pods.fit import takes, target_of
from fleetbus_devfleet.sim.view import is_deleting
from fleetbus_devfleet.sim.workloads.children import phase_of
from fleetbus_devfleet.sim.world import AT_ONCE, Item, Kinds, World

JsonObject = dict[str, Any]
OURS = "default-scheduler"


class Scheduler:
    """Places pods."""

    name = "scheduler"
    hears: Kinds = frozenset({("", "pods"), ("", "nodes")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        self._nodes: list[Ref] | None = None  # in order; None when they have changed

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods by themselves until they are placed, and by nodes that may take them."""
        if ref.resource == "pods":
            return [ref] if not _is_placed(change.new) else []
        if change.type != "MODIFIED":
            self._nodes = None
        if change.old is not None and _placing(change.old) == _placing(change.new):
            return []
        return self._view.on_node.get("")

    def reconcile(self, ref: Ref) -> None:
        """Give the pod a node, if it is time and there is one."""
        pod = self._view[ref]
        spec = pod["spec"]
        if _is_placed(pod) or is_deleting(pod) or phase_of(pod) in ENDED:
            return
        if spec.get("schedulingGates") or (spec.get("schedulerName") or OURS) != OURS:
            return
        stage, delay = Item(self.name, ref), self._world.timing.schedule
        if not self._world.is_due(stage, "schedule", delay):
            return
        node = self._choose(pod)
        if node is not None:
            self._world.patch(ref, {"spec": {"nodeName": node}})
            return
        why = self._refusal()
        status = pod_status.unschedulable(pod, why, self._world.now())
        if self._world.write_status(ref, status):
            self._world.warn(ref, "FailedScheduling", why)

    def _choose(self, pod: JsonObject) -> str | None:
        target = target_of(pod)
        candidates = [Ref("", "nodes", "", target)] if target else self._all_nodes()
        fitting = (ref for ref in candidates if self._takes(ref, pod["spec"]))
        best = min(fitting, key=lambda ref: self._view.on_node.count(ref.name), default=None)
        return best.name if best is not None else None

    def _takes(self, node: Ref, spec: JsonObject) -> bool:
        obj = self._view.get(node)
        return obj is not None and not is_deleting(obj) and takes(obj, spec)

    def _all_nodes(self) -> list[Ref]:
        if self._nodes is None:
            self._nodes = sorted(self._view.of_type("", "nodes"))
        return self._nodes

    def _refusal(self) -> str:
        total = len(self._all_nodes())
        why = "no nodes available to schedule pods"
        if total:
            unfit = "didn't match Pod's node affinity/selector, or had untolerated taint(s)"
            why = f"{total} node(s) {unfit}."
        return f"0/{total} nodes are available: {why}"


def _is_placed(pod: JsonObject) -> bool:
    return bool(mapping(pod, "spec").get("nodeName"))


def _placing(node: JsonObject) -> tuple[Any, ...]:
    """What of a node decides whether it takes pods."""
    meta = node["metadata"]
    return meta.get("labels"), node.get("spec"), is_true(node, "Ready"), is_deleting(node)
