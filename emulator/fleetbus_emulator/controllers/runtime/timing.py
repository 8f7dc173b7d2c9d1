"""Delays of the simulated machinery."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from random import Random

INSTANT = timedelta(0)


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of a simulation; all zero, so that tests need not wait.

    Every duration is stretched or shrunk by a random factor of up to `jitter` each time it is
    used: what always takes equally long hides races.
    """

    schedule: timedelta = INSTANT
    """From a pod's creation until it has a node."""

    start: timedelta = INSTANT
    """From then until its containers run: pulling images, mostly."""

    ready: timedelta = INSTANT
    """From running to ready."""

    stop: timedelta = INSTANT
    """From the deletion of a pod on a node until its removal; at most its grace period."""

    run: timedelta = INSTANT
    """The time that the pod of a Job runs."""

    retry: timedelta = INSTANT
    """Between two crashes of a container, and between two pods of a failing Job."""

    collect: timedelta = INSTANT
    """The delay of the garbage collector and the namespace controller."""

    notice: timedelta = INSTANT
    """From a change until the controllers of workloads look at it, and at all others since then;
    those that sum up (Endpoints, PodDisruptionBudgets) take ten times as long."""

    heartbeat: timedelta = INSTANT
    """Between two renewals of a node's Lease; zero for none, so that an idle cluster is silent."""

    jitter: float = 0.0
    """The largest relative deviation, from 0 (none) to 1."""

    def __post_init__(self) -> None:
        """Refuse what would travel back in time."""
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter}")
        for name, value in asdict(self).items():
            if isinstance(value, timedelta) and value < INSTANT:
                raise ValueError(f"{name} must not be negative")

    @classmethod
    def lifelike(cls) -> Self:
        """A small cluster at work: a Deployment is ready in about two seconds."""
        return cls(
            schedule=timedelta(milliseconds=50),
            start=timedelta(milliseconds=900),
            ready=timedelta(milliseconds=600),
            stop=timedelta(milliseconds=700),
            run=timedelta(seconds=3),
            retry=timedelta(seconds=2),
            collect=timedelta(milliseconds=150),
            notice=timedelta(milliseconds=20),
            jitter=0.5,
        )

    def jittered(self, delay: timedelta, random: Random) -> float:
        """The delay in seconds, as it falls out this time."""
        seconds = delay.total_seconds()
        if not seconds or not self.jitter:
            return seconds
        return seconds * random.uniform(1 - self.jitter, 1 + self.jitter)
