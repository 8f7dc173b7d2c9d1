"""PodDisruptionBudgets: how many pods may be disturbed. Evictions do not ask them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.validation import selector_matches
from fleetbus_emulator.controllers.conditions import Condition, with_condition
from fleetbus_emulator.controllers.owners import labels_of
from fleetbus_emulator.controllers.reading import texts_at
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting
from fleetbus_emulator.controllers.runtime.world import LAST, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_active, is_ready
from fleetbus_emulator.controllers.workloads.rollout import share

JsonObject = dict[str, Any]
POLICY = "policy"
BUDGETS = "poddisruptionbudgets"
SCALED = ("deployments", "replicasets", "statefulsets", "replicationcontrollers")


class DisruptionController:
    """Keeps the status of PodDisruptionBudgets."""

    name = "disruption"
    watches: Kinds = frozenset(
        {(POLICY, BUDGETS), ("", "pods"), *(("apps", resource) for resource in SCALED)}
    )
    rank = LAST

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Budgets by themselves, by pods that they select, and by the size of workloads."""
        if ref.resource == BUDGETS:
            return [ref]
        budgets = self._view.of_type(POLICY, BUDGETS, ref.namespace)
        if not budgets:
            return []
        if ref.resource != "pods":
            return budgets if _size(change.old) != _size(change.new) else []
        if change.type == "MODIFIED" and _counts(change.old) == _counts(change.new):
            return []
        versions = [labels_of(obj) for obj in (change.new, change.old) if obj is not None]
        return [b for b in budgets if any(_selects(self._view[b], v) for v in versions)]

    def reconcile(self, ref: Ref) -> None:
        """Count the pods and say how many of them may go."""
        budget = self._view[ref]
        if is_deleting(budget):
            return
        fixed = texts_at(budget, "spec", "selector", "matchLabels")
        some = self._view.pods_with(ref.namespace, fixed)
        pods = [p for p in some if _selects(budget, labels_of(self._view[p]))]
        pods = [p for p in pods if not has_ended(self._view[p])]
        expected, desired = self._expected(budget, pods)
        healthy = sum(is_ready(self._view[p]) and is_active(self._view[p]) for p in pods)
        allowed = max(0, healthy - desired) if expected else 0
        self._world.write_status(ref, self._status(budget, allowed, healthy, desired, expected))

    def _expected(self, budget: JsonObject, pods: list[Ref]) -> tuple[int, int]:
        """The expected number of pods, and how many of them have to be healthy."""
        spec = mapping(budget, "spec")
        least, most_away = spec.get("minAvailable"), spec.get("maxUnavailable")
        if most_away is not None:
            total = self._wanted(pods)
            return total, max(0, total - share(most_away, total, round_up=True))
        if isinstance(least, str):
            total = self._wanted(pods)
            return total, share(least, total, round_up=True)
        return len(pods), int(least if least is not None else 1)

    def _wanted(self, pods: list[Ref]) -> int:
        """The sizes of the workloads that the pods belong to; pods of no workload do not count."""
        managers = (m for pod in pods for m in self._view.managers_of(self._view[pod]))
        sizes = {m["metadata"]["uid"]: _size(m) for m in managers if self._is_top_workload(m)}
        return sum(size or 0 for size in sizes.values())

    def _is_top_workload(self, manager: JsonObject) -> bool:
        top = self._view.controller_of(manager)
        return _size(manager) is not None and (top is None or _size(self._view[top]) is None)

    def _status(
        self, budget: JsonObject, allowed: int, healthy: int, desired: int, expected: int
    ) -> JsonObject:
        reason = "SufficientPods" if allowed else "InsufficientPods"
        allowed_condition = Condition("DisruptionAllowed", "True" if allowed else "False", reason)
        generation = budget["metadata"].get("generation", 0)
        present = [
            {name: value for name, value in condition.items() if name != "observedGeneration"}
            for condition in listing(budget, "status", "conditions")
        ]
        conditions = with_condition(present, allowed_condition, self._world.now())
        return {
            **mapping(budget, "status"),
            "observedGeneration": generation,
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "conditions": [{**c, "observedGeneration": generation} for c in conditions],
        }


def _selects(budget: JsonObject, labels: JsonObject) -> bool:
    """Whether the budget is about pods with these labels; an empty selector means all."""
    selector = mapping(budget, "spec").get("selector")
    return isinstance(selector, dict) and selector_matches(mapping(selector), labels)


def _size(workload: JsonObject | None) -> int | None:
    replicas = mapping(workload, "spec").get("replicas")
    return replicas if isinstance(replicas, int) else None


def _counts(pod: JsonObject | None) -> tuple[Any, ...]:
    if pod is None:
        return ()
    return labels_of(pod), is_ready(pod), has_ended(pod), is_deleting(pod)
