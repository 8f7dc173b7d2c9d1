"""Field selectors, and what they have in common with label selectors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.errors import bad_request
from fleetbus_emulator.apiserver.json_tree import as_object, value_at
from fleetbus_emulator.apiserver.read.label_selectors import Predicate, parse_labels

if TYPE_CHECKING:
    from collections.abc import Container

    from fleetbus_emulator.apiserver.types.served import Served

__all__ = ["Predicate", "both", "field_text", "parse_fields", "parse_labels"]
EVERYWHERE = ("metadata.name", "metadata.namespace")
_TERMS = re.compile(r"(?:\\.|[^\\,])+|\\$")
_TERM = re.compile(r"(?P<path>.*?)(?P<op>!=|==|=)(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def parse_fields(text: str, served: Served) -> Predicate | None:
    """A predicate for a fieldSelector; None if it selects everything.

    Raises:
        ApiError: 400, the selector cannot be parsed or names a field that cannot be selected by.
    """
    terms = sorted(_TERMS.findall(text))
    if not terms:
        return None
    allowed = {*EVERYWHERE, *served.rtype.field_labels, *served.version.selectable}
    tests = [_field_test(term, text, allowed) for term in terms]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(term: str, text: str, allowed: Container[str]) -> Predicate:
    found = _TERM.fullmatch(term)
    if not found:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
    path, equal, wanted = found["path"], found["op"] != "!=", _unescaped(found["value"])
    if path not in allowed:
        raise bad_request(f"field label not supported: {path}")
    steps = tuple(path.split("."))
    return lambda obj: (field_text(obj, steps) == wanted) is equal


def _unescaped(value: str) -> str:
    """A value without its backslashes, which only escape themselves, commas and equal signs."""
    for found in _ESCAPE.finditer(value):
        if found[1] not in {"\\", ",", "="}:
            raise bad_request(f"invalid field selector: invalid escape sequence: {found[0]}")
    if "=" in _ESCAPE.sub("", value):
        raise bad_request("invalid field selector: unescaped character in value: =")
    return _ESCAPE.sub(r"\1", value)


def field_text(obj: dict[str, Any], steps: tuple[str, ...]) -> str:
    """The value at a path as field selectors see it; the empty string where there is none."""
    value = value_at(obj, *steps)
    if isinstance(value, bool):
        return str(value).lower()
    fields = as_object(value)
    if fields is not None:  # events: `source` means source.component
        return str(fields.get("component", ""))
    return "" if value is None else str(value)


def both(first: Predicate | None, second: Predicate | None) -> Predicate | None:
    """The conjunction of two predicates that may be absent."""
    if first is None or second is None:
        return first or second
    return lambda obj: first(obj) and second(obj)
