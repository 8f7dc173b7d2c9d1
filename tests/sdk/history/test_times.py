"""Points in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetbus.history.errors import HistoryError
from fleetbus.history.states import created_at
from fleetbus.history.times import parse_point

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("text", ["999999d", "800000d", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_no_clock_can_show_is_refused(text: str):
    with pytest.raises(HistoryError, match="out of range"):
        parse_point(text, now=NOW)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_creation_time_that_no_clock_can_show_is_unknown(text: str):
    assert created_at(b'{"metadata":{"creationTimestamp":"%b"}}' % text.encode()) is None
