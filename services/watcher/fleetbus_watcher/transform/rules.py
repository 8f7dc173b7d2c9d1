"""Transform rules, as a person writes them.

[{"resource": "core/pods", "drop": ["status.conditions"],
  "redact": ["spec.containers[*].env[*].value"], "keepManagedFields": false}]
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import NoDecode

from fleetbus.kube.redaction_paths import fits, parse_path
from fleetbus.process.settings import read_settings_file

_PATTERN: Final = re.compile(r"\*|[a-z0-9*][-.a-z0-9*]*/[a-z0-9*][-a-z0-9*]*")


def _is_path(text: str) -> str:
    parse_path(text)
    return text


def _is_pattern(text: str) -> str:
    if not _PATTERN.fullmatch(text):
        raise ValueError(
            f"{text!r} is no group/plural, like core/pods, apps/deployments, *.example.com/* or *"
        )
    return text


PathText = Annotated[str, AfterValidator(_is_path)]


class Rule(BaseModel):
    """Drops and redacts parts of the objects of some resources before they are published."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    resource: Annotated[str, AfterValidator(_is_pattern)]
    """`group/plural`, in which `*` matches any characters; `*` alone means every resource."""

    drop: tuple[PathText, ...] = ()
    """Paths of the fields to remove, names included."""

    redact: tuple[PathText, ...] = ()
    """Paths to redact: each value at or below becomes `<redacted>`, names stay."""

    keep_managed_fields: bool = Field(default=False, alias="keepManagedFields")
    """Publish metadata.managedFields too."""


RulesFromFile = Annotated[
    tuple[Rule, ...],
    NoDecode,
    BeforeValidator(lambda path: read_settings_file(path) if isinstance(path, str) else path),
]
"""Rules from the YAML or JSON file whose path is the value of the setting."""


def matches(rule: Rule, key: str) -> bool:
    """Whether a rule applies to a resource, given as `group/plural`."""
    return fits(rule.resource, key)
