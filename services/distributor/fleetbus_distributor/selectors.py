"""Selects clusters in a spec: by name and by labels."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

MAX_NAMES: Final = 1_000
"""Items of every list of clusters or labels; a spec selects more of them by other labels."""
DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class Strict(BaseModel):
    """A part of the spec; unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True
    )


class Operator(StrEnum):
    """The operator of a requirement of a label selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Strict):
    """One item of `matchExpressions`."""

    key: str
    operator: Operator
    values: list[str] = Field(default_factory=list[str], max_length=MAX_NAMES)

    @cached_property
    def value_set(self) -> frozenset[str]:
        """The values: there may be a thousand, and each cluster is compared with them."""
        return frozenset(self.values)

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        needs_values = self.operator in (Operator.IN, Operator.NOT_IN)
        if needs_values and not self.values:
            raise ValueError(f"operator {self.operator} needs values")
        if not needs_values and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        return self


class LabelSelector(Strict):
    """A Kubernetes label selector; an empty one selects everything."""

    match_labels: dict[str, str] = Field(default_factory=dict[str, str])
    match_expressions: list[Requirement] = Field(default_factory=list[Requirement], max_length=100)


class ClusterName(Strict):
    """A cluster by name."""

    name: str = Field(pattern=DNS_LABEL)
