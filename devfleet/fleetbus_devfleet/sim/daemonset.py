"""DaemonSets: a pod on every node that suits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import mapping
from fleetbus_devfleet.sim.children import ENDED, is_ready, new_pod, phase_of, ready_in
from fleetbus_devfleet.sim.nodes import suits
from fleetbus_devfleet.sim.owners import claim, labels_of, managers_concerned
from fleetbus_devfleet.sim.rollout import share, template_hash, with_label, without_hash
from fleetbus_devfleet.sim.view import Ref, is_deleting
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
APPS = "apps"
REVISION_LABEL = "controller-revision-hash"


@dataclass(frozen=True, slots=True)
class Spread:
    """A DaemonSet's pods on the nodes.

    Attributes:
        nodes: The names of the nodes that shall have one.
        pods: Its pods there, by node.
        misplaced: Its pods elsewhere, and those too many.
    """

    nodes: list[str]
    pods: dict[str, Ref]
    misplaced: list[Ref]


class DaemonSetController:
    """Keeps the pods of DaemonSets."""

    name = "daemonset"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """DaemonSets by themselves, by their pods, and by every node."""
        if (ref.group, ref.resource) == (APPS, "daemonsets"):
            return [ref]
        if (ref.group, ref.resource) == ("", "nodes"):
            return self._view.of_type(APPS, "daemonsets")
        if (ref.group, ref.resource) == ("", "pods"):
            return [
                *managers_concerned(self._view, change.new, APPS, "daemonsets"),
                *managers_concerned(self._view, change.old, APPS, "daemonsets"),
            ]
        return []

    def reconcile(self, ref: Ref) -> None:
        """Create what is missing, delete what is too much or outdated, then count."""
        claim(self._world, ref, "", "pods")
        if not is_deleting(self._view[ref]):
            spread = self._spread(ref)
            self._fit(ref, spread)
            self._update(ref, spread)
        self._write_status(ref)

    def _spread(self, ref: Ref) -> Spread:
        daemon_set = self._view[ref]
        template = mapping(daemon_set, "spec", "template", "spec")
        nodes = sorted(
            node.name
            for node in self._view.of_type("", "nodes")
            if suits(self._view[node], template) and not is_deleting(self._view[node])
        )
        pods: dict[str, Ref] = {}
        misplaced: list[Ref] = []
        for pod in self._view.controlled(daemon_set["metadata"]["uid"], "", "pods"):
            node = mapping(self._view[pod], "spec").get("nodeName")
            if node in nodes and node not in pods:
                pods[node] = pod
            else:
                misplaced.append(pod)
        return Spread(nodes, pods, misplaced)

    # steps --------------------------------------------------------------------------------------

    def _fit(self, ref: Ref, spread: Spread) -> None:
        daemon_set = self._view[ref]
        ended = [p for p in spread.pods.values() if phase_of(self._view[p]) in ENDED]
        for pod in [*spread.misplaced, *ended]:
            self._delete(pod)
        revision = revision_of_template(daemon_set)
        template = with_label(daemon_set["spec"]["template"], REVISION_LABEL, revision)
        for node in spread.nodes:
            if node not in spread.pods:
                body = new_pod(daemon_set, template, generateName=f"{ref.name}-")
                body["spec"] = {**body["spec"], "nodeName": node}
                self._world.create("v1/pods", body)

    def _update(self, ref: Ref, spread: Spread) -> None:
        """Replace pods of an old revision, first those that serve nobody."""
        daemon_set = self._view[ref]
        strategy = mapping(daemon_set, "spec", "updateStrategy")
        if strategy.get("type") == "OnDelete":
            return
        wanted = revision_of_template(daemon_set)
        present = [pod for pod in spread.pods.values() if pod in self._view]
        outdated = [p for p in present if labels_of(self._view[p]).get(REVISION_LABEL) != wanted]
        for pod in outdated:
            if not is_ready(self._view[pod]):
                self._delete(pod)
        limit = mapping(strategy, "rollingUpdate").get("maxUnavailable", 1)
        allowed = max(1, share(limit, len(spread.nodes), round_up=True))
        serving = [p for p in present if p in self._view and self._serves(p)]
        spare = allowed - (len(spread.nodes) - len(serving))
        for pod in [p for p in outdated if p in serving][: max(0, spare)]:
            self._delete(pod)

    def _serves(self, pod: Ref) -> bool:
        return is_ready(self._view[pod]) and not is_deleting(self._view[pod])

    def _delete(self, pod: Ref) -> None:
        obj = self._view.get(pod)
        if obj is not None and not is_deleting(obj):
            self._world.delete(pod, policy="Background")

    # the status ---------------------------------------------------------------------------------

    def _write_status(self, ref: Ref) -> None:
        daemon_set = self._view[ref]
        spread = self._spread(ref)
        pods = [self._view[pod] for pod in spread.pods.values()]
        seconds = daemon_set["spec"].get("minReadySeconds", 0)
        waits = [ready_in(pod, seconds, self._world.seconds_since) for pod in pods]
        desired, available = len(spread.nodes), waits.count(0)
        wanted = revision_of_template(daemon_set)
        numbers = {
            "updatedNumberScheduled": sum(labels_of(p).get(REVISION_LABEL) == wanted for p in pods),
            "numberAvailable": available,
            "numberUnavailable": desired - available,
        }
        status = {
            "observedGeneration": daemon_set["metadata"].get("generation", 0),
            "desiredNumberScheduled": desired,
            "currentNumberScheduled": len(pods),
            "numberMisscheduled": len(spread.misplaced),
            "numberReady": sum(map(is_ready, pods)),
            **{name: number for name, number in numbers.items() if number},
        }
        self._world.write_status(ref, status)
        pending = [wait for wait in waits if wait]
        if pending:
            self._world.pace.alarm(Item(self.name, ref), min(pending))


def revision_of_template(daemon_set: JsonObject) -> str:
    """The value of the revision label of pods of the present template."""
    return template_hash(without_hash(daemon_set["spec"]["template"]))
