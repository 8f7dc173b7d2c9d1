"""Kubelets: pods that have a node come to life there, misbehave on request, end and are stopped.

A pod's stages are read off the pod itself; `World.is_due` says whether a stage has lasted long
enough. Each turn takes one step, whose event brings the next turn.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.write.delete import LONGEST_GRACE
from fleetbus_emulator.controllers.pods import pod_status
from fleetbus_emulator.controllers.pods.behavior import (
    Behavior,
    Failure,
    Images,
    behavior_of,
    settings_of,
)
from fleetbus_emulator.controllers.pods.node_fit import is_dead
from fleetbus_emulator.controllers.pods.nodes import host_ip
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import controller_uid, is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.new_pods import has_ended, is_ready

JsonObject = dict[str, Any]
POD_NETWORK = ipaddress.ip_network("10.244.0.0/16")
RESTARTS = 6  # then a crash loop stops: an idle cluster must settle
SECOND = timedelta(seconds=1)


class Kubelet:
    """Starts and stops pods on all healthy nodes.

    Args:
        world: The cluster.
        images: What pods are asked to do by their images.
    """

    name = "kubelet"
    watches: Kinds = frozenset()
    rank = AT_ONCE

    def __init__(self, world: World, images: Images) -> None:
        self._world = world
        self._view = world.view
        self._images = images
        self._salt = f"{world.random.getrandbits(64):x}"
        self._addresses = _addresses()
        self._evicted: Counter[str] = Counter()  # by the uid of their manager

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods by themselves, by what their managers setting, by nodes that fall ill or recover."""
        if (ref.group, ref.resource) == ("", "pods"):
            return [ref]
        if change.type == "DELETED":
            self._evicted.pop(uid_of(change.new), None)
            return []
        if change.old is None:
            return []
        if (ref.group, ref.resource) == ("", "nodes"):
            changed = is_dead(change.old) != is_dead(change.new)
            return self._view.on_node.get(ref.name) if changed else []
        if settings_of(change.old) != settings_of(change.new):
            return self._pods_below(change.new)
        return []

    def _pods_below(self, owner: JsonObject) -> Iterator[Ref]:
        todo, visited = [uid_of(owner)], {uid_of(owner)}
        while todo:
            for ref in self._view.owned.get(todo.pop()):
                uid = uid_of(self._view[ref])
                if (ref.group, ref.resource) == ("", "pods"):
                    yield ref
                elif uid not in visited:
                    visited.add(uid)
                    todo.append(uid)

    def reconcile(self, ref: Ref) -> None:
        """Take the pod's next step, if it is time."""
        pod = self._view[ref]
        name = pod["spec"].get("nodeName")
        if not name or is_dead(self._view.get(Ref("", "nodes", "", name))):
            return
        if is_deleting(pod):
            self._stop(ref, pod)
        elif not has_ended(pod):
            self._live(ref, pod)

    def _is_due(self, ref: Ref, stage: str, delay: timedelta) -> bool:
        return self._world.is_due(Item(self.name, ref), stage, delay)

    def _stop(self, ref: Ref, pod: JsonObject) -> None:
        grace: int = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        if not grace:
            return  # the API server removes it, or finalizers hold it
        delay = min(self._world.timing.stop, min(grace, LONGEST_GRACE) * SECOND)
        if self._is_due(ref, "stop", delay):
            self._world.delete(ref, grace=0)

    # life ---------------------------------------------------------------------------------------

    def _live(self, ref: Ref, pod: JsonObject) -> None:
        managers = self._view.managers_of(pod)
        run = self._world.timing.run
        behavior = behavior_of(pod, managers, self._images, run, self._salt)
        if not listing(pod, "status", "containerStatuses"):
            status = pod_status.accepted(pod, self._place(pod), self._world.now())
        else:
            status = self._next_status(ref, pod, behavior)
        if status is not None and self._world.write_status(ref, status):
            self._tell(ref)

    def _tell(self, ref: Ref) -> None:
        """Warn of what `kubectl describe` would show a person who wonders."""
        pod = self._view.get(ref)
        waiting = pod_status.waiting_reason(pod) if pod is not None else ""
        status = mapping(pod, "status")
        if waiting == pod_status.PULL_BACK_OFF:
            self._world.warn(ref, "Failed", pod_status.waiting_message(status))
        elif waiting == pod_status.CRASH_BACK_OFF:
            self._world.warn(ref, "BackOff", pod_status.waiting_message(status))
        elif status.get("reason") == pod_status.EVICTED:
            self._world.warn(ref, pod_status.EVICTED, str(status.get("message")))

    def _next_status(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        failure = behavior.failure if self._fails(pod, behavior) else None
        if failure is Failure.EVICT and self._had_its_time(pod, behavior):
            return self._evict(ref, pod, behavior)
        waiting = pod_status.waiting_reason(pod)
        if waiting == pod_status.CRASH_BACK_OFF:
            return self._restart(ref, pod, behavior)
        if waiting:
            return self._start(ref, pod, behavior, failure)
        if pod_status.images_changed(pod):
            return pod_status.running(pod, self._place(pod), self._world.now(), ready=False)
        if failure in (Failure.EXIT, Failure.CRASH_LOOP) and self._had_its_time(pod, behavior):
            return self._fail(ref, pod, behavior)
        return self._run(ref, pod, behavior)

    def _start(
        self, ref: Ref, pod: JsonObject, behavior: Behavior, failure: Failure | None
    ) -> JsonObject | None:
        if not self._is_due(ref, "start", self._world.timing.start + behavior.delay):
            return None
        place, now = self._place(pod), self._world.now()
        if failure is Failure.IMAGE_PULL:
            return pod_status.pull_failed(pod, place, now)
        return pod_status.running(pod, place, now, ready=False)

    def _restart(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        restarts = pod_status.restarts_of(pod)
        endless = behavior.failure is not None and behavior.fail_times is None
        if restarts >= RESTARTS and (endless or behavior.run is not None):
            return None
        if not self._is_due(ref, f"restart {restarts}", self._world.timing.retry):
            return None
        return pod_status.running(pod, self._place(pod), self._world.now(), ready=False)

    def _run(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        timing, place, now = self._world.timing, self._place(pod), self._world.now()
        should_be_ready = not behavior.never_ready
        if is_ready(pod) != should_be_ready:
            delay = timing.ready + behavior.ready_delay if should_be_ready else timedelta(0)
            due = self._is_due(ref, "ready" if should_be_ready else "not ready", delay)
            return pod_status.running(pod, place, now, ready=should_be_ready) if due else None
        stage = f"run {pod_status.restarts_of(pod)}"
        if behavior.run is None or not self._is_due(ref, stage, behavior.run):
            return None
        if pod["spec"].get("restartPolicy") == "Always":
            return pod_status.crashed(pod, place, now, exit_code=0)
        return pod_status.ended(pod, place, now, exit_code=0)

    # misfortune ---------------------------------------------------------------------------------

    def _fails(self, pod: JsonObject, behavior: Behavior) -> bool:
        """Whether there are failures left for the pod."""
        limit = behavior.fail_times
        if behavior.failure is Failure.EVICT and limit is None:
            limit = RESTARTS  # its manager replaces it: somewhere that must end
        return behavior.failure is not None and (limit is None or self._failed(pod) < limit)

    def _failed(self, pod: JsonObject) -> int:
        """The failures of the pod, or of all its siblings where a failed pod is replaced."""
        restarts = pod_status.restarts_of(pod)
        manager = self._view.controller_of(pod)
        if manager is not None and manager.resource == "jobs":
            counted: int = mapping(self._view[manager], "status").get("failed", 0)
            groups = self._view.pods_of(uid_of(self._view[manager]))
            return restarts + counted + groups.count(lambda s: s.tracked and s.phase == "Failed")
        return restarts + self._evicted[controller_uid(pod) or ""]

    def _had_its_time(self, pod: JsonObject, behavior: Behavior) -> bool:
        """Whether a pod that fails only after a while is ready, apart from that while."""
        if behavior.fail_after is None:
            return True
        return pod_status.is_running(pod) and (is_ready(pod) or behavior.never_ready)

    def _evict(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        start = self._world.timing.start
        if not self._is_due(ref, "evict", behavior.fail_after or start):
            return None
        manager = controller_uid(pod)
        if manager is not None:
            self._evicted[manager] += 1
        return pod_status.evicted(pod, self._place(pod), self._world.now())

    def _fail(self, ref: Ref, pod: JsonObject, behavior: Behavior) -> JsonObject | None:
        timing, place, now = self._world.timing, self._place(pod), self._world.now()
        delay = behavior.fail_after
        if delay is None:
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
