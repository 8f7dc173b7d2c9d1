"""Errors of the history.

HistoryError
└── OutsideWindow   the time is before the first event that is left, or in the future
"""

from __future__ import annotations

from fleetbus.errors import FleetbusError


class HistoryError(FleetbusError):
    """A question about the past that cannot be answered."""


class OutsideWindow(HistoryError):
    """The time is outside the window (rule A9); the message says where that begins."""
