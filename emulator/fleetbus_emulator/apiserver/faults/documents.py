"""Rules as JSON and as words: one flat document, whose fields are the dataclasses' own.

    {"action": "fail", "status": 429, "retryAfter": "1s", "verb": "list", "count": 2}

Names are in camel case, durations texts like `1.5s`, resourceVersions texts as in Kubernetes.
Errors name the field as it stands in the document.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Any, Literal

from fleetbus_emulator.apiserver.faults.actions import Action, FieldError
from fleetbus_emulator.apiserver.faults.rules import Match, Rule

JsonObject = dict[str, Any]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
REVISION = "resource_version"


def camel(name: str) -> str:
    """`retry_after` as `retryAfter`."""
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)


def _kebab(name: str) -> str:
    """`StallWatch` as `stall-watch`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def to_duration(text: str) -> timedelta:
    """Read a duration.

    Raises:
        ValueError: It is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("must be a duration like 200ms, 1.5s, 2m or 1h")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    except OverflowError:
        raise ValueError("is longer than anybody will wait") from None


def from_duration(duration: timedelta) -> str:
    """A duration as text, in seconds."""
    return f"{duration.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document.

    Attributes:
        name: As Python spells it.
        kind: str, int, float, bool or timedelta.
        choices: The only values of a string; empty for any.
        default: Its Python value where a document leaves it out; MISSING if it may not.
    """

    name: str
    kind: type
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def needed(self) -> bool:
        """Whether a document must have it."""
        return self.default is MISSING

    def read(self, value: Any) -> Any:
        """The Python value of a JSON value.

        Raises:
            FieldError: It is of another kind, or not one of the choices.
        """
        try:
            return self._read(value)
        except ValueError as error:
            raise FieldError(camel(self.name), str(error)) from None

    def _read(self, value: Any) -> Any:
        if self.kind is timedelta:
            return to_duration(value if isinstance(value, str) else "")
        if self.name == REVISION and isinstance(value, str) and value.isdecimal():
            return int(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind is float and number:
            return float(value)
        if type(value) is not self.kind:
            raise ValueError(f"must be {_KINDS[self.kind]}")
        if self.choices and value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return value

    def read_word(self, text: str) -> Any:
        """The JSON value of a word on a command line."""
        if self.kind is bool and text in ("true", "false"):
            return text == "true"
        if self.kind in (int, float):
            try:
                return self.kind(text)
            except ValueError:
                return text  # refused with the others, by name
        return text

    def show(self, value: Any) -> Any:
        """The JSON value of a Python value."""
        if isinstance(value, timedelta):
            return from_duration(value)
        return str(value) if self.name == REVISION else value


_KINDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _field(name: str, annotation: Any, default: Any) -> Field:
    kind = annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):  # what is optional
        kind = next(
            argument for argument in typing.get_args(annotation) if argument is not type(None)
        )
    if typing.get_origin(kind) is Literal:
        return Field(name, str, choices=typing.get_args(kind), default=default)
    return Field(name, kind, default=default)


def _fields_of(cls: type) -> dict[str, Field]:
    hints = typing.get_type_hints(cls)
    declared = fields(cls)
    return {
        camel(field.name): _field(field.name, hints[field.name], field.default)
        for field in declared
    }


ACTIONS: dict[str, type] = {_kebab(action.__name__): action for action in typing.get_args(Action)}
"""The actions by name."""

ACTION_FIELDS = {name: _fields_of(cls) for name, cls in ACTIONS.items()}
"""The fields of each action."""

MATCH_FIELDS = _fields_of(Match)
BUDGET_FIELDS = {
    "count": Field("count", int),
    "skip": Field("skip", int, default=0),
    "nth": Field("nth", int),
    "probability": Field("probability", float, default=1.0),
}
RULE_FIELDS = MATCH_FIELDS | BUDGET_FIELDS
"""The fields that every rule may have."""


def fields_of(action: str) -> dict[str, Field]:
    """The fields that a rule with an action may have.

    Raises:
        FieldError: There is no such action.
    """
    action_fields = ACTION_FIELDS.get(action)
    if action_fields is None:
        raise FieldError("action", f"must be one of {', '.join(ACTIONS)}")
    return action_fields | RULE_FIELDS


def action_from_json(document: Mapping[str, Any]) -> tuple[Action, dict[str, Any]]:
    """Read a rule: its action, and the other arguments of `Faults.add`.

    Raises:
        FieldError: A field is missing, unknown or wrong.
    """
    name = str(document.get("action", ""))
    known_fields = fields_of(name)
    arguments: dict[str, Any] = {}
    for field, value in document.items():
        if field == "action" or value is None:
            continue
        if field not in known_fields:
            raise FieldError(field, f"is unknown; {name} knows {', '.join(known_fields)}")
        arguments[known_fields[field].name] = known_fields[field].read(value)
    for field, kind in ACTION_FIELDS[name].items():
        if kind.needed and kind.name not in arguments:
            raise FieldError(field, f"is needed by {name}")
    names = {kind.name for kind in ACTION_FIELDS[name].values()}
    try:
        action = ACTIONS[name](**{key: value for key, value in arguments.items() if key in names})
    except FieldError as error:
        raise FieldError(camel(error.field), error.why) from None
    return action, {key: value for key, value in arguments.items() if key not in names}


def action_to_json(action: Action) -> JsonObject:
    """An action as fields of a document; what has no value is left out."""
    name = _kebab(type(action).__name__)
    document: JsonObject = {"action": name}
    for field, kind in ACTION_FIELDS[name].items():
        value = getattr(action, kind.name)
        if value is not None:
            document[field] = kind.show(value)
    return document


def rule_to_json(rule: Rule) -> JsonObject:
    """A rule as a document, with what has become of it."""
    match = {field: getattr(rule.match, kind.name) for field, kind in MATCH_FIELDS.items()}
    return {
        "id": rule.id,
        **action_to_json(rule.action),
        **{field: value for field, value in match.items() if value is not None},
        **({} if rule.count is None else {"count": rule.count}),
        "skip": rule.skip,
        "probability": rule.probability,
        "hits": rule.hits,
        "active": rule.active,
    }


def json_from_words(action: str, words: Sequence[str]) -> JsonObject:
    """Parse words such as `fail status=429 verb=list` into a document.

    Raises:
        FieldError: There is no such action or field, or a word has no `=`.
    """
    known_fields = fields_of(action)
    document: JsonObject = {"action": action}
    for word in words:
        field, equals, text = word.partition("=")
        if not equals:
            raise FieldError(word, "must be written as field=value")
        if field not in known_fields:
            raise FieldError(field, f"is unknown; {action} knows {', '.join(known_fields)}")
        document[field] = known_fields[field].read_word(text)
    return document
