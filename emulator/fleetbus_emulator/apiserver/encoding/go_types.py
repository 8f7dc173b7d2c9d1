"""Go types that documents are decoded into: structs, lists, maps, scalars.

Decoding in place leaves what Go would encode again: null counts as absent, zero values of
omitempty fields and unknown fields are dropped, and the latter reported. Type errors have the
messages of Go's decoder.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any

from fleetbus_emulator.apiserver.definitions.formats import is_of_format
from fleetbus_emulator.apiserver.encoding.go_syntax import type_name
from fleetbus_emulator.apiserver.json_tree import as_list, as_object

JsonObject = dict[str, Any]
UNDECLARED = "field not declared in schema"
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
SECONDS = len("2006-01-02T15:04:05")
_MICRO_TIME = re.compile(r".{19}\.[0-9]{6}(Z|[+-][0-9]{2}:[0-9]{2})")
_UNTYPED = {"Quantity", "IntOrString", "Time", "MicroTime"}
_MERGED_TYPES: dict[str, str] = {
    "bool": "boolean",
    "[]byte": "string",
    **dict.fromkeys(("int32", "int64", "float64"), "numeric (int or float)"),
    **dict.fromkeys(_UNTYPED, "any scalar"),
}
"""Go's names of scalars, and those of server-side apply where they differ."""
QUANTITY_PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar, or something that reads itself.

    Attributes:
        name: Its Go type: string, bool, int32, int64, float64, []byte, or that of something that
            reads itself: Quantity, IntOrString, Time, MicroTime; `any` takes everything.
        kept: A zero says something: it is a pointer in Go, or never left out.
    """

    name: str
    kept: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """A struct and its fields.

    Attributes:
        or_bool: A boolean is accepted instead.
        or_list: A list of such structs is accepted instead.
    """

    name: str
    fields: dict[str, Form] = field(default_factory=dict[str, "Form"])
    package: str = "v1"
    or_bool: bool = False
    or_list: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    item: Form


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with string keys."""

    value: Form


Form = Leaf | Struct | ListOf | MapOf


class DecodeError(Exception):
    """A document that Go cannot decode; the message is Go's."""


def read(document: JsonObject, form: Struct) -> list[str]:
    """Read a document in place; returns the paths of the fields that were dropped as unknown.

    Raises:
        Unreadable: A field has the wrong type.
    """
    reader = _Reader()
    try:
        reader.read_struct(document, form)
    except _Mismatch as mismatch:
        raise DecodeError(reader.message(mismatch)) from None
    return reader.unknown


def problems_of(document: JsonObject, form: Struct) -> tuple[list[tuple[str, str]], str]:
    """All that server-side apply finds wrong in a document: paths, and what is wrong there.

    Go's decoder ends at the first mismatch, server-side apply names every one, except for those
    that its schema does not know: of these the first is returned beside, as Go words it.
    """
    reader = _Collector()
    reader.read_struct(document, form)
    problems = [*((path, UNDECLARED) for path in reader.unknown), *reader.mismatches]
    return problems, reader.inconvertible


class _Mismatch(Exception):
    """A value that does not fit its type; raised where it is found."""

    def __init__(self, value: Any, form: Form, why: str = "") -> None:
        super().__init__(why)
        self.value = value
        self.form = form
        self.why = why


class _Key(str):
    """The key of a map, which the messages of Go's decoder leave out."""

    __slots__ = ()


class _Reader:
    """Walks a document; the trail leads to where it is, also when something went wrong there."""

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._trail: list[str | int] = []
        self._owners: list[str] = []

    def message(self, mismatch: _Mismatch) -> str:
        """The message of Go's decoder for a mismatch at the end of the trail."""
        if mismatch.why:
            return mismatch.why
        actual = type_name(mismatch.value)
        if (
            actual == "number"
            and isinstance(mismatch.form, Leaf)
            and mismatch.form.name != "string"
        ):
            actual = f"number {mismatch.value}"
        names = ".".join(step for step in self._trail if type(step) is str)
        owner = self._owners[-1] if self._owners else ""
        where = f"struct field {owner}.{names}" if names else "value"
        return (
            f"json: cannot unmarshal {actual} into Go {where} of type {type_name_of(mismatch.form)}"
        )

    def read_struct(self, value: Any, form: Struct) -> None:
        """Read the fields of a struct."""
        fields = self._fields_of(value, form)
        if fields is None:
            return
        self._owners.append(form.name)
        dropped: list[str] = []
        for name, content in fields.items():
            field_form = form.fields.get(name)
            if (
                isinstance(content, str)
                and isinstance(field_form, Leaf)
                and field_form.name == "string"
            ):
                if (
                    not content and not field_form.kept
                ):  # most fields are strings: they need no trail
                    dropped.append(name)
            elif field_form is None:
                self.unknown.append(self._path(name))
                dropped.append(name)
            elif content is None:
                dropped.append(name)
            else:
                self._trail.append(name)
                if self._read(content, field_form):
                    dropped.append(name)
                self._trail.pop()
        for name in dropped:
            del fields[name]
        self._owners.pop()

    def _fields_of(self, value: Any, form: Struct) -> JsonObject | None:
        """The fields of a struct; None if it is allowed to be something else, and is."""
        if form.or_bool and isinstance(value, bool):
            return None
        if form.or_list and isinstance(value, list):
            self._read_list(value, Struct(form.name, form.fields))  # pyright: ignore[reportUnknownArgumentType]
            return None
        fields = as_object(value)
        if fields is None:
            raise _Mismatch(value, form)
        return fields

    def _path(self, name: str) -> str:
        text = ""
        for step in (*self._trail, name):
            text += f"[{step}]" if isinstance(step, int) else f".{step}"
        return text.removeprefix(".")

    def _read(self, value: Any, form: Form) -> bool:
        """Read a value; says whether it is a zero that Go leaves out."""
        if isinstance(form, Leaf):
            _check_leaf(value, form)
            return not form.kept and value in ("", 0)
        if isinstance(form, Struct):
            self.read_struct(value, form)
            return False
        if isinstance(form, MapOf):
            self._read_map(value, form)
            return value == {}
        items = as_list(value)
        if items is None:
            raise _Mismatch(value, form)
        self._read_list(items, form.item)
        return False

    def _read_map(self, value: Any, form: MapOf) -> None:
        fields = as_object(value)
        if fields is None:
            raise _Mismatch(value, form)
        for name, item in fields.items():
            if item is None:
                fields[name] = _zero(form.value)
            self._trail.append(_Key(name))
            self._read(fields[name], form.value)
            self._trail.pop()

    def _read_list(self, items: list[Any], form: Form) -> None:
        for index, item in enumerate(items):
            if item is None:
                items[index] = _zero(form)
            self._trail.append(index)
            self._read(items[index], form)
            self._trail.pop()


class _Collector(_Reader):
    """Goes on after a mismatch."""

    def __init__(self) -> None:
        super().__init__()
        self.mismatches: list[tuple[str, str]] = []
        self.inconvertible = ""

    def _read(self, value: Any, form: Form) -> bool:
        try:
            return super()._read(value, form)
        except _Mismatch as mismatch:
            if _is_of_schema(value, form):
                self.inconvertible = self.inconvertible or _unlocated(mismatch)
                return False
            why = f"expected {_merged_type(form)}, got {type_name(value)}"
            self.mismatches.append((self._path("").removesuffix("."), why))
            return False


def _is_of_schema(value: Any, form: Form) -> bool:
    """Whether the schema of server-side apply, which knows scalars only, takes a value."""
    if not isinstance(form, Leaf) or isinstance(value, dict | list):
        return False
    is_number = isinstance(value, float) and form.name in {"int32", "int64"}
    is_text = isinstance(value, str) and form.name == "[]byte"
    return is_number or is_text or form.name in _UNTYPED


def _unlocated(mismatch: _Mismatch) -> str:
    """A mismatch as Go words it where it does not know the field."""
    value, expected = mismatch.value, type_name_of(mismatch.form)
    if mismatch.why:
        return f"error decoding from json: {mismatch.why}" if expected == "[]byte" else mismatch.why
    if isinstance(value, float):
        return f"cannot convert float64 to {expected}"
    return f"json: cannot unmarshal {type_name(value)} into Go value of type {expected}"


def type_name_of(form: Form) -> str:
    """A form as Go names it."""
    if isinstance(form, Leaf):
        return form.name
    if isinstance(form, ListOf):
        return f"[]{type_name_of(form.item)}"
    if isinstance(form, MapOf):
        return f"map[string]{type_name_of(form.value)}"
    return f"{form.package}.{form.name}"


def _merged_type(form: Form) -> str:
    """Server-side apply's name of a type."""
    if isinstance(form, Leaf):
        return _MERGED_TYPES.get(form.name, form.name)
    return "list" if isinstance(form, ListOf) else "map"


def _zero(form: Form) -> Any:
    """Go's zero value, which a null in a list or map becomes."""
    if isinstance(form, Struct | MapOf):
        return {}
    if isinstance(form, ListOf):
        return []
    return {"bool": False, "int32": 0, "int64": 0, "float64": 0, "any": None}.get(form.name, "")


def _check_leaf(value: Any, form: Leaf) -> None:
    name = form.name
    if name == "string":
        fits = isinstance(value, str)
    elif name == "bool":
        fits = isinstance(value, bool)
    elif name in {"int32", "int64"}:
        fits = isinstance(value, int) and not isinstance(value, bool) and is_of_format(name, value)
    elif name == "float64":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        _check_custom(value, form)
        return
    if not fits:
        raise _Mismatch(value, form)


def _check_custom(value: Any, form: Leaf) -> None:
    """Check what reads itself, and words its own refusals."""
    name = form.name
    if name == "Quantity":
        text = str(value) if isinstance(value, int | float) else value
        if isinstance(value, bool) or not isinstance(text, str) or not _QUANTITY.fullmatch(text):
            why = f"quantities must match the regular expression '{QUANTITY_PATTERN}'"
            raise _Mismatch(value, form, why)
    elif name == "IntOrString":
        if not isinstance(value, str):
            _check_leaf(value, Leaf("int32"))
    elif name in {"Time", "MicroTime"}:
        if not isinstance(value, str):
            raise _Mismatch(value, Leaf("string"))
        is_given = value or name == "MicroTime"
        if is_given and not is_of_format("date-time", value):
            layout = "2006-01-02T15:04:05Z07:00" if name == "Time" else MICRO_LAYOUT
            raise _Mismatch(value, form, f'parsing time "{value}" as "{layout}": cannot parse')
        if name == "MicroTime" and value and not _MICRO_TIME.fullmatch(value):
            why = f'parsing time "{value}" as "{MICRO_LAYOUT}": cannot parse'
            raise _Mismatch(value, form, f'{why} "{value[SECONDS:]}" as ".000000"')
    elif name == "[]byte":
        _check_bytes(value, form)


def _check_bytes(value: Any, form: Leaf) -> None:
    if not isinstance(value, str):
        raise _Mismatch(value, form)
    try:
        base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        position = next((i for i, c in enumerate(value) if not re.match(r"[A-Za-z0-9+/]", c)), 0)
        raise _Mismatch(value, form, f"illegal base64 data at input byte {position}") from None
