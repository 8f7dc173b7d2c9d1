"""The health of an object: its state, and the reason for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fleetbus.kube.json_fields import string


class HealthState(StrEnum):
    """The health of an object; of several, the last one in this order is shown."""

    HEALTHY = "Healthy"
    PROGRESSING = "Progressing"
    UNKNOWN = "Unknown"
    MISSING = "Missing"
    DEGRADED = "Degraded"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an object."""

    state: HealthState
    reason: str = ""
    message: str = ""


HEALTHY: Final = Health(HealthState.HEALTHY)
NOT_OBSERVED: Final = Health(
    HealthState.PROGRESSING, "NotObserved", "its controller has not seen the change yet"
)


def progressing(reason: str, message: str) -> Health:
    """It is on its way."""
    return Health(HealthState.PROGRESSING, reason, message)


def degraded(reason: str, message: str) -> Health:
    """It has failed, or does not get on by itself."""
    return Health(HealthState.DEGRADED, reason, message)


def from_condition(
    state: HealthState, condition: Mapping[str, Any], reason: str, message: str
) -> Health:
    """A health with reason and message of a condition, or these if it has none."""
    own_reason, own_message = string(condition, "reason"), string(condition, "message")
    return Health(state, own_reason or reason, own_message or message)
