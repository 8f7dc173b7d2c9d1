"""Label and field selectors: text in, predicate out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.errors import bad_request
from fleetbus_devfleet.apiserver.tree import as_object, mapping, value_at

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.resource import ResourceType

Predicate = Callable[[dict[str, Any]], bool]
Requirement = Callable[[dict[str, str]], bool]

_SET = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_PAIR = re.compile(r"^(?P<key>[^\s!=<>,()]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s!=<>,()]*)$")
_EXISTS = re.compile(r"^(?P<absent>!\s*)?(?P<key>[^\s!=<>,()]+)$")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")


def parse_labels(text: str) -> Predicate | None:
    """A predicate for a labelSelector; None if it selects everything."""
    parts = [part.strip() for part in _COMMA_OUTSIDE_PARENTHESES.split(text)]
    if not text.strip():
        return None
    requirements = [_requirement(part) for part in parts]

    def matches(obj: dict[str, Any]) -> bool:
        labels: dict[str, str] = mapping(obj["metadata"], "labels")
        return all(requirement(labels) for requirement in requirements)

    return matches


def _requirement(part: str) -> Requirement:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        return _within(found["key"], values, wanted=found["op"] == "in")
    if found := _PAIR.match(part):
        key, operator, value = found["key"], found["op"], found["value"]
        if operator in {"<", ">"}:
            return _compared(key, operator, value)
        return _within(key, {value}, wanted=operator != "!=")
    if found := _EXISTS.match(part):
        key, wanted = found["key"], found["absent"] is None
        return lambda labels: (key in labels) is wanted
    words = part.split()
    second = words[1] if len(words) > 1 else ""
    raise bad_request(
        f"unable to parse requirement: found '{second}', expected: in, notin, =, ==, !=, gt, lt"
    )


def _within(key: str, values: set[str], *, wanted: bool) -> Requirement:
    if wanted:
        return lambda labels: labels.get(key) in values
    return lambda labels: labels.get(key) not in values


def _compared(key: str, operator: str, text: str) -> Requirement:
    try:
        limit = int(text)
    except ValueError:
        raise bad_request(
            f"for 'Gt', 'Lt' operators, the value must be an integer: {text}"
        ) from None

    def holds(labels: dict[str, str]) -> bool:
        try:
            value = int(labels[key])
        except (KeyError, ValueError):
            return False
        return value > limit if operator == ">" else value < limit

    return holds


def parse_fields(text: str, rtype: ResourceType) -> Predicate | None:
    """A predicate for a fieldSelector; None if it selects everything."""
    if not text:
        return None
    tests = [_field_test(part, rtype) for part in text.split(",") if part]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(part: str, rtype: ResourceType) -> Predicate:
    found = re.match(r"^(?P<path>[^=!]+)(?P<op>==|!=|=)(?P<value>.*)$", part)
    if not found:
        raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
    path, equal = found["path"], found["op"] != "!="
    wanted = re.sub(r"\\(.)", r"\1", found["value"])
    if path not in ("metadata.name", "metadata.namespace", *rtype.field_labels):
        raise bad_request(f"field label not supported: {path}")
    steps = tuple(path.split("."))
    return lambda obj: (field_text(obj, steps) == wanted) is equal


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
