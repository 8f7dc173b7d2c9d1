"""Prints the fields that differ between two states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleetbus.process import printer


def print_differences(found: Mapping[str, Any], indent: str) -> None:
    """Print `differences` and `moreDifferences` of an answer, a line each."""
    for one in found["differences"]:
        change = f"{_value(one['before'])} → {_value(one['after'])}"
        printer.line(f"{indent}{one['path']}: {change}")
    if found["moreDifferences"]:
        printer.line(f"{indent}and {found['moreDifferences']} more")


def _value(value: object) -> str:
    if value is None:
        return "(absent)"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and text == text.strip() and text else json.dumps(text)
