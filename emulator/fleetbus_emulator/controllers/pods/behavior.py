"""Behavior of simulated pods, set by annotations or by image.

    sim.fleetbus.dev/never-ready: "true"          it runs, but never gets ready
    sim.fleetbus.dev/fail: "exit"                 its containers end with exit code 1; also "true"
    sim.fleetbus.dev/fail: "crash-loop"           the same, and again and again
    sim.fleetbus.dev/fail: "image-pull"           its image cannot be pulled
    sim.fleetbus.dev/fail: "evict"                its node evicts it
    sim.fleetbus.dev/fail-after-seconds: "30"     it is ready first, and fails after this time
    sim.fleetbus.dev/fail-times: "2"              it fails this often, and then no more
    sim.fleetbus.dev/probability: "0.1"           only this share of the pods misbehaves
    sim.fleetbus.dev/delay-seconds: "2.5"         its containers take longer to start
    sim.fleetbus.dev/ready-seconds: "5"           it takes longer to get ready
    sim.fleetbus.dev/run-seconds: "10"            it ends by itself, well, after this time

An annotation may stand on the pod, in its template or on any object that manages it (ReplicaSet,
Deployment, Job, CronJob, ...); the nearest wins, and a change takes effect on pods that exist. Pods
whose image is `sim.fleetbus.dev/never-ready` or `sim.fleetbus.dev/<a failure>`, with any tag,
behave so too. An invalid value is ignored, and an Event says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from fleetbus_emulator.apiserver.json_tree import listing, mapping

JsonObject = dict[str, Any]
DOMAIN = "sim.fleetbus.dev/"
NEVER_READY = "never-ready"
LONGEST_SECONDS = 1e7
FALSE = ("", "0", "false", "no")
TRUE = ("1", "true", "yes")


class Failure(StrEnum):
    """Kinds of failure."""

    EXIT = "exit"
    CRASH_LOOP = "crash-loop"
    IMAGE_PULL = "image-pull"
    EVICT = "evict"


@dataclass(frozen=True, slots=True)
class Behavior:
    """The behavior of a pod.

    Attributes:
        fail_after: How long it is ready before it fails; None if it fails from the start.
        fail_times: How often it fails; None for no end.
        delay: Added to the time it takes to start.
        ready_delay: Added to the time it takes to get ready.
        run: How long it runs before it succeeds; None for a pod that never ends.
    """

    never_ready: bool = False
    failure: Failure | None = None
    fail_after: timedelta | None = None
    fail_times: int | None = None
    delay: timedelta = timedelta(0)
    ready_delay: timedelta = timedelta(0)
    run: timedelta | None = None


def _flag(text: str) -> bool:
    if text.lower() in (*TRUE, *FALSE):
        return text.lower() in TRUE
    raise ValueError("is neither true nor false")


def _failure(text: str) -> Failure | None:
    if text in set(Failure):
        return Failure(text)
    if text.lower() in (*TRUE, *FALSE):
        return Failure.EXIT if text.lower() in TRUE else None
    raise ValueError(f"is none of {', '.join(Failure)}, true and false")


def _seconds(text: str) -> timedelta:
    seconds = _number(text)
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError("is no sensible number of seconds")
    return timedelta(seconds=seconds)


def _share(text: str) -> float:
    share = _number(text)
    if not 0 <= share <= 1:
        raise ValueError("is no number from 0 to 1")
    return share


def _count(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise ValueError("is no whole number from 0")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("is no number") from None
    if not math.isfinite(number):
        raise ValueError("is no number")
    return number


_READERS: dict[str, Callable[[str], Any]] = {
    NEVER_READY: _flag,
    "fail": _failure,
    "fail-after-seconds": _seconds,
    "fail-times": _count,
    "probability": _share,
    "delay-seconds": _seconds,
    "ready-seconds": _seconds,
    "run-seconds": _seconds,
}
SETTINGS = tuple(_READERS)


def settings_of(obj: JsonObject) -> dict[str, str]:
    """The annotations of our domain, without the domain."""
    annotations = mapping(obj, "metadata", "annotations")
    return {
        name.removeprefix(DOMAIN): str(value)
        for name, value in annotations.items()
        if name.startswith(DOMAIN)
    }


def read_settings(settings: Mapping[str, str]) -> tuple[JsonObject, list[str]]:
    """The values of those that make sense, and what is wrong with the others."""
    values: JsonObject = {}
    problems: list[str] = []
    for name, text in settings.items():
        reader = _READERS.get(name)
        if reader is None:
            names = ", ".join(SETTINGS)
            problems.append(f"{DOMAIN}{name} is ignored: there is no such setting, only {names}")
            continue
        try:
            values[name] = reader(text)
        except ValueError as error:
            problems.append(f"{DOMAIN}{name} is ignored: {text[:80]!r} {error}")
    return values, problems


class Images:
    """The settings of pods by image.

    Args:
        patterns: Settings by patterns (`*` and `?`) of whole images.

    Raises:
        ValueError: A setting that makes no sense.
    """

    def __init__(self, patterns: Mapping[str, Mapping[str, str]]) -> None:
        for pattern, settings in patterns.items():
            problems = read_settings(settings)[1]
            if problems:
                raise ValueError(f"for images {pattern!r}, {problems[0]}")
        self._patterns = {pattern: dict(settings) for pattern, settings in patterns.items()}

    def settings_of(self, pod: JsonObject) -> dict[str, str]:
        """The settings for a pod's images; those named like settings are known by themselves."""
        settings: dict[str, str] = {}
        for container in listing(pod, "spec", "containers"):
            image = str(mapping(container).get("image") or "")
            for pattern, more in self._patterns.items():
                if fnmatchcase(image, pattern):
                    settings |= more
            if image.startswith(DOMAIN):
                settings |= _by_name(image.removeprefix(DOMAIN))
        return settings


def _by_name(image: str) -> dict[str, str]:
    name = image.partition("@")[0].partition(":")[0]
    return {NEVER_READY: "true"} if name == NEVER_READY else {"fail": name}


def behavior_of(
    pod: JsonObject, managers: Iterable[JsonObject], images: Images, run: timedelta, salt: str
) -> Behavior:
    """The behavior of a pod.

    Args:
        pod: The pod.
        managers: Its controller, that one's controller, and so on.
        images: Settings by image.
        run: How long a pod of a Job runs unless it has a setting.
        salt: Seeds the choice of pods that a probability applies to; always the same pods.
    """
    values = read_settings(images.settings_of(pod))[0]
    works = False
    for obj in [*reversed([*managers]), pod]:  # the nearest wins
        works = works or obj.get("kind") == "Job"
        settings = settings_of(obj)
        if settings:
            values |= read_settings(settings)[0]
    spared = _draw(pod, salt) >= values.get("probability", 1)
    return Behavior(
        never_ready=values.get(NEVER_READY, False) and not spared,
        failure=None if spared else values.get("fail"),
        fail_after=values.get("fail-after-seconds"),
        fail_times=values.get("fail-times"),
        delay=values.get("delay-seconds", timedelta(0)),
        ready_delay=values.get("ready-seconds", timedelta(0)),
        run=values.get("run-seconds", run if works else None),
    )


def _draw(pod: JsonObject, salt: str) -> float:
    """A number from 0 to below 1 that is the pod's own."""
    meta = pod["metadata"]
    text = f"{salt}/{meta.get('namespace')}/{meta['name']}"
    digest = hashlib.blake2b(text.encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56
