"""Prints the fields that differ between two states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleetbus.process import printer


def print_differences(answer: Mapping[str, Any], indent: str) -> None:
    """Print `differences` and `moreDifferences` of an answer, a line each."""
    for difference in answer["differences"]:
        change = f"{_value(difference['before'])} → {_value(difference['after'])}"
        printer.line(f"{indent}{difference['path']}: {change}")
    if answer["moreDifferences"]:
        printer.line(f"{indent}and {answer['moreDifferences']} more")


def _value(value: object) -> str:
    if value is None:
        return "(absent)"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() and text == text.strip() and text else json.dumps(text)
