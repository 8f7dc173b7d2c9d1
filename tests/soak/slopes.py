"""Slopes of series: whether something grows, and not whether its last value is large.

A process that was restarted begins again, so a slope is taken within the lives of a series only.
The lowest value of each part of a life counts: caches and garbage make a sawtooth, whose lower ends
stay where they are, while those of a leak rise. The slope is the median of all pairs of these
(Theil and Sen), which a burst or a fault does not change.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

PARTS: Final = 12
"""Parts of the time that is evaluated: enough for 66 pairs, and each longer than a tooth."""
_LEAST_PARTS: Final = 4
"""Parts of one life; shorter ones show how a process warms up, and nothing else."""
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a series.

    Attributes:
        at: seconds since the run began.
        value: in the unit of the series.
        life: the process that it is of; another one after each restart.
    """

    at: float
    value: float
    life: int = 0


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of a series.

    Attributes:
        per_hour: the median slope.
        rise: what it adds up to over the longest life that was evaluated.
    """

    per_hour: float
    rise: float


def slope_of(samples: Iterable[Sample], begin: float, end: float, warm_up: float) -> Slope | None:
    """The slope between two moments; None if no life is long enough there.

    Args:
        samples: in any order.
        begin: the first moment, in seconds since the run began.
        end: the last one.
        warm_up: seconds that are left out at the begin of every life.
    """
    lives = _lower_ends(samples, begin, end, warm_up)
    slopes = [
        (late.value - early.value) / (late.at - early.at)
        for life in lives
        for early, late in itertools.combinations(life, 2)
    ]
    if not slopes:
        return None
    per_second = median(slopes)
    longest = max(life[-1].at - life[0].at for life in lives)
    return Slope(per_second * _HOUR, per_second * longest)


def _lower_ends(
    samples: Iterable[Sample], begin: float, end: float, warm_up: float
) -> list[Sequence[Sample]]:
    """The lowest sample of each part of each life, in order; only lives with enough parts."""
    births: dict[int, float] = {}
    lowest: dict[int, dict[int, Sample]] = defaultdict(dict)
    for sample in sorted(samples, key=lambda each: each.at):
        born = births.setdefault(sample.life, sample.at)
        if not begin <= sample.at <= end or sample.at - born < warm_up:
            continue
        part = int((sample.at - begin) / (end - begin) * PARTS)
        before = lowest[sample.life].get(part)
        if before is None or sample.value < before.value:
            lowest[sample.life][part] = sample
    return [
        [parts[number] for number in sorted(parts)]
        for parts in lowest.values()
        if len(parts) >= _LEAST_PARTS
    ]
