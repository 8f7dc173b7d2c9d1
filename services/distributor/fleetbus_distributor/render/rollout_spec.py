"""`spec.rollout` of a MultiClusterResource: waves, limits and gates (rule D17)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from fleetbus.process.durations import parse_duration
from fleetbus_distributor.selectors import DNS_LABEL, MAX_NAMES, ClusterName, LabelSelector, Strict

HEALTH: Final = "health"
"""The built-in gate that every wave has."""
QUIET: Final = "quiet"
"""The built-in gate that passes when nothing has gone wrong for a while."""
ALL: Final = "all"
"""The only wave of a rollout that names none."""
REMAINING: Final = "remaining"
"""The last wave, of the clusters that no other one chooses."""
_PERCENT: Final = re.compile(r"([1-9][0-9]?|100)%")


def _to_duration(value: Any) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("not a duration such as 30s, 5m or 1h")  # noqa: TRY004 -- for pydantic
    return parse_duration(value)


def _to_limit(value: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if is_number or (isinstance(value, str) and _PERCENT.fullmatch(value)):
        return value
    raise ValueError("neither a number from 1 on nor a percentage from 1% to 100%")


Duration = Annotated[timedelta, BeforeValidator(_to_duration)]
Limit = Annotated[int | str, BeforeValidator(_to_limit)]


class Gate(Strict):
    """A condition that a wave needs beside its health: `quiet`, or a vote."""

    name: str = Field(pattern=DNS_LABEL)
    period: Duration | None = None
    """For `quiet`: the time for which nothing may go wrong."""
    timeout: Duration | None = None
    """The wave fails if the gate has not passed by then; absent, it waits."""

    @model_validator(mode="after")
    def _fits_its_name(self) -> Self:
        if self.name == HEALTH:
            raise ValueError("the gate health is built in; its limit is spec.rollout.healthGate")
        if (self.name == QUIET) != (self.period is not None):
            raise ValueError("the gate quiet needs a period, and no other gate takes one")
        return self


class HealthGate(Strict):
    """The limit of the built-in gate `health`."""

    timeout: Duration = timedelta(minutes=10)
    """Without any progress; then the wave has failed."""


class Wave(Strict):
    """Clusters that get a revision together."""

    name: str = Field(pattern=DNS_LABEL)
    clusters: list[ClusterName] | None = Field(default=None, min_length=1, max_length=MAX_NAMES)
    cluster_selector: LabelSelector | None = None
    percent: int | None = Field(default=None, ge=1, le=100)
    """Percentage of all clusters of the rollout, rounded up; in the order of their names."""
    max_unavailable: Limit | None = None
    gates: list[Gate] | None = Field(default=None, max_length=16)
    """Instead of those of the rollout."""
    optional: bool = False
    """It may choose no cluster at all."""

    @model_validator(mode="after")
    def _chooses_in_one_way(self) -> Self:
        ways = (self.clusters, self.cluster_selector, self.percent)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("exactly one of clusters, clusterSelector and percent is required")
        if self.name in (ALL, REMAINING):
            raise ValueError("the names all and remaining are those of built-in waves")
        return self


class Rollout(Strict):
    """Rollout of a new revision; without any field, to all clusters at once, with a history."""

    waves: list[Wave] = Field(default_factory=list[Wave], max_length=50)
    max_unavailable: Limit | None = None
    """Number of clusters of a wave that may be without a healthy revision at a time."""
    health_gate: HealthGate = HealthGate()
    gates: list[Gate] = Field(default_factory=list[Gate], max_length=16)
    paused: bool = False
    revision_history_limit: int = Field(default=10, ge=0, le=100)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        _check_unique("waves", [wave.name for wave in self.waves])
        for gates in (self.gates, *(wave.gates or [] for wave in self.waves)):
            _check_unique("gates", [gate.name for gate in gates])
        return self


def _check_unique(field: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{field}: duplicate name {twice[0]}")
