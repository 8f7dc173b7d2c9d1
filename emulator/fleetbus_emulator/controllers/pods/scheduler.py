"""The scheduler: pods without a node get the suitable one with the fewest pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.conditions import is_true
from fleetbus_emulator.controllers.pod_groups import ENDED
from fleetbus_emulator.controllers.pods import pod_status
from fleetbus_emulator.controllers.pods.node_fit import takes, target_of
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import phase_of

JsonObject = dict[str, Any]
OURS = "default-scheduler"
CONSTRAINTS = ("nodeSelector", "affinity", "tolerations")
REMEMBERED = 1000


class Scheduler:
    """Places pods."""

    name = "scheduler"
    watches: Kinds = frozenset({("", "pods"), ("", "nodes")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        # The nodes that take pods with some settings about nodes, in order; until a node changes.
        self._fitting: dict[bytes, list[Ref]] = {}

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods by themselves until they are placed, and by nodes that may take them."""
        if ref.resource == "pods":
            return [ref] if not _is_placed(change.new) else []
        if change.type == "MODIFIED" and _placing(change.old) == _placing(change.new):
            return []
        self._fitting.clear()
        return self._view.on_node.get("") if change.type != "DELETED" else []

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
        spec, target = pod["spec"], target_of(pod)
        if target:  # DaemonSets have a pod for each node, so nothing would be gained by a memory
            aim = Ref("", "nodes", "", target)
            return target if self._takes(aim, spec) else None
        settings = orjson.dumps([spec.get(name) for name in CONSTRAINTS])
        if settings not in self._fitting:
            if len(self._fitting) >= REMEMBERED:
                self._fitting.clear()
            nodes = sorted(self._view.of_type("", "nodes"))
            self._fitting[settings] = [node for node in nodes if self._takes(node, spec)]
        present = (node for node in self._fitting[settings] if node in self._view)
        best = min(present, key=lambda node: self._view.on_node.count(node.name), default=None)
        return best.name if best is not None else None

    def _takes(self, node: Ref, spec: JsonObject) -> bool:
        obj = self._view.get(node)
        return obj is not None and not is_deleting(obj) and takes(obj, spec)

    def _refusal(self) -> str:
        total = len(self._view.of_type("", "nodes"))
        why = "no nodes available to schedule pods"
        if total:
            unfit = "didn't match Pod's node affinity/selector, or had untolerated taint(s)"
            why = f"{total} node(s) {unfit}."
        return f"0/{total} nodes are available: {why}"


def _is_placed(pod: JsonObject) -> bool:
    return bool(mapping(pod, "spec").get("nodeName"))


def _placing(node: JsonObject | None) -> tuple[Any, ...]:
    """The part of a node that decides whether it takes pods."""
    if node is None:
        return ()
    meta = node["metadata"]
    return meta.get("labels"), node.get("spec"), is_true(node, "Ready"), is_deleting(node)
