"""`spec.health` of a MultiClusterResource: declarative rules for kinds that we do not know.

    health:
    - apiVersion: example.org/v1
      kind: Database
      observedGeneration: true
      degraded: [{path: .status.phase, in: [Failed]}]
      healthy: [{path: .status.phase, equals: Running}, {path: .status.replicas, atLeast: 2}]

The object is degraded if any check of `degraded` holds, healthy if all of `healthy` hold, else it
is progressing.
"""

from __future__ import annotations

from typing import Any, Self, TypeAlias

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from fleetbus.kube.json_fields import mapping
from fleetbus.process.redact import cut
from fleetbus_distributor.health.fields import Tree, is_observed
from fleetbus_distributor.health.paths import ABSENT, parse_path, read_path
from fleetbus_distributor.health.result import HEALTHY, NOT_OBSERVED, Health, degraded, progressing
from fleetbus_distributor.selectors import Strict

Scalar: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr
_MAX_SHOWN = 40


class Selection(Strict):
    """Objects by kind, and by name if one is given."""

    api_version: str = Field(min_length=1)
    kind: str = Field(min_length=1)
    namespace: str | None = None
    name: str | None = None

    def selects(self, api_version: str, kind: str, namespace: str, name: str) -> bool:
        """Whether it is one of these objects; an absent name or namespace matches all."""
        return (
            (self.api_version, self.kind) == (api_version, kind)
            and self.name in (None, name)
            and self.namespace in (None, namespace)
        )

    def selects_object(self, obj: Tree) -> bool:
        """Whether an object, as it was read, is one of these."""
        metadata = mapping(obj, "metadata")
        return (
            (self.api_version, self.kind) == (obj.get("apiVersion"), obj.get("kind"))
            and self.name in (None, metadata.get("name"))
            and self.namespace in (None, metadata.get("namespace"))
        )

    def __str__(self) -> str:
        place = "/".join(name for name in (self.namespace, self.name) if name)
        return f"{self.kind} {place} of {self.api_version}".replace("  ", " ")


class Check(Strict):
    """One test of one field."""

    path: str
    equals: Scalar | None = None
    in_: list[Scalar] | None = Field(default=None, alias="in", min_length=1, max_length=50)
    exists: StrictBool | None = None
    at_least: StrictInt | StrictFloat | None = None

    @field_validator("path")
    @classmethod
    def _is_path(cls, path: str) -> str:
        parse_path(path)
        return path

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        tests = [self.equals, self.in_, self.exists, self.at_least]
        if sum(test is not None for test in tests) != 1:
            raise ValueError("exactly one of equals, in, exists and atLeast is required")
        return self

    def holds(self, obj: Tree) -> bool:
        """Whether an object passes it; an absent field passes only `exists: false`."""
        value = read_path(obj, self.path)
        if self.exists is not None:
            return (value is not ABSENT and value is not None) is self.exists
        if value is ABSENT:
            return False
        if self.at_least is not None:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and value >= self.at_least
        values = self.in_ if self.in_ is not None else [self.equals]
        return any(_is_same(value, expected) for expected in values)

    def __str__(self) -> str:
        if self.exists is not None:
            return f"{self.path} {'exists' if self.exists else 'does not exist'}"
        if self.at_least is not None:
            return f"{self.path} is at least {self.at_least}"
        values = self.in_ if self.in_ is not None else [self.equals]
        text = " or ".join(str(value) for value in values)
        return f"{self.path} is {cut(text, _MAX_SHOWN)}"


def _is_same(value: Any, expected: Any) -> bool:
    """Whether both are equal, and of one type: `true` is not 1."""
    return isinstance(value, bool) is isinstance(expected, bool) and value == expected


class HealthRule(Selection):
    """Rule for the health of some objects."""

    observed_generation: StrictBool = False
    """Not healthy before status.observedGeneration is that of the object."""
    healthy: list[Check] = Field(default_factory=list[Check], max_length=20)
    degraded: list[Check] = Field(default_factory=list[Check], max_length=20)

    @model_validator(mode="after")
    def _has_tests(self) -> Self:
        if not self.healthy and not self.degraded and not self.observed_generation:
            raise ValueError("at least one of healthy, degraded and observedGeneration is required")
        return self

    def evaluate(self, obj: Tree) -> Health:
        """The health of an object that the rule selects; no message repeats a value of it."""
        if self.observed_generation and not is_observed(obj):
            return NOT_OBSERVED
        for check in self.degraded:
            if check.holds(obj):
                return degraded("RuleDegraded", str(check))
        for check in self.healthy:
            if not check.holds(obj):
                return progressing("RuleNotMet", f"it waits until {check}")
        return HEALTHY
