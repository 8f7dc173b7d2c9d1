"""Causes of a 422, worded as Kubernetes' field errors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.apiserver.errors import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable


def _shown(value: Any) -> str:
    return orjson.dumps(value).decode()


def required(field: str, why: str = "") -> Cause:
    """The field is missing."""
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def invalid(field: str, value: Any, why: str) -> Cause:
    """The field's value will not do."""
    return Cause(field, f"Invalid value: {_shown(value)}: {why}")


def forbidden(field: str, why: str) -> Cause:
    """The field may not be set, or not so."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """The field's value is none of those it may have."""
    listed = ", ".join(_shown(name) for name in supported)
    why = f"Unsupported value: {_shown(value)}: supported values: {listed}"
    return Cause(field, why, "FieldValueNotSupported")


def duplicate(field: str, value: Any) -> Cause:
    """The value is a duplicate."""
    return Cause(field, f"Duplicate value: {_shown(value)}", "FieldValueDuplicate")
