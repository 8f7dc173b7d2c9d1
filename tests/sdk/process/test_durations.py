"""Durations and points in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fleetbus.process.durations import InvalidTime, parse_duration, parse_point
from support.rows import each_row

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@each_row(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0s", 0)],
)
def test_a_duration_has_a_number_and_a_unit(text: str, seconds: float):
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert parse_point(text, now=NOW) == NOW - timedelta(seconds=seconds)


@each_row("text", ["", "5", "-5s", "5 s", "5S", "5w", "1h30m", "\u0661s", "1e3s"])
def test_anything_else_is_refused(text: str):
    with pytest.raises(InvalidTime, match="is not a duration such as"):
        parse_duration(text)
    with pytest.raises(InvalidTime, match="neither a duration"):
        parse_point(text, now=NOW)


@pytest.mark.parametrize("text", ["999999d", "9" * 400 + "h"])
def test_a_duration_that_no_clock_can_show_is_refused(text: str):
    with pytest.raises(InvalidTime, match="longer than 100 years"):
        parse_duration(text)
    with pytest.raises(InvalidTime, match="longer than 100 years"):
        parse_point(text, now=NOW)


def test_a_time_that_no_calendar_has_is_refused():
    with pytest.raises(InvalidTime, match="out of range"):
        parse_point("0001-01-01T00:00:00+14:00", now=NOW)


def test_a_time_needs_an_offset_and_lies_in_the_past():
    assert parse_point("2026-01-01T01:00:00+01:00", now=NOW) == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidTime, match="neither a duration"):
        parse_point("2026-01-01T00:00:00", now=NOW)
    with pytest.raises(InvalidTime, match="in the future"):
        parse_point("2026-01-02T00:00:01Z", now=NOW)
