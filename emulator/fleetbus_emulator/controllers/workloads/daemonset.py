"""DaemonSets: a pod on every node that suits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.owners import labels_of, managers_concerned, selects_own
from fleetbus_emulator.controllers.pods.node_fit import (
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    REQUIRED,
    UNREACHABLE,
    UNSCHEDULABLE,
    selects_node,
    target_of,
    tolerates_all,
)
from fleetbus_emulator.controllers.pods.node_lifecycle import PRESSURES
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_ready, new_pod, ready_in
from fleetbus_emulator.controllers.workloads.revisions import REVISION_LABEL, Revisions, hash_of
from fleetbus_emulator.controllers.workloads.rollout import share, with_label

JsonObject = dict[str, Any]
APPS = "apps"
BURST = 50  # pods created in one turn; their events bring the next
ALWAYS_TOLERATED = (
    (NOT_READY, NO_EXECUTE),
    (UNREACHABLE, NO_EXECUTE),
    *((key, NO_SCHEDULE) for key in (*PRESSURES.values(), UNSCHEDULABLE)),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A DaemonSet's pods on the nodes.

    Attributes:
        revision: The hash of its present template.
        pods: For each node that shall have one, its pods there that were not deleted, oldest first.
        bound: For each node on which pods may stay, though none would be made.
        misplaced: Its pods elsewhere.
    """

    revision: str
    pods: dict[str, list[Ref]] = field(default_factory=dict[str, list[Ref]])
    bound: dict[str, list[Ref]] = field(default_factory=dict[str, list[Ref]])
    misplaced: list[Ref] = field(default_factory=list[Ref])


class DaemonSetController:
    """Keeps the pods of DaemonSets."""

    name = "daemonset"
    watches: Kinds = frozenset({(APPS, "daemonsets"), ("", "nodes"), ("", "pods")})
    rank = GATHERED

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        self._revisions = Revisions(world)

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """DaemonSets by themselves, by their pods, and by every node."""
        if ref.resource == "daemonsets":
            return [ref]
        if ref.resource == "nodes":
            return self._view.of_type(APPS, "daemonsets")
        return managers_concerned(self._view, change, APPS, "daemonsets")

    def reconcile(self, ref: Ref) -> None:
        """Create what is missing, delete what is too much or outdated, then count."""
        if is_deleting(self._view[ref]) or not selects_own(self._view[ref]):
            return
        revision = hash_of(self._revisions.present(ref))
        self._fit(ref, self._spread(ref, revision))
        self._update(ref, self._spread(ref, revision))
        spread = self._spread(ref, revision)
        self._write_status(ref, spread)
        used = {labels_of(self._view[pod]).get(REVISION_LABEL) for pod in self._pods(ref)}
        self._revisions.trim(ref, {f"{ref.name}-{digest}" for digest in {revision, *used}})

    def _pods(self, ref: Ref) -> list[Ref]:
        return self._view.pods_of(uid_of(self._view[ref])).refs(lambda _: True)

    def _spread(self, ref: Ref, revision: str) -> Spread:
        spread = Spread(revision)
        probe = _tolerant(mapping(self._view[ref], "spec", "template", "spec"))
        for node in sorted(self._view.of_type("", "nodes")):
            obj = self._view[node]
            if is_deleting(obj) or not selects_node(probe, obj):
                continue
            if tolerates_all(probe, obj, (NO_SCHEDULE, NO_EXECUTE)):
                spread.pods[node.name] = []
            elif tolerates_all(probe, obj, (NO_EXECUTE,)):
                spread.bound[node.name] = []
        for pod in self._pods(ref):
            target = target_of(self._view[pod])
            if target not in spread.pods and target not in spread.bound:
                spread.misplaced.append(pod)
            elif not is_deleting(self._view[pod]):
                place = spread.pods if target in spread.pods else spread.bound
                place[target].append(pod)
        return spread

    # steps --------------------------------------------------------------------------------------

    def _fit(self, ref: Ref, spread: Spread) -> None:
        """A pod where there is none, of each revision at most one, none elsewhere."""
        for pod in spread.misplaced:
            self._delete(pod)
        room = BURST
        for node, pods in [*spread.pods.items(), *spread.bound.items()]:
            occupied: set[bool] = set()
            for pod in pods:
                updated = self._is_updated(pod, spread)
                if updated in occupied or has_ended(self._view[pod]):
                    self._delete(pod)
                else:
                    occupied.add(updated)
            if not occupied and node in spread.pods and room:
                self._create(ref, node, spread)
                room -= 1

    def _create(self, ref: Ref, node: str, spread: Spread) -> None:
        daemon_set = self._view[ref]
        # A node whose last pod is still on its way out gets the next one afterwards.
        if any(target_of(self._view[pod]) == node for pod in self._going(ref)):
            return
        template = with_label(daemon_set["spec"]["template"], REVISION_LABEL, spread.revision)
        body = new_pod(daemon_set, template, generateName=f"{ref.name}-")
        body["spec"] = _bound_to(_tolerant(body["spec"]), node)
        self._world.create("v1/pods", body)

    def _going(self, ref: Ref) -> list[Ref]:
        groups = self._view.pods_of(uid_of(self._view[ref]))
        return groups.refs(lambda state: state.deleting)

    def _update(self, ref: Ref, spread: Spread) -> None:
        """Replace pods of another revision: unavailable ones at once, others in turn."""
        daemon_set = self._view[ref]
        strategy = mapping(daemon_set, "spec", "updateStrategy")
        if strategy.get("type") == "OnDelete":
            return
        rolling = mapping(strategy, "rollingUpdate")
        total = len(spread.pods)
        surge = share(rolling.get("maxSurge", 0), total, round_up=True)
        if surge:
            self._surge(ref, spread, surge)
        else:
            allowed = share(rolling.get("maxUnavailable", 1), total, round_up=True)
            self._replace(ref, spread, max(1, allowed))

    def _replace(self, ref: Ref, spread: Spread, allowed: int) -> None:
        serving: list[Ref] = []
        unavailable = 0
        for pods in spread.pods.values():
            available = [pod for pod in pods if self._is_available(ref, pod)]
            outdated = [pod for pod in pods if not self._is_updated(pod, spread)]
            unavailable += not available
            serving += [pod for pod in outdated if pod in available]
            for pod in outdated:
                if pod not in available:
                    self._delete(pod)
        for pod in serving[: max(0, allowed - unavailable)]:
            self._delete(pod)

    def _surge(self, ref: Ref, spread: Spread, allowed: int) -> None:
        waiting: list[str] = []
        for node, pods in spread.pods.items():
            outdated = [pod for pod in pods if not self._is_updated(pod, spread)]
            updated = [pod for pod in pods if pod not in outdated]
            if not outdated:
                continue
            if not updated and not self._is_available(ref, outdated[0]):
                self._create(ref, node, spread)
            elif not updated:
                waiting.append(node)
            elif self._is_available(ref, updated[0]):
                self._delete(outdated[0])
            else:
                allowed -= 1
        for node in waiting[: max(0, allowed)]:
            self._create(ref, node, spread)

    def _is_updated(self, pod: Ref, spread: Spread) -> bool:
        return labels_of(self._view[pod]).get(REVISION_LABEL) == spread.revision

    def _is_available(self, ref: Ref, pod: Ref) -> bool:
        seconds = self._view[ref]["spec"].get("minReadySeconds", 0)
        return ready_in(self._view[pod], seconds, self._world.seconds_since) == 0

    def _delete(self, pod: Ref) -> None:
        obj = self._view.get(pod)
        if obj is not None and not is_deleting(obj):
            self._world.delete(pod, policy="Background")

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref, spread: Spread) -> None:
        daemon_set = self._view[ref]
        seconds = daemon_set["spec"].get("minReadySeconds", 0)
        posts = [[self._view[pod] for pod in pods] for pods in spread.pods.values()]
        waits = [[ready_in(p, seconds, self._world.seconds_since) for p in post] for post in posts]
        revision = spread.revision
        updated = [
            any(labels_of(p).get(REVISION_LABEL) == revision for p in post) for post in posts
        ]
        available = sum(0 in post for post in waits)
        numbers = {
            "updatedNumberScheduled": sum(updated),
            "numberAvailable": available,
            "numberUnavailable": len(posts) - available,
        }
        status = {
            "observedGeneration": daemon_set["metadata"].get("generation", 0),
            "desiredNumberScheduled": len(posts),
            "currentNumberScheduled": sum(map(bool, posts)),
            "numberMisscheduled": len(spread.misplaced) + sum(map(bool, spread.bound.values())),
            "numberReady": sum(any(map(is_ready, post)) for post in posts),
            **{name: number for name, number in numbers.items() if number},
        }
        self._world.write_status(ref, status)
        pending = [wait for post in waits for wait in post if wait]
        if pending:
            self._world.stage_timers.alarm(Item(self.name, ref), min(pending))


def _tolerant(spec: JsonObject) -> JsonObject:
    """The pod spec with the tolerations that every pod of a DaemonSet has."""
    present = listing(spec, "tolerations")
    tolerations = [
        {"key": key, "operator": "Exists", "effect": effect} for key, effect in ALWAYS_TOLERATED
    ]
    return {**spec, "tolerations": [*present, *(t for t in tolerations if t not in present)]}


def _bound_to(spec: JsonObject, node: str) -> JsonObject:
    """The pod spec for one node only."""
    affinity, nodes = mapping(spec, "affinity"), mapping(spec, "affinity", "nodeAffinity")
    required = mapping(nodes, REQUIRED)
    field_of_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [mapping(term) for term in listing(required, "nodeSelectorTerms")] or [{}]
    bound = [{**term, "matchFields": [field_of_name]} for term in terms]
    nodes = {**nodes, REQUIRED: {**required, "nodeSelectorTerms": bound}}
    return {**spec, "affinity": {**affinity, "nodeAffinity": nodes}}
