"""`spec.feedback` of a MultiClusterResource: status fields that are shown on the hub.

Only fields below `.status`, only strings, numbers and booleans, and nothing of a Secret. A field
that an object does not have is absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from pydantic import Field, field_validator, model_validator

from fleetbus.process.redact import cut
from fleetbus_distributor.health.paths import parse_path, read_path
from fleetbus_distributor.health.rules import Selection
from fleetbus_distributor.selectors import Strict

MAX_TEXT: Final = 256
"""Characters of one string."""
_MAX_INTEGER: Final = 2**63 - 1
Values = Mapping[str, Any]


class FeedbackField(Strict):
    """One field to collect."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")
    path: str

    @field_validator("path")
    @classmethod
    def _is_status_path(cls, path: str) -> str:
        if parse_path(path)[0] != "status":
            raise ValueError("must be below .status")
        return path


class Feedback(Selection):
    """The fields to collect from some objects."""

    fields: list[FeedbackField] = Field(min_length=1, max_length=16)

    @model_validator(mode="after")
    def _is_allowed(self) -> Self:
        if self.kind == "Secret":
            raise ValueError("nothing is collected from Secrets")
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ValueError("two fields have the same name")
        return self


def collect(obj: Mapping[str, Any], feedback: Sequence[Feedback]) -> dict[str, Any]:
    """Collect the chosen fields of an object as it was read from its cluster."""
    if obj.get("kind") == "Secret":
        return {}
    values: dict[str, Any] = {}
    for rule in feedback:
        if rule.selects_object(obj):
            values |= _read(obj, rule.fields)
    return values


def _read(obj: Mapping[str, Any], fields: Iterable[FeedbackField]) -> dict[str, Any]:
    values = {field.name: read_path(obj, field.path) for field in fields}
    return {
        name: cut(value, MAX_TEXT) if isinstance(value, str) else value
        for name, value in values.items()
        if _is_scalar(value)
    }


def _is_scalar(value: Any) -> bool:
    """Whether it can be shown: the status, in JSON, has no infinity and no endless integer."""
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))
