"""The JSON types of well-known fields: what Go's decoder would refuse is refused here.

Everything behind this check may rely on `spec` being an object, `labels` mapping strings to
strings, `containers` being a list of objects, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.errors import ApiError, bad_request
from fleetbus_devfleet.apiserver.tree import as_list, as_object

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.served import Served

JsonObject = dict[str, Any]
STRING_MAPS = frozenset({"labels", "annotations", "matchLabels", "nodeSelector"})
STRINGS = frozenset({"name", "generateName", "namespace", "uid", "resourceVersion"})
STRING_LISTS = frozenset({"finalizers"})
OBJECT_LISTS = frozenset(
    {
        "conditions",
        "containerStatuses",
        "containers",
        "env",
        "initContainers",
        "managedFields",
        "matchExpressions",
        "ownerReferences",
        "ports",
        "tolerations",
        "volumeMounts",
        "volumes",
    }
)
OBJECTS = frozenset({"jobTemplate", "metadata", "spec", "strategy", "template"})
INTEGERS = frozenset({"completions", "parallelism", "replicas", "terminationGracePeriodSeconds"})
# Schemas have such names anywhere, and an EndpointSlice's conditions are an object.
OTHERWISE = frozenset({"apiextensions.k8s.io", "discovery.k8s.io"})
USER_DATA = frozenset({"data", "binaryData", "stringData"})


def check_metadata(served: Served, obj: JsonObject) -> None:
    """Refuse metadata whose fields have the wrong types.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    for name in ("metadata", "spec", "status"):
        if name != "metadata" and served.rtype.custom:
            continue  # its schema tells more precisely
        if obj.get(name) is not None and as_object(obj[name]) is None:
            raise _mismatch(served, name, obj[name], "object")
    meta = as_object(obj.get("metadata")) or {}
    for name, value in meta.items():
        _check_field(served, f"metadata.{name}", name, value)
        if name in STRINGS and value is not None and not isinstance(value, str):
            raise _mismatch(served, f"metadata.{name}", value, "string")


def check_body(served: Served, obj: JsonObject) -> None:
    """Refuse a built-in object whose well-known fields have the wrong types.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    if served.rtype.group not in OTHERWISE:
        _check_fields(served, "", {k: v for k, v in obj.items() if k != "metadata"})


def _check_fields(served: Served, place: str, fields: JsonObject) -> None:
    for name, value in fields.items():
        here = f"{place}.{name}".removeprefix(".")
        _check_field(served, here, name, value)
        if name not in STRING_MAPS and name not in USER_DATA:
            _descend(served, here, value)


def _descend(served: Served, place: str, value: Any) -> None:
    fields = as_object(value)
    if fields is not None:
        _check_fields(served, place, fields)
    for item in as_list(value) or []:
        _descend(served, place, item)


def _check_field(served: Served, place: str, name: str, value: Any) -> None:
    if value is None:
        return
    expected = _expected(name, value)
    if expected is not None:
        raise _mismatch(served, place, value, expected)


def _expected(name: str, value: Any) -> str | None:
    """The Go type that a field should have had; None if it has it or may have any."""
    if name in STRING_MAPS:
        fields = as_object(value)
        fits = fields is not None and all(isinstance(v, str | None) for v in fields.values())
        return None if fits else "map[string]string"
    if name in STRING_LISTS:
        items = as_list(value)
        fits = items is not None and all(isinstance(item, str) for item in items)
        return None if fits else "[]string"
    if name in OBJECT_LISTS:
        items = as_list(value)
        fits = items is not None and all(as_object(item) is not None for item in items)
        return None if fits else "[]object"
    if name in OBJECTS:
        return None if as_object(value) is not None else "object"
    if name in INTEGERS:
        return None if isinstance(value, int) and not isinstance(value, bool) else "int32"
    return None


def _mismatch(served: Served, place: str, value: Any, expected: str) -> ApiError:
    names = ((dict, "object"), (list, "array"), (str, "string"), (bool, "bool"))
    found = next((name for kind, name in names if isinstance(value, kind)), "number")
    kind = served.rtype.kind
    return bad_request(
        f'{kind} in version "{served.version.name}" cannot be handled as a {kind}: json: cannot '
        f"unmarshal {found} into Go struct field {kind}.{place} of type {expected}"
    )
