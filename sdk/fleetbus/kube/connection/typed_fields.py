"""Fields of a kubeconfig, decoded by type as client-go does: null is absent, others are errors."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast

from fleetbus.errors import ConfigError

_T = TypeVar("_T")


class TypedFields:
    """The fields of one map.

    Args:
        fields: the map.
        where: its place in the document, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._fields = fields

    def error(self, name: str, problem: str) -> ConfigError:
        """An error that names a field and its place."""
        return ConfigError(f"{self.where}: {name!r} {problem}")

    def text(self, name: str) -> str:
        """A string; empty if absent.

        Raises:
            ConfigError: it is something else, like the values of the other methods.
        """
        value = self._fields.get(name)
        if isinstance(value, dt.date):  # a date only to YAML parsers of Python
            return str(value)
        return self._typed(name, str, "a string") or ""

    def flag(self, name: str) -> bool:
        """A boolean; False if absent."""
        return self._typed(name, bool, "true or false") or False

    def data(self, name: str) -> bytes:
        """Bytes written in base64; empty if absent."""
        text = self.text(name)
        try:
            return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError):
            raise self.error(name, "is not base64") from None

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty if absent."""
        values = cast("list[object]", self._typed(name, list, "a list") or [])
        if not all(isinstance(value, str | None) for value in values):
            raise self.error(name, "is not a list of strings")
        return [cast("str | None", value) or "" for value in values]

    def text_map(self, name: str) -> dict[str, str]:
        """A map of strings; empty if absent."""
        inner = self.map(name)
        return {} if inner is None else {key: inner.text(key) for key in inner.names()}

    def map(self, name: str) -> Self | None:
        """A nested map; None if absent."""
        value = cast("dict[str, Any] | None", self._typed(name, dict, "a map"))
        return None if value is None else type(self)(value, f"{self.where}: {name}")

    def maps(self, name: str) -> list[Self]:
        """A list of maps; empty if absent."""
        values = cast("list[object]", self._typed(name, list, "a list") or [])
        if not all(isinstance(value, dict | None) for value in values):
            raise self.error(name, "is not a list of maps")
        return [
            type(self)(cast("dict[str, Any]", value or {}), f"{self.where}: {name}[{i}]")
            for i, value in enumerate(values)
        ]

    def names(self) -> list[str]:
        """The names of the fields."""
        return list(self._fields)

    def raw(self, name: str) -> object:
        """A value of any type."""
        return self._fields.get(name)

    def _typed(self, name: str, kind: type[_T], expected: str) -> _T | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise self.error(name, f"is not {expected}")
        return value
