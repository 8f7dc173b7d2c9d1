"""The node lifecycle: taints, eviction and garbage collection of pods on unhealthy nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import Condition, find_condition, with_condition
from fleetbus_emulator.controllers.pods.node_fit import (
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    UNREACHABLE,
    UNSCHEDULABLE,
    is_dead,
    toleration_of,
)
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_ready

JsonObject = dict[str, Any]
PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
}
ILLNESSES = {"False": NOT_READY, "Unknown": UNREACHABLE}
OURS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()})


class NodeLifecycle:
    """Taints nodes for their condition, and evicts pods from unhealthy or deleted ones."""

    name = "node"
    watches: Kinds = frozenset({("", "nodes"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        self._since: dict[Ref, dict[tuple[str, str], str]] = {}

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Nodes by themselves and by a pod that comes to one that is ill; pods by a lost node."""
        if ref.resource == "nodes":
            return self._view.on_node.get(ref.name) if change.type == "DELETED" else [ref]
        if change.old is not None and _node_of(change.old) == _node_of(change.new):
            return []
        node = Ref("", "nodes", "", _node_of(change.new))
        return [node] if is_dead(self._view.get(node)) else []

    def reconcile(self, ref: Ref) -> None:
        """Look after a node, or after a pod whose node went."""
        if ref.resource == "pods":
            node = Ref("", "nodes", "", _node_of(self._view[ref]))
            if node not in self._view:
                self._world.delete(ref, grace=0)
            return
        self._taint(ref)
        if is_dead(self._view[ref]):
            self._mark_pods(ref)
        self._evict_pods(ref)

    # taints -------------------------------------------------------------------------------------

    def _taint(self, ref: Ref) -> None:
        node = self._view[ref]
        present = listing(node, "spec", "taints")
        taints = _wanted_taints(node)
        remaining = [t for t in present if t.get("key") not in OURS or _key(t) in taints]
        missing = [key for key in taints if key not in map(_key, remaining)]
        added: list[JsonObject] = []
        for key, effect in missing:
            since = {"timeAdded": self._world.now()} if effect == NO_EXECUTE else {}
            added.append({"key": key, "effect": effect, **since})
        if [*remaining, *added] != present:
            self._world.patch(ref, {"spec": {"taints": [*remaining, *added] or None}})

    # pods ---------------------------------------------------------------------------------------

    def _mark_pods(self, ref: Ref) -> None:
        for pod in self._view.on_node.get(ref.name):
            obj = self._view[pod]
            if is_ready(obj):
                present = listing(obj, "status", "conditions")
                conditions = with_condition(present, Condition("Ready", "False"), self._world.now())
                self._world.write_status(pod, {**mapping(obj, "status"), "conditions": conditions})

    def _fatal_taints(self, ref: Ref) -> list[JsonObject]:
        """The taints that drive pods out, each with the time since when it does."""
        taints = listing(self._view[ref], "spec", "taints")
        fatal = {_key(taint): taint for taint in taints if taint.get("effect") == NO_EXECUTE}
        before = self._since.pop(ref, {})
        if not fatal:
            return []
        # Taints of people have no time; theirs counts from when they were first seen.
        since = {key: before.get(key) or self._world.now() for key in fatal}
        self._since[ref] = since
        return [{"timeAdded": since[key], **taint} for key, taint in fatal.items()]

    def _evict_pods(self, ref: Ref) -> None:
        fatal = self._fatal_taints(ref)
        if not fatal:
            return
        waits: list[float] = []
        for pod in self._view.on_node.get(ref.name):
            obj = self._view[pod]
            if is_deleting(obj) or has_ended(obj):
                continue
            remaining = [self._remaining(taint, obj["spec"]) for taint in fatal]
            shortest = min((r for r in remaining if r is not None), default=None)
            if shortest is not None and shortest <= 0:
                self._world.note(
                    pod, "TaintManagerEviction", f"Marking for deletion Pod {pod.name}"
                )
                self._world.delete(pod)
            elif shortest is not None:
                waits.append(shortest)
        if waits:
            self._world.stage_timers.alarm(Item(self.name, ref), min(waits))

    def _remaining(self, taint: JsonObject, spec: JsonObject) -> float | None:
        """Seconds until the taint drives the pod out; None if it never does."""
        toleration = toleration_of(taint, spec)
        if toleration is None:
            return 0
        seconds = toleration.get("tolerationSeconds")
        if seconds is None:
            return None
        return float(seconds) - self._world.seconds_since(str(taint["timeAdded"]))


def _node_of(pod: JsonObject) -> str:
    return str(mapping(pod, "spec").get("nodeName") or "")


def _key(taint: JsonObject) -> tuple[str, str]:
    return str(taint.get("key")), str(taint.get("effect"))


def _wanted_taints(node: JsonObject) -> list[tuple[str, str]]:
    """Key and effect of the taints that a node shall have for its condition."""
    keys: list[tuple[str, str]] = []
    if mapping(node, "spec").get("unschedulable"):
        keys.append((UNSCHEDULABLE, NO_SCHEDULE))
    illness = ILLNESSES.get(str(find_condition(node, "Ready").get("status")))
    if illness is not None:
        keys += [(illness, NO_SCHEDULE), (illness, NO_EXECUTE)]
    keys += [
        (key, NO_SCHEDULE)
        for kind, key in PRESSURES.items()
        if find_condition(node, kind).get("status") == "True"
    ]
    return keys
