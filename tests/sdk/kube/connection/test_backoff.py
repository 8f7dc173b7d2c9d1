"""Pauses after failures: rule W19."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleetbus.errors import KubeError, ServerError, TooManyRequests
from fleetbus.kube.connection.backoff import ApiBackoff


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def seconds(backoff: ApiBackoff, clock: Clock, times: int) -> list[float]:
    delays: list[float] = []
    for _ in range(times):
        delays.append(backoff.delay().total_seconds())
        clock.seconds += delays[-1]
    return delays


def test_w19_pauses_double_up_to_the_cap():
    clock = Clock()
    backoff = ApiBackoff(now=clock, jitter=lambda: 0.0)
    assert seconds(backoff, clock, 8) == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]


def test_w19_each_pause_is_stretched_by_up_to_its_own_length():
    clock = Clock()
    backoff = ApiBackoff(now=clock, jitter=lambda: 1.0)
    assert seconds(backoff, clock, 3) == [1.6, 3.2, 6.4]


def test_w19_two_healthy_minutes_reset():
    clock = Clock()
    backoff = ApiBackoff(now=clock, jitter=lambda: 0.0)
    seconds(backoff, clock, 6)
    clock.seconds += 119
    assert seconds(backoff, clock, 1) == [30]
    clock.seconds += 121
    assert seconds(backoff, clock, 1) == [0.8]


@pytest.mark.parametrize("kind", [TooManyRequests, ServerError])
def test_w19_retry_after_is_honoured(kind: type[KubeError]):
    error = kind(0, "", "slow down")
    error.retry_after = timedelta(seconds=17)
    assert ApiBackoff(jitter=lambda: 0.0).delay(error) == timedelta(seconds=17)
