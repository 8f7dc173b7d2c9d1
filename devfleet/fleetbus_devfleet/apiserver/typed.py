"""Whether the fields of a body have the types that Go reads them into, by the table of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver import messages
from fleetbus_devfleet.apiserver.errors import bad_request
from fleetbus_devfleet.apiserver.tree import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus_devfleet.apiserver.messages import Field, Message

JsonObject = dict[str, Any]
JSON_TYPES = {"string": "string", "bytes": "string", "bool": "bool"}
NUMBERS = ("int32", "int64")
EXTRA = "ExtraValue"  # in JSON a list of texts
# The JSON type that was found, the Go struct and its field, the Go type of the field.
_Mismatch = tuple[str, str, str]


def check_types(body: JsonObject, api_version: str, kind: str) -> None:
    """Refuse a body with a field of a wrong type; absent, null and unknown fields are well.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    found = messages.of_kind(api_version, kind)
    bad = None if found is None else _in_message(body, found, "")
    if bad is not None:
        given, where, type_name = bad
        version = api_version.rpartition("/")[2]
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: json: cannot unmarshal '
            f"{given} into Go struct field {where} of type {type_name}"
        )


def _in_message(fields: JsonObject, message: Message, path: str) -> _Mismatch | None:
    known = messages.json_fields(message.full_name)
    for name, value in fields.items():
        entry = known.get(name)
        if entry is not None and value is not None:
            bad = _in_field(value, entry, message.name, f"{path}{name}")
            if bad is not None:
                return bad
    return None


def _in_field(value: Any, entry: Field, struct: str, path: str) -> _Mismatch | None:
    where = f"{struct}.{path}"
    if entry.is_map:
        values = as_object(value)
        if values is None:
            return _json_type(value), where, f"map[string]{_go_type(entry)}"
        return _first(values.values(), entry, where, path)
    if entry.is_list:
        items = as_list(value)
        if items is None:
            return _json_type(value), where, f"[]{_go_type(entry)}"
        return _first(items, entry, where, path)
    return _in_value(value, entry, where, path)


def _first(values: Iterable[Any], entry: Field, where: str, path: str) -> _Mismatch | None:
    found = (_in_value(value, entry, where, path) for value in values if value is not None)
    return next((bad for bad in found if bad is not None), None)


def _in_value(value: Any, entry: Field, where: str, path: str) -> _Mismatch | None:
    given = _json_type(value)
    if entry.scalar:
        fits = _fits(value, given, entry.type)
        return None if fits else (given, where, _go_type(entry))
    message = messages.message(entry.type)
    if message.name == EXTRA:
        texts = as_list(value)
        if texts is None:
            return given, where, _go_type(entry)
        return next(
            ((_json_type(t), where, "string") for t in texts if not isinstance(t, str)), None
        )
    if message.package == messages.META and message.name != "ObjectMeta":
        return None  # times and the like have forms of their own
    fields = as_object(value)
    if fields is None:
        return given, where, _go_type(entry)
    return _in_message(fields, message, f"{path}.")


def _fits(value: Any, given: str, wanted: str) -> bool:
    if wanted in NUMBERS:
        return isinstance(value, int) and given == "number"
    return given == JSON_TYPES[wanted]


def _go_type(entry: Field) -> str:
    if entry.scalar:
        return "[]uint8" if entry.type == "bytes" else entry.type
    return f"v1.{entry.type.rpartition('.')[2]}"


def _json_type(value: Any) -> str:
    names = ((bool, "bool"), (int | float, "number"), (str, "string"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "array")
