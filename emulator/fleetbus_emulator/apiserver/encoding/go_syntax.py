"""JSON and YAML as Go reads them: what is accepted, and how a refusal is worded.

orjson parses the bodies; only a body that it refuses is scanned here, for the error message of
Go's scanner, which clients show to people and some tests compare.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import orjson
import yaml

from fleetbus_emulator.apiserver.json_tree import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9a-fA-F]")
_DIGITS = re.compile(rb"[0-9]*")
_LITERALS = {b"t": b"true", b"f": b"false", b"n": b"null"}
DEEPEST = 250  # objects and lists within each other; orjson writes little more
END = "unexpected end of JSON input"
KEY, VALUE, FIRST_KEY, FIRST_ITEM, AFTER = "key", "value", "first key", "first item", "after"


class Malformed(ValueError):
    """A document that cannot be parsed; the message is Go's."""


def parse_json(data: bytes) -> Any:
    """Read JSON.

    Raises:
        Malformed: It is none.
    """
    try:
        parsed: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Malformed(json_problem(data)) from None
    check_depth(data, parsed)
    return parsed


def check_depth(data: bytes, parsed: Any) -> None:
    """Refuse documents nested deeper than orjson can write; Go allows more.

    Raises:
        Malformed: It is too deep.
    """
    if data.count(b"{") + data.count(b"[") <= DEEPEST:
        return
    try:
        orjson.dumps(parsed)
    except TypeError:
        raise Malformed("exceeded max depth") from None


def type_name(value: Any) -> str:
    """Go's name of the type of a JSON value."""
    names = ((dict, "object"), (list, "array"), (str, "string"), (bool, "bool"))
    matches = (name for kind, name in names if isinstance(value, kind))
    return next(matches, "null" if value is None else "number")


class _Fields(list[tuple[str, Any]]):
    """The fields of an object in order, duplicates included."""


def duplicate_fields(data: bytes) -> list[str]:
    """The paths of the fields that a document has more than once; none if it is no JSON."""
    try:
        parsed: Any = json.loads(data, object_pairs_hook=_Fields)
    except (ValueError, RecursionError):
        return []
    paths: list[str] = []
    _find_duplicates(parsed, "", paths)
    return paths


def _find_duplicates(value: Any, path: str, paths: list[str]) -> None:
    if isinstance(value, _Fields):
        names: set[str] = set()
        for name, below in value:
            here = f"{path}.{name}".removeprefix(".")
            if name in names:
                paths.append(here)
            names.add(name)
            _find_duplicates(below, here, paths)
        return
    for index, item in enumerate(as_list(value) or []):
        _find_duplicates(item, f"{path}[{index}]", paths)


def json_problem(data: bytes) -> str:
    """Go's syntax error for a document that orjson refused."""
    try:
        _Scanner(data).scan()
        data.decode()
    except Malformed as problem:
        return str(problem)
    except UnicodeDecodeError:
        return "invalid UTF-8 in string literal"
    return "exceeded max depth"


class _Scanner:
    """Walks a document without recursion, as deep as it may be, up to its first mistake."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._open: list[bytes] = []

    def scan(self) -> None:
        expected = VALUE
        while True:
            character = self._next()
            if expected == AFTER and not self._open:
                if character:
                    raise self._wrong("after top-level value")
                return
            if not character:
                raise Malformed(END)
            expected = self._step(expected, character)

    def _step(self, expected: str, character: bytes) -> str:
        if expected in {KEY, FIRST_KEY}:
            return self._key(expected, character)
        if expected == AFTER:
            return self._separator(character)
        if expected == FIRST_ITEM and character == b"]":
            return self._close()
        return self._value(character)

    def _key(self, expected: str, character: bytes) -> str:
        if expected == FIRST_KEY and character == b"}":
            return self._close()
        if character != b'"':
            raise self._wrong("looking for beginning of object key string")
        self._string()
        colon = self._next()
        if not colon:
            raise Malformed(END)
        if colon != b":":
            raise self._wrong("after object key")
        self._at += 1
        return VALUE

    def _separator(self, character: bytes) -> str:
        in_object = self._open[-1] == b"{"
        if character == b",":
            self._at += 1
            return KEY if in_object else VALUE
        if character == (b"}" if in_object else b"]"):
            return self._close()
        raise self._wrong("after object key:value pair" if in_object else "after array element")

    def _close(self) -> str:
        self._at += 1
        self._open.pop()
        return AFTER

    def _value(self, character: bytes) -> str:
        if character in {b"{", b"["}:
            self._at += 1
            self._open.append(character)
            return FIRST_KEY if character == b"{" else FIRST_ITEM
        if character == b'"':
            self._string()
        elif character in _LITERALS:
            self._literal(_LITERALS[character])
        elif character == b"-" or character.isdigit():
            self._number()
        else:
            raise self._wrong("looking for beginning of value")
        return AFTER

    def _string(self) -> None:
        self._at += 1
        while True:
            self._at = _end(_STRING, self._data, self._at)
            character = self._here()
            if character == b'"':
                self._at += 1
                return
            if character != b"\\":
                raise self._wrong("in string literal")
            self._at += 1
            self._escape()

    def _escape(self) -> None:
        if self._here() == b"u":
            for _ in range(4):
                self._at += 1
                if not _HEX.match(self._here()):
                    raise self._wrong("in \\u hexadecimal character escape")
        elif self._here() not in {b'"', b"\\", b"/", b"b", b"f", b"n", b"r", b"t"}:
            raise self._wrong("in string escape code")
        self._at += 1

    def _literal(self, word: bytes) -> None:
        for position in range(1, len(word)):
            self._at += 1
            expected = word[position : position + 1]
            if self._here() != expected:
                raise self._wrong(f"in literal {word.decode()} (expecting '{expected.decode()}')")
        self._at += 1

    def _number(self) -> None:
        if self._here() == b"-":
            self._at += 1
        if self._here() == b"0":
            self._at += 1
        else:
            self._digits("in numeric literal")
        if self._peek() == b".":
            self._at += 1
            self._digits("after decimal point in numeric literal")
        if self._peek() in {b"e", b"E"}:
            self._at += 1
            if self._peek() in {b"+", b"-"}:
                self._at += 1
            self._digits("in exponent of numeric literal")

    def _digits(self, where: str) -> None:
        end = _end(_DIGITS, self._data, self._at)
        if end == self._at:
            self._here()
            raise self._wrong(where)
        self._at = end

    def _peek(self) -> bytes:
        return self._data[self._at : self._at + 1]

    def _here(self) -> bytes:
        character = self._peek()
        if not character:
            raise Malformed(END)
        return character

    def _next(self) -> bytes:
        self._at = _end(_SPACE, self._data, self._at)
        return self._peek()

    def _wrong(self, where: str) -> Malformed:
        return Malformed(f"invalid character {_quoted(self._peek())} {where}")


def _end(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    match = pattern.match(data, start)
    return match.end() if match else start


def _quoted(character: bytes) -> str:
    """A character as Go's scanner shows it."""
    if character == b"'":
        return r"'\''"
    if character == b'"':
        return "'\"'"
    return f"'{orjson.dumps(character.decode('latin-1')).decode()[1:-1]}'"


# YAML -------------------------------------------------------------------------------------------


MOST_ALIASED = 3 * 1024 * 1024  # characters, that of the largest request


class _JsonLikeLoader(yaml.CSafeLoader):
    """A safe loader that leaves timestamps alone."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(data: bytes) -> Any:
    """Read YAML by way of JSON, as Kubernetes does: no dates, keys are text, nothing is shared.

    Raises:
        Malformed: It is invalid YAML, or cannot be written as JSON.
    """
    try:
        _check_yaml(data)
        parsed: Any = yaml.load(data, Loader=_JsonLikeLoader)  # noqa: S506 - a safe loader
        return orjson.loads(orjson.dumps(parsed, option=orjson.OPT_NON_STR_KEYS))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Malformed(f"yaml: line {line}: {error.problem}") from None
    except (yaml.YAMLError, orjson.JSONEncodeError, RecursionError, ValueError) as error:
        raise Malformed(f"yaml: {str(error).splitlines()[0]}") from None


def _check_yaml(data: bytes) -> None:
    """Refuse a document that would overflow libyaml's stack or, by its aliases, the memory.

    Events come one by one, before anything is built of them.

    Raises:
        Malformed: It is too deep, or its aliases expand to too much.
    """
    sizes: dict[str, int] = {}  # by anchor, with its aliases expanded
    opened: list[tuple[str | None, int]] = []
    size = aliased = 0
    parsed = yaml.parse(data, Loader=_JsonLikeLoader)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    for event in cast("Iterator[yaml.Event]", parsed):
        match event:
            case yaml.CollectionStartEvent():
                opened.append((event.anchor, size))
                size += 1
                if len(opened) > DEEPEST:
                    raise Malformed("exceeded max depth")
            case yaml.CollectionEndEvent():
                anchor, before = opened.pop()
                sizes[anchor or ""] = size - before
            case yaml.AliasEvent():
                aliased += sizes.get(event.anchor, 0)
                size += sizes.get(event.anchor, 0)
            case yaml.ScalarEvent():
                sizes[event.anchor or ""] = len(event.value) + 1
                size += len(event.value) + 1
            case _:
                pass
        if aliased > MOST_ALIASED:
            raise Malformed("document contains excessive aliasing")
