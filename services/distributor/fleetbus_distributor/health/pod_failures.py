"""Tells why the pods of a workload fail, from the pods and ReplicaSets themselves (pure).

As Argo CD and `kubectl get pods` do: the reason for which a container waits or has ended, or for
which the pod has no node. Nothing that a program in a container writes is repeated (rule D14).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fleetbus.kube.json_fields import condition, first_maps, mapping, number, string
from fleetbus.process.redact import cut
from fleetbus_distributor.health.fields import Tree, is_true

_MAX_REASON: Final = 60
_MAX_MESSAGE: Final = 250
_CONTAINERS: Final = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_REFUSED: Final = "FailedCreate"
_CRASHED: Final = "CrashLoopBackOff"
_GATED: Final = "ReadinessGatesNotReady"
_OF_IMAGES: Final = frozenset({"RegistryUnavailable", "SignatureValidationFailed"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a workload has too few healthy pods."""

    reason: str
    message: str
    """With the pod that it is about."""


def pod_failure(pods: Iterable[Tree]) -> Failure | None:
    """The failure of the first pod that has one; of the newest pods first.

    Args:
        pods: of one workload.
    """
    newest = sorted(pods, key=_age, reverse=True)
    return next((failure for pod in newest for failure in _failures(pod)), None)


def creation_failure(owner: Tree) -> Failure | None:
    """Why the pods of a ReplicaSet cannot be created: a quota, or a webhook that refuses them."""
    status = mapping(owner, "status")
    if not is_true(status, "ReplicaFailure"):
        return None
    failed = condition(status, "ReplicaFailure")
    reason = string(failed, "reason") or "ReplicaFailure"
    return _failure(
        f"{owner.get('kind', 'ReplicaSet')} {_name(owner)}", reason, failed.get("message")
    )


def refused_creation(events: Iterable[Tree], uid: str) -> Failure | None:
    """Why the pods of a StatefulSet, DaemonSet or Job cannot be created: only its Events say so.

    Args:
        events: Kubernetes Events of its namespace.
        uid: its UID.
    """
    about_it = [event for event in events if mapping(event, "involvedObject").get("uid") == uid]
    absent: Tree = {}
    last = max(about_it, key=_time_of, default=absent)
    if string(last, "reason") != _REFUSED:
        return None  # there is none, or something has happened since
    about = mapping(last, "involvedObject")
    named = f"{string(about.get('kind'))} {string(about.get('name'))}"
    return _failure(named, _REFUSED, last.get("message"))


def _time_of(event: Tree) -> str:
    series = mapping(event, "series")
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((string(time) for time in times if string(time)), "")


def _failures(pod: Tree) -> Iterator[Failure]:
    status = mapping(pod, "status")
    about = f"pod {_name(pod)}"
    if mapping(pod, "metadata").get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return
    if reason := string(status, "reason"):  # of the whole pod: Evicted, NodeLost, DeadlineExceeded
        yield _failure(about, reason, status.get("message"))
    for container in _containers(status):
        yield from _of_container(about, container)
    if status.get("phase") == "Failed":
        yield _failure(about, "Failed", status.get("message"))
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = string(scheduled, "reason") or "Unschedulable"
        yield _failure(about, reason, scheduled.get("message"))
    ready = condition(status, "Ready")
    if ready.get("reason") == _GATED:
        yield _failure(about, _GATED, ready.get("message"))


def _of_container(about: str, container: Tree) -> Iterator[Failure]:
    state, last = mapping(container, "state"), mapping(container, "lastState")
    waiting = mapping(state, "waiting")
    reason = string(waiting, "reason")
    if reason == _CRASHED:
        yield _failure(
            about, reason, _end_of(mapping(last, "terminated")) or waiting.get("message")
        )
    elif is_stuck(reason):
        yield _failure(about, reason, waiting.get("message"))
    ended = mapping(state, "terminated") or mapping(last, "terminated")
    if ended and number(ended, "exitCode") != 0 and container.get("ready") is not True:
        yield _failure(about, string(ended, "reason") or "Error", _exit_code(ended))


def is_stuck(reason: str) -> bool:
    """Whether a container waits after an error: CrashLoopBackOff, ErrImagePull, …ConfigError."""
    if reason in _OF_IMAGES:
        return True
    return reason.startswith(("Err", "InvalidImage")) or reason.endswith(("Error", "BackOff"))


def _end_of(terminated: Tree) -> str:
    """Describe how a container ended before it was restarted; "" if that is not known."""
    reason = string(terminated, "reason")
    return f"{reason}, {_exit_code(terminated)}" if reason else ""


def _exit_code(terminated: Tree) -> str:
    return f"exit code {number(terminated, 'exitCode')}"


def _failure(about: str, reason: str, message: object) -> Failure:
    short = cut(reason, _MAX_REASON)
    parts = [about, short, cut(" ".join(string(message).split()), _MAX_MESSAGE)]
    return Failure(short, ": ".join(filter(None, parts)))


def _containers(status: Tree) -> list[Tree]:
    return [container for field in _CONTAINERS for container in first_maps(status, field)]


def _name(obj: Tree) -> str:
    return string(obj, "metadata", "name")


def _age(obj: Tree) -> tuple[str, str]:
    return string(obj, "metadata", "creationTimestamp"), _name(obj)
