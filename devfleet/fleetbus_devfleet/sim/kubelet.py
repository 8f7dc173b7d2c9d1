"""Pods: scheduler and kubelet in one.

A pod's stages are read off the pod itself; `World.is_due` says whether a stage has lasted long
enough. Each turn takes one step, whose event brings the next turn.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from fleetbus_devfleet.apiserver import Change
from fleetbus_devfleet.apiserver.tree import listing, mapping
from fleetbus_devfleet.sim import pod_status
from fleetbus_devfleet.sim.behavior import Behavior, Failure, behavior_of, knobs_of
from fleetbus_devfleet.sim.children import ENDED, is_ready, phase_of
from fleetbus_devfleet.sim.nodes import choose_node, host_ip
from fleetbus_devfleet.sim.view import Ref, is_deleting, uid_of
from fleetbus_devfleet.sim.world import Item, World

JsonObject = dict[str, Any]
POD_NETWORK = ipaddress.ip_network("10.244.0.0/16")
RESTARTS = 6  # then a crash loop stands still: an idle cluster must come to rest
SECOND = timedelta(seconds=1)


class Kubelet:
    """Brings pods to life and to their end."""

    name = "kubelet"

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view
        self._addresses = _addresses()

    def concerns(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods by themselves, by nodes that may take them, by wishes that their managers have."""
        if (ref.group, ref.resource) == ("", "pods"):
            return [ref]
        if (ref.group, ref.resource) == ("", "nodes"):
            return self._unplaced() if change.type != "DELETED" else []
        if change.old is not None and knobs_of(change.old) != knobs_of(change.new):
            return self._pods_below(change.new)
        return []

    def _unplaced(self) -> list[Ref]:
        pods = self._view.of_type("", "pods")
        return [pod for pod in pods if not self._view[pod]["spec"].get("nodeName")]

    def _pods_below(self, owner: JsonObject) -> Iterator[Ref]:
        todo, seen = [uid_of(owner)], {uid_of(owner)}
        while todo:
            for ref in self._view.owned.get(todo.pop()):
                uid = uid_of(self._view[ref])
                if (ref.group, ref.resource) == ("", "pods"):
                    yield ref
                elif uid not in seen:
                    seen.add(uid)
                    todo.append(uid)

    def reconcile(self, ref: Ref) -> None:
        """Take the pod's next step, if it is time."""
        pod = self._view[ref]
        if is_deleting(pod):
            self._stop(ref, pod)
        elif phase_of(pod) in ENDED:
            return
        elif not pod["spec"].get("nodeName"):
            self._schedule(ref, pod)
        else:
            self._live(ref, pod)

    def _is_due(self, ref: Ref, stage: str, delay: timedelta) -> bool:
        return self._world.is_due(Item(self.name, ref), stage, delay)

    # beginning and end --------------------------------------------------------------------------

    def _stop(self, ref: Ref, pod: JsonObject) -> None:
        grace: int = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        if not grace:
            return  # the API server removes it, or finalizers hold it
        delay = min(self._world.timing.stop, grace * SECOND)
        if self._is_due(ref, "stop", delay):
            self._world.delete(ref, grace=0)

    def _schedule(self, ref: Ref, pod: JsonObject) -> None:
        spec = pod["spec"]
        if spec.get("schedulingGates") or spec.get("schedulerName") != "default-scheduler":
            return
        if not self._is_due(ref, "schedule", self._world.timing.schedule):
            return
        node = choose_node(self._view, spec)
        if node is not None:
            self._world.patch(ref, {"spec": {"nodeName": node}})
            return
        total = len(self._view.of_type("", "nodes"))
        why = f"0/{total} nodes are available: none is ready and has the labels asked for."
        self._world.write_status(ref, pod_status.unschedulable(pod, why, self._world.now()))

    # life ---------------------------------------------------------------------------------------

    def _live(self, ref: Ref, pod: JsonObject) -> None:
        timing = self._world.timing
        behavior = behavior_of(pod, self._view.managers_of(pod), timing.run)
        if not listing(pod, "status", "containerStatuses"):
            status = pod_status.accepted(pod, self._place(pod), self._world.now())
        else:
            status = self._next_status(ref, pod, behavior)
        if status is not None:
            self._world.write_status(ref, status)

    def _next_status(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        if behavior.failure is Failure.EVICT:
            return self._evict(ref, pod)
        waiting = pod_status.waiting_reason(pod)
        if waiting == pod_status.CRASH_BACK_OFF:
            return self._restart(ref, pod, behavior)
        if waiting:
            return self._start(ref, pod, behavior)
        if pod_status.images_changed(pod):
            return pod_status.running(pod, self._place(pod), self._world.now(), ready=False)
        return self._run(ref, pod, behavior)

    def _evict(self, ref: Ref, pod: JsonObject) -> JsonObject | None:
        if not self._is_due(ref, "evict", self._world.timing.start):
            return None
        return pod_status.evicted(pod, self._place(pod), self._world.now())

    def _start(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        if not self._is_due(ref, "start", self._world.timing.start + behavior.delay):
            return None
        place, now = self._place(pod), self._world.now()
        if behavior.failure is Failure.IMAGE_PULL:
            return pod_status.pull_failed(pod, place, now)
        return pod_status.running(pod, place, now, ready=False)

    def _restart(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        restarts = pod_status.restarts_of(pod)
        if behavior.failure is not None and restarts >= RESTARTS:
            return None
        if not self._is_due(ref, f"restart {restarts}", self._world.timing.retry):
            return None
        return pod_status.running(pod, self._place(pod), self._world.now(), ready=False)

    def _run(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        timing, place, now = self._world.timing, self._place(pod), self._world.now()
        if behavior.failure in (Failure.EXIT, Failure.CRASH_LOOP):
            return self._fail(ref, pod, behavior)
        wanted = not behavior.never_ready
        if is_ready(pod) != wanted:
            delay = timing.ready if wanted else timedelta(0)
            due = self._is_due(ref, "ready" if wanted else "not ready", delay)
            return pod_status.running(pod, place, now, ready=wanted) if due else None
        if behavior.run is None or not self._is_due(ref, "run", behavior.run):
            return None
        return pod_status.ended(pod, place, now, exit_code=0)

    def _fail(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        timing, place, now = self._world.timing, self._place(pod), self._world.now()
        delay = timing.retry if behavior.run is None else behavior.run
        if not self._is_due(ref, f"fail {pod_status.restarts_of(pod)}", delay):
            return None
        if pod["spec"].get("restartPolicy") == "Never":
            return pod_status.ended(pod, place, now, exit_code=1)
        return pod_status.crashed(pod, place, now)

    # addresses ----------------------------------------------------------------------------------

    def _place(self, pod: JsonObject) -> pod_status.Place:
        host = host_ip(self._view, pod["spec"]["nodeName"])
        if pod["spec"].get("hostNetwork"):
            return pod_status.Place(host, host)
        present = mapping(pod, "status").get("podIP")
        return pod_status.Place(host, present or self._free_address())

    def _free_address(self) -> str:
        for _ in range(POD_NETWORK.num_addresses):
            address = next(self._addresses)
            if not self._view.with_ip.count(address):
                return address
        raise RuntimeError(f"no address of {POD_NETWORK} is free")


def _addresses() -> Iterator[str]:
    while True:
        for address in POD_NETWORK.hosts():
            yield str(address)
