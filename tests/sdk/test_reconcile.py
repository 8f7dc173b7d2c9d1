"""`Result`: a delay is a timedelta or a number of seconds, and anything else is refused at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fleetbus import Result
from support.rows import each_row


@each_row(
    ("value", "delay"),
    [
        (None, None),
        (timedelta(minutes=5), timedelta(minutes=5)),
        (timedelta(seconds=-1), timedelta(seconds=-1)),
        (30, timedelta(seconds=30)),
        (0.25, timedelta(milliseconds=250)),
        (0, timedelta()),
    ],
)
def test_a_delay_is_a_timedelta_or_a_number_of_seconds(value: Any, delay: timedelta | None) -> None:
    assert Result(value).requeue_after == delay
    assert Result(requeue_after=value) == Result(delay)


def test_a_result_without_a_delay_wants_no_other_run() -> None:
    assert Result().requeue_after is None
    assert repr(Result(30)) == "Result(requeue_after=datetime.timedelta(seconds=30))"


@each_row("value", [True, False, "30", [30], 1j])
def test_a_delay_of_another_type_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(TypeError, match="a timedelta or a number of seconds, like 30, not"):
        Result(requeue_after=value)


@each_row("value", [-1, -0.5, float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_number_that_is_no_delay_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="a number of seconds from 0 on, not"):
        Result(requeue_after=value)
