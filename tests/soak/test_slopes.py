"""A leak of the size of its limit is found within noise; a sawtooth is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random

from soak.limits import LIMITS, MIB, limit_of
from soak.main import evaluate
from soak.slopes import Sample, slope_of

HOUR = 3600.0
STEP = 5.0
MEMORY = next(limit for limit in LIMITS if limit.pattern == "memory/*")
BASE = 80 * MIB


def series(value: Callable[[float], float], *, hours: float = 2.0) -> list[Sample]:
    """A series of one life."""
    count = int(hours * HOUR / STEP)
    return [Sample(at, value(at)) for at in (number * STEP for number in range(count))]


def is_leak(samples: list[Sample], *, hours: float = 2.0) -> bool:
    slope = slope_of(samples, hours * HOUR / 2, hours * HOUR, warm_up=60)
    assert slope is not None
    return MEMORY.is_exceeded_by(slope)


def noise(seed: int) -> Callable[[], float]:
    """As a process has: small steps, and a tenth of the samples far above."""
    random = Random(seed)
    return lambda: abs(random.gauss(0, MIB / 2)) + (random.random() < 0.1) * 20 * MIB


def test_a_leak_a_little_above_its_limit_is_found_in_noise():
    for seed in range(20):
        more = noise(seed)
        assert is_leak(series(lambda at: BASE + 1.15 * MEMORY.per_hour * at / HOUR + more()))  # noqa: B023


def test_half_of_the_limit_is_no_leak():
    for seed in range(20):
        more = noise(seed)
        assert not is_leak(series(lambda at: BASE + MEMORY.per_hour / 2 * at / HOUR + more()))  # noqa: B023


def test_a_leak_in_half_an_hour_is_found_if_it_is_more_than_noise():
    four_limits = 4 * MEMORY.per_hour
    assert is_leak(series(lambda at: BASE + four_limits * at / HOUR, hours=0.5), hours=0.5)
    assert not is_leak(series(lambda at: BASE + MEMORY.per_hour * at / HOUR, hours=0.5), hours=0.5)


def test_a_sawtooth_is_no_leak():
    for minutes, height in ((1, 40), (3, 40), (5, 40), (12, 10)):
        period = minutes * 60
        assert not is_leak(series(lambda at: BASE + height * MIB * (at % period) / period))  # noqa: B023


def test_a_leak_below_a_sawtooth_is_found():
    def value(at: float) -> float:
        return BASE + 40 * MIB * (at % 120) / 120 + 2 * MEMORY.per_hour * at / HOUR

    assert is_leak(series(value))


def test_a_process_that_warms_up_is_no_leak():
    assert not is_leak(series(lambda at: BASE + 60 * MIB * (1 - math.exp(-at / 600))))


def test_one_step_up_is_no_leak():
    assert not is_leak(series(lambda at: BASE + 10 * MIB * (at > 1.25 * HOUR)))


def test_restarts_hide_no_leak():
    lives = 4
    span = 2 * HOUR / lives

    def value(at: float) -> float:
        return BASE + 4 * MEMORY.per_hour * (at % span) / HOUR

    samples = [Sample(s.at, s.value, int(s.at // span)) for s in series(value)]
    assert is_leak(samples)


def test_a_larger_successor_is_no_leak():
    samples = [
        Sample(s.at, s.value + s.at // 600 * 5 * MIB, int(s.at // 600))
        for s in series(lambda _at: BASE)
    ]
    slope = slope_of(samples, HOUR, 2 * HOUR, warm_up=60)
    assert slope is None or not MEMORY.is_exceeded_by(slope)


def test_a_run_that_is_too_short_for_limits_has_slopes_only():
    samples = {"memory/watcher": series(lambda at: BASE + at * MIB)}
    for end, is_compared in ((HOUR + 599, False), (HOUR + 600, True)):
        slopes, growing = evaluate(samples, HOUR, end)
        assert slopes.keys() == samples.keys()
        assert bool(growing) is is_compared


def test_lives_that_are_too_short_have_no_slope():
    samples = [Sample(s.at, s.at, int(s.at // 100)) for s in series(lambda _at: BASE)]
    assert slope_of(samples, HOUR, 2 * HOUR, warm_up=60) is None


def test_whole_numbers_that_rise_by_one_now_and_then_are_found():
    """One descriptor for each fault of a certain kind, every five minutes."""
    limit = limit_of("descriptors/query-api")
    assert limit is not None
    rising = slope_of(series(lambda at: 30 + at // 300), HOUR, 2 * HOUR, 60)
    steady = slope_of(series(lambda at: 30 + at // 60 % 3), HOUR, 2 * HOUR, 60)
    assert rising is not None
    assert steady is not None
    assert limit.is_exceeded_by(rising)
    assert not limit.is_exceeded_by(steady)


def test_each_limit_is_reached_by_some_series():
    """No limit stands behind a wider one that takes all of its series."""
    names = [limit.pattern.replace("*", "x") for limit in LIMITS]
    assert [limit_of(name) for name in names] == list(LIMITS)
    assert len({*names}) == len(names)


def test_a_series_without_a_limit_is_only_recorded():
    assert limit_of("disk/logs") is None
    assert [a for a, b in itertools.pairwise(LIMITS) if a == b] == []
