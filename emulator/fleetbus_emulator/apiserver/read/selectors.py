"""Label and field selectors: the grammar of Kubernetes, with its error messages word for word."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.errors import bad_request
from fleetbus_emulator.apiserver.json_tree import as_object, mapping, value_at
from fleetbus_emulator.apiserver.types.field_labels import refusal, selectable_fields
from fleetbus_emulator.apiserver.types.object_meta import key_problems, label_value_problems

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.types.served import Served

Predicate = Callable[[dict[str, Any]], bool]
Requirement = Callable[[dict[str, str]], bool]
OPERATORS = ("in", "notin", "=", "==", "!=", "gt", "lt")
COMPARISONS = {">": "Gt", "<": "Lt"}
_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^\s=!(),<>]+))?")
IDENTIFIER, END = "identifier", "end of string"
_TERMS = re.compile(r"(?:\\.|[^\\,])+|\\$")
_TERM = re.compile(r"(?P<path>.*?)(?P<op>!=|==|=)(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


class _Mistake(Exception):
    """A selector that cannot be parsed; the message is Kubernetes'."""


def parse_fields(text: str, served: Served) -> Predicate | None:
    """A predicate for a fieldSelector; None if it selects everything.

    Raises:
        ApiError: 400, the selector cannot be parsed or names a field that cannot be selected by.
    """
    terms = sorted(_TERMS.findall(text))
    if not terms:
        return None
    tests = [_field_test(term, text, served) for term in terms]
    return lambda obj: all(test(obj) for test in tests)


def _field_test(term: str, text: str, served: Served) -> Predicate:
    match = _TERM.fullmatch(term)
    if not match:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
    name, equal, value = match["path"], match["op"] != "!=", _unescaped(match["value"])
    field = selectable_fields(served).get(name)
    if field is None:
        raise bad_request(refusal(served, name))
    steps = tuple(field.path.split("."))
    return lambda obj: ((field_text(obj, steps) or field.absent) == value) is equal


def _unescaped(value: str) -> str:
    """A value without its backslashes, which only escape themselves, commas and equal signs."""
    for escape in _ESCAPE.finditer(value):
        if escape[1] not in {"\\", ",", "="}:
            raise bad_request(f"invalid field selector: invalid escape sequence: {escape[0]}")
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


def parse_labels(text: str) -> Predicate | None:
    """A predicate for a labelSelector; None if it selects everything.

    Raises:
        ApiError: 400, the selector cannot be parsed.
    """
    if not text.strip():
        return None
    try:
        requirements = _Parser(text).requirements()
    except _Mistake as mistake:
        raise bad_request(str(mistake)) from None

    def matches(obj: dict[str, Any]) -> bool:
        labels: dict[str, str] = mapping(obj["metadata"], "labels")
        return all(requirement(labels) for requirement in requirements)

    return matches


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, literal) of each token: the symbol itself, or IDENTIFIER, or END at last."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while match := _TOKEN.match(text, position):
        if not match["symbol"] and not match["word"]:
            break
        kind = match["symbol"] or IDENTIFIER
        tokens.append((kind, match["symbol"] or match["word"]))
        position = match.end()
    return [*tokens, (END, "")]


class _Parser:
    """Recursive descent over the tokens; `in` and `notin` are words anywhere but as operators."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def requirements(self) -> list[Requirement]:
        parsed: list[Requirement] = []
        while True:
            kind, literal = self._peek()
            if kind == END:
                return parsed
            if kind not in {IDENTIFIER, "!"}:
                raise _Mistake(f"found '{literal}', expected: !, identifier, or 'end of string'")
            try:
                parsed.append(self._requirement())
            except _Mistake as mistake:
                raise _Mistake(f"unable to parse requirement: {mistake}") from None
            kind, literal = self._take()
            if kind == END:
                return parsed
            if kind != ",":
                raise _Mistake(f"found '{literal}', expected: ',' or 'end of string'")
            kind, literal = self._peek()
            if kind not in {IDENTIFIER, "!"}:
                raise _Mistake(f"found '{literal}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        absent = self._peek()[0] == "!"
        if absent:
            self._take()
        kind, key = self._take()
        if kind != IDENTIFIER:
            raise _Mistake(f"found '{key}', expected: identifier")
        if problems := key_problems(key):
            raise _Mistake(f'<nil>: Invalid value: "{key}": {"; ".join(problems)}')
        if absent or self._peek()[0] in {END, ","}:
            return lambda labels: (key in labels) is not absent
        operator = self._operator()
        values = self._values() if operator in {"in", "notin"} else {self._exact_value()}
        return _requirement(key, operator, values)

    def _operator(self) -> str:
        kind, literal = self._take()
        if literal in {"in", "notin", "=", "==", "!=", ">", "<"}:
            return literal
        listed = ", ".join(OPERATORS)
        raise _Mistake(f"found '{literal if kind != END else ''}', expected: {listed}")

    def _exact_value(self) -> str:
        kind, literal = self._peek()
        if kind in {END, ","}:
            return ""
        self._take()
        if kind != IDENTIFIER:
            raise _Mistake(f"found '{literal}', expected: identifier")
        return literal

    def _values(self) -> set[str]:
        kind, literal = self._take()
        if kind != "(":
            raise _Mistake(f"found '{literal}' expected: '('")
        kind, literal = self._peek()
        if kind == ")":
            self._take()
            return {""}
        if kind not in {IDENTIFIER, ","}:
            raise _Mistake(f"found '{literal}', expected: ',', ')' or identifier")
        values = self._list()
        self._take()
        return values

    def _list(self) -> set[str]:
        """The values up to the closing parenthesis; between two commas is an empty one."""
        values: set[str] = set()
        after_comma = True
        while True:
            kind, literal = self._peek()
            if kind == ")":
                return values | {""} if after_comma else values
            self._take()
            if kind == ",":
                if after_comma:
                    values.add("")
                after_comma = True
            elif kind == IDENTIFIER and after_comma:
                values.add(literal)
                after_comma = False
            elif after_comma:
                raise _Mistake(f"found '{literal}', expected: ',', or identifier")
            else:
                raise _Mistake(f"found '{literal}', expected: ',' or ')'")

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token


def _requirement(key: str, operator: str, values: set[str]) -> Requirement:
    problems = [
        f'values[{index}][{key}]: Invalid value: "{value}": {why}'
        for index, value in enumerate(sorted(values))
        for why in label_value_problems(value)
    ]
    if operator in COMPARISONS:
        (text,) = values
        if not re.fullmatch(r"[+-]?\d+", text):
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            problems.insert(0, f'values[0]: Invalid value: "{text}": {why}')
    if problems:
        raise _Mistake(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    if operator in COMPARISONS:
        return _compared(key, operator, int(values.pop()))
    if operator in {"notin", "!="}:
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _compared(key: str, operator: str, limit: int) -> Requirement:
    def holds(labels: dict[str, str]) -> bool:
        try:
            value = int(labels[key])
        except (KeyError, ValueError):
            return False
        return value > limit if operator == ">" else value < limit

    return holds
