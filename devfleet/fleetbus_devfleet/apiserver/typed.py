"""Whether the fields of a body are of the types that Kubernetes reads them into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.errors import bad_request
from fleetbus_devfleet.apiserver.tree import as_list, as_object, value_at

if TYPE_CHECKING:
    from collections.abc import Mapping

JsonObject = dict[str, Any]


def check_types(body: JsonObject, kind: str, fields: Mapping[str, str]) -> None:
    """Refuse a body with a field of a wrong type; absent and null fields are well.

    Args:
        body: The document.
        kind: Its kind, of version v1.
        fields: The Go type by path: `{"spec.groups": "[]string"}`. Known are string, int64, object,
            []string and map[string][]string.

    Raises:
        ApiError: 400.
    """
    for path, wanted in fields.items():
        value = value_at(body, *path.split("."))
        found = None if value is None else _mismatch(value, wanted)
        if found is not None:
            struct = f"{kind}Spec" if path.startswith("spec.") else kind
            given, type_name = found
            raise bad_request(
                f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal '
                f"{given} into Go struct field {struct}.{path} of type {type_name}"
            )


def _mismatch(value: Any, wanted: str) -> tuple[str, str] | None:
    """The JSON type that was found and the Go type that it does not fit; None if all is well."""
    if wanted.startswith("map[string]"):
        fields = as_object(value)
        if fields is None:
            return _json_type(value), wanted
        return _first(fields.values(), wanted.removeprefix("map[string]"))
    if wanted.startswith("[]"):
        items = as_list(value)
        return (_json_type(value), wanted) if items is None else _first(items, wanted[2:])
    expected = {"string": "string", "int64": "number", "object": "object"}[wanted]
    if _json_type(value) != expected or (wanted == "int64" and not isinstance(value, int)):
        return _json_type(value), wanted
    return None


def _first(values: Any, wanted: str) -> tuple[str, str] | None:
    return next((bad for value in values if (bad := _mismatch(value, wanted))), None)


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    return "object" if isinstance(value, dict) else "array"
