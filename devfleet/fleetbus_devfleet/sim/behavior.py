"""What a pod is asked to do, by annotations or by the name of its image.

    sim.fleetbus.dev/never-ready: "true"      it runs, but never gets ready
    sim.fleetbus.dev/fail: "exit"             its containers end with exit code 1; also "true"
    sim.fleetbus.dev/fail: "crash-loop"       the same, and again and again
    sim.fleetbus.dev/fail: "image-pull"       its image cannot be pulled
    sim.fleetbus.dev/fail: "evict"            its node evicts it
    sim.fleetbus.dev/delay-seconds: "2.5"     it takes longer to start
    sim.fleetbus.dev/run-seconds: "10"        it ends by itself, well, after this time

An annotation may stand on the pod or on any object that manages it (ReplicaSet, Deployment, Job,
...); the nearest wins, and a change takes effect on pods that exist. Pods whose image is
`sim.fleetbus.dev/never-ready` or `sim.fleetbus.dev/<a failure>`, with any tag, behave so too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from fleetbus_devfleet.apiserver.tree import listing, mapping

JsonObject = dict[str, Any]
DOMAIN = "sim.fleetbus.dev/"
NEVER_READY = "never-ready"
LONGEST_SECONDS = 1e7


class Failure(StrEnum):
    """How a pod fails."""

    EXIT = "exit"
    CRASH_LOOP = "crash-loop"
    IMAGE_PULL = "image-pull"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Behavior:
    """What a pod is asked to do.

    Attributes:
        delay: Added to the time it takes to start.
        run: How long it works before it ends; None for a pod that serves for ever.
    """

    never_ready: bool = False
    failure: Failure | None = None
    delay: timedelta = timedelta(0)
    run: timedelta | None = None


def knobs_of(obj: JsonObject) -> dict[str, str]:
    """The annotations of our domain, without the domain."""
    annotations = mapping(obj, "metadata", "annotations")
    return {
        name.removeprefix(DOMAIN): str(value)
        for name, value in annotations.items()
        if name.startswith(DOMAIN)
    }


def behavior_of(pod: JsonObject, managers: Iterable[JsonObject], run: timedelta) -> Behavior:
    """What a pod is asked to do.

    Args:
        pod: The pod.
        managers: Its controller, that one's controller, and so on.
        run: How long a pod of a Job works unless it is told.
    """
    nearest_last = [*reversed([*managers]), pod]
    knobs = _image_knobs(pod)
    for obj in nearest_last:
        knobs |= knobs_of(obj)
    told = _seconds(knobs.get("run-seconds"))
    ends = run if any(obj.get("kind") == "Job" for obj in nearest_last) else None
    return Behavior(
        never_ready=_is_set(knobs.get(NEVER_READY)),
        failure=_failure(knobs.get("fail")),
        delay=_seconds(knobs.get("delay-seconds")) or timedelta(0),
        run=ends if told is None else told,
    )


def _image_knobs(pod: JsonObject) -> dict[str, str]:
    knobs: dict[str, str] = {}
    for container in listing(pod, "spec", "containers"):
        image = str(container.get("image") or "")
        if not image.startswith(DOMAIN):
            continue
        name = image.removeprefix(DOMAIN).partition("@")[0].partition(":")[0]
        if name == NEVER_READY:
            knobs[NEVER_READY] = "true"
        elif name in set(Failure):
            knobs["fail"] = name
    return knobs


def _is_set(text: str | None) -> bool:
    return (text or "").lower() not in ("", "0", "false", "no")


def _failure(text: str | None) -> Failure | None:
    if not _is_set(text):
        return None
    return Failure(text) if text in set(Failure) else Failure.EXIT


def _seconds(text: str | None) -> timedelta | None:
    """A duration; what is no sensible number is as if it were not there."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    if not math.isfinite(seconds) or seconds < 0:
        return None
    return timedelta(seconds=min(seconds, LONGEST_SECONDS))
