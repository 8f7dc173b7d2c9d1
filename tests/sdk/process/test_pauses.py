"""Pauses that double up to a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.process.pauses import Pauses, pause_of
from support.rows import each_row

SECOND = timedelta(seconds=1)


def test_each_is_twice_the_last_up_to_the_limit_and_a_success_begins_anew():
    pauses = Pauses(timedelta(milliseconds=100), SECOND)
    assert [pauses.next().total_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1, 1]
    pauses.reset()
    assert pauses.next() == timedelta(milliseconds=100)


def test_the_first_is_no_longer_than_the_limit():
    assert Pauses(5 * SECOND, SECOND).next() == SECOND


@each_row(("factor", "third"), [(1, 1), (2, 4), (1.5, 2.25)])
def test_the_growth_can_be_chosen(factor: float, third: float):
    assert pause_of(3, SECOND, timedelta(hours=1), factor=factor) == timedelta(seconds=third)


@given(failures=st.integers(1, 10**9))
def test_any_number_of_failures_has_a_pause(failures: int):
    pause = pause_of(failures, timedelta(milliseconds=1), timedelta(days=1))
    assert timedelta(milliseconds=1) <= pause <= timedelta(days=1)


async def test_it_sleeps_for_the_pause(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pauses = Pauses(SECOND, 3 * SECOND)
    for _ in range(3):
        await pauses.sleep()
    assert slept == [1, 2, 3]
