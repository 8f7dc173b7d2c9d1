"""The status of a pod at each step of its life: pure computation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import Condition, truth, with_conditions

JsonObject = dict[str, Any]
CREATING = "ContainerCreating"
PULL_BACK_OFF = "ImagePullBackOff"
CRASH_BACK_OFF = "CrashLoopBackOff"
EVICTED = "Evicted"


@dataclass(frozen=True, slots=True)
class Place:
    """The node that a pod runs on.

    Attributes:
        host_ip: The address of its node.
        pod_ip: Its own address.
    """

    host_ip: str
    pod_ip: str


def container_status(pod: JsonObject, name: str) -> JsonObject:
    """The present status of a container; an empty object if it has none yet."""
    for status in listing(pod, "status", "containerStatuses"):
        if status.get("name") == name:
            return mapping(status)
    return {}


def waiting_reason(pod: JsonObject) -> str:
    """The waiting reason of the first container that waits; empty if none does."""
    for status in listing(pod, "status", "containerStatuses"):
        reason = mapping(status, "state", "waiting").get("reason")
        if reason:
            return str(reason)
    return ""


def waiting_message(status: JsonObject) -> str:
    """The waiting message of the first container that has one."""
    waiting = [mapping(c, "state", "waiting") for c in listing(status, "containerStatuses")]
    return next((str(w.get("message") or w["reason"]) for w in waiting if w.get("reason")), "")


def is_running(pod: JsonObject) -> bool:
    """Whether every container runs."""
    statuses = listing(pod, "status", "containerStatuses")
    return bool(statuses) and all("running" in mapping(s, "state") for s in statuses)


def restarts_of(pod: JsonObject) -> int:
    """The number of restarts of the pod's containers."""
    statuses = listing(pod, "status", "containerStatuses")
    return max((status.get("restartCount", 0) for status in statuses), default=0)


def images_changed(pod: JsonObject) -> bool:
    """Whether a container runs another image than the pod now asks for."""
    images = [container.get("image") or "" for container in listing(pod, "spec", "containers")]
    return images != [status.get("image") for status in listing(pod, "status", "containerStatuses")]


# the steps --------------------------------------------------------------------------------------


def unschedulable(pod: JsonObject, why: str, now: str) -> JsonObject:
    """No node will have it."""
    conditions = [Condition("PodScheduled", "False", "Unschedulable", why)]
    return {**mapping(pod, "status"), "conditions": with_conditions(pod, conditions, now)}


def accepted(pod: JsonObject, place: Place, now: str) -> JsonObject:
    """Its node has taken it and prepares its containers."""
    return {
        **_status(pod, "Pending", place, now),
        "startTime": now,
        "conditions": _conditions(pod, now, ready=False),
        **_statuses(pod, lambda c: _waiting(pod, c, CREATING)),
    }


def pull_failed(pod: JsonObject, place: Place, now: str) -> JsonObject:
    """Its image cannot be had."""
    return {
        **_status(pod, "Pending", place, now),
        "conditions": _conditions(pod, now, ready=False),
        **_statuses(pod, lambda c: _waiting(pod, c, PULL_BACK_OFF)),
    }


def running(pod: JsonObject, place: Place, now: str, *, ready: bool) -> JsonObject:
    """Its containers run."""
    return {
        **_status(pod, "Running", place, now),
        "podIP": place.pod_ip,
        "podIPs": [{"ip": place.pod_ip}],
        "conditions": _conditions(pod, now, ready=ready, initialized=True),
        **_statuses(pod, lambda c: _running(pod, c, now, ready=ready), now=now),
    }


def crashed(pod: JsonObject, place: Place, now: str, *, exit_code: int = 1) -> JsonObject:
    """Its containers ended and wait to be started again."""
    return {
        **_status(pod, "Running", place, now),
        "podIP": place.pod_ip,
        "podIPs": [{"ip": place.pod_ip}],
        "conditions": _conditions(pod, now, ready=False, initialized=True),
        **_statuses(pod, lambda c: _crashed(pod, c, now, exit_code), now=now),
    }


def ended(pod: JsonObject, place: Place, now: str, *, exit_code: int) -> JsonObject:
    """Its containers ended and are not started again."""
    phase = "Failed" if exit_code else "Succeeded"
    reason = "PodFailed" if exit_code else "PodCompleted"
    return {
        **_status(pod, phase, place, now),
        "conditions": _conditions(pod, now, ready=False, initialized=True, reason=reason),
        **_statuses(pod, lambda c: _ended(pod, c, now, exit_code), now=now),
    }


def evicted(pod: JsonObject, place: Place, now: str) -> JsonObject:
    """Its node has thrown it out."""
    return {
        **_status(pod, "Failed", place, now),
        "reason": EVICTED,
        "message": "The node was low on resource: memory. ",
        "conditions": _conditions(pod, now, ready=False, initialized=True, reason="PodFailed"),
        **_statuses(pod, lambda c: _ended(pod, c, now, 137), now=now),
    }


# their parts ------------------------------------------------------------------------------------


def _status(pod: JsonObject, phase: str, place: Place, now: str) -> JsonObject:
    present = mapping(pod, "status")
    fields = {
        "phase": phase,
        "hostIP": place.host_ip,
        "hostIPs": [{"ip": place.host_ip}],
        "startTime": present.get("startTime") or now,
    }
    return {**present, **fields}


def _conditions(
    pod: JsonObject, now: str, *, ready: bool, initialized: bool = False, reason: str = ""
) -> list[JsonObject]:
    names = [c["name"] for c in listing(pod, "spec", "containers")]
    why, message = reason, ""
    if not ready and not reason:
        why = "ContainersNotReady"
        message = f"containers with unready status: [{' '.join(names)}]"
    initialized = initialized or not listing(pod, "spec", "initContainers")
    uninitialized = "" if initialized else "ContainersNotInitialized"
    conditions = [
        Condition("PodReadyToStartContainers", truth(initialized)),
        Condition("Initialized", truth(initialized), uninitialized),
        Condition("Ready", truth(ready), why, message),
        Condition("ContainersReady", truth(ready), why, message),
        Condition("PodScheduled", "True"),
    ]
    return with_conditions(pod, conditions, now)


def _statuses(
    pod: JsonObject, show: Callable[[JsonObject], JsonObject], *, now: str = ""
) -> JsonObject:
    """The container statuses; init containers have no mishaps: they are done once `now` is set."""
    statuses = {"containerStatuses": [show(c) for c in listing(pod, "spec", "containers")]}
    first = listing(pod, "spec", "initContainers")
    if first:
        present = {s.get("name"): s for s in listing(pod, "status", "initContainerStatuses")}
        statuses["initContainerStatuses"] = [
            _initialized(pod, c, present.get(c["name"], {}), now) for c in first
        ]
    return statuses


def _initialized(pod: JsonObject, container: JsonObject, old: JsonObject, now: str) -> JsonObject:
    if not now:
        return _waiting(pod, container, "PodInitializing")
    if "terminated" in mapping(old, "state"):
        return old
    return {**_ended(pod, container, now, 0), "ready": True}


def _container(pod: JsonObject, container: JsonObject, **more: Any) -> JsonObject:
    old = container_status(pod, container["name"])
    return {
        "name": container["name"],
        "image": container.get("image") or "",
        "restartCount": old.get("restartCount", 0),
        "lastState": mapping(old, "lastState"),
        "imageID": "",
        "ready": False,
        "started": False,
        **more,
    }


def _waiting(pod: JsonObject, container: JsonObject, reason: str) -> JsonObject:
    waiting = {"reason": reason}
    if reason == PULL_BACK_OFF:
        waiting["message"] = f'Back-off pulling image "{container.get("image", "")}"'
    return _container(pod, container, state={"waiting": waiting})


def _running(pod: JsonObject, container: JsonObject, now: str, *, ready: bool) -> JsonObject:
    old = container_status(pod, container["name"])
    state = mapping(old, "state")
    restarts = old.get("restartCount", 0)
    last = mapping(old, "lastState")
    if "running" in state and old.get("image") != container.get("image"):
        restarts += 1  # a pod's image may be changed while it runs
        last = {"terminated": _termination(pod, container, now, 0)}
        state = {}
    if "running" not in state:
        state = {"running": {"startedAt": now}}
    return _container(
        pod,
        container,
        restartCount=restarts,
        lastState=last,
        imageID=_image_id(container),
        containerID=_container_id(pod, container, restarts),
        ready=ready,
        started=True,
        state=state,
    )


def _crashed(pod: JsonObject, container: JsonObject, now: str, exit_code: int) -> JsonObject:
    restarts = container_status(pod, container["name"]).get("restartCount", 0)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    place = f"{name}_{pod['metadata']['namespace']}({uid})"
    message = f"back-off restarting failed container={container['name']} pod={place}"
    return _container(
        pod,
        container,
        restartCount=restarts + 1,
        lastState={"terminated": _termination(pod, container, now, exit_code)},
        imageID=_image_id(container),
        containerID=_container_id(pod, container, restarts),
        state={"waiting": {"reason": CRASH_BACK_OFF, "message": message}},
    )


def _ended(pod: JsonObject, container: JsonObject, now: str, exit_code: int) -> JsonObject:
    restarts = container_status(pod, container["name"]).get("restartCount", 0)
    return _container(
        pod,
        container,
        imageID=_image_id(container),
        containerID=_container_id(pod, container, restarts),
        state={"terminated": _termination(pod, container, now, exit_code)},
    )


def _termination(pod: JsonObject, container: JsonObject, now: str, exit_code: int) -> JsonObject:
    old = container_status(pod, container["name"])
    return {
        "exitCode": exit_code,
        "reason": "Error" if exit_code else "Completed",
        "startedAt": mapping(old, "state", "running").get("startedAt", now),
        "finishedAt": now,
        "containerID": _container_id(pod, container, old.get("restartCount", 0)),
    }


def _image_id(container: JsonObject) -> str:
    image = str(container.get("image", ""))
    repository = image.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    return f"{repository}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def _container_id(pod: JsonObject, container: JsonObject, restarts: int) -> str:
    text = f"{pod['metadata']['uid']}/{container['name']}/{restarts}"
    return f"containerd://{hashlib.sha256(text.encode()).hexdigest()}"
