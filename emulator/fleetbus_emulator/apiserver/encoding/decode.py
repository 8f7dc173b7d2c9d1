"""Reading bodies as Go does: of the built-in types whole, of custom resources the metadata.

Everything behind this may rely on `spec` being an object, `labels` mapping texts to texts,
`containers` being a list of objects, and so on; and nothing is there that Go would not keep.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.definitions.go_type import DEFINITION
from fleetbus_emulator.apiserver.encoding import go_types, messages
from fleetbus_emulator.apiserver.encoding.go_types import Form, Leaf, ListOf, MapOf, Struct
from fleetbus_emulator.apiserver.errors import ApiError, StrictError, bad_request
from fleetbus_emulator.apiserver.json_tree import as_object

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.encoding.messages import Field
    from fleetbus_emulator.apiserver.types.served import Served

JsonObject = dict[str, Any]
ANYTHING = Leaf("any")
OWN_FORMS: dict[str, Form] = {
    "k8s.io.api.authentication.v1.ExtraValue": ListOf(Leaf("string")),
    "k8s.io.api.authorization.v1.ExtraValue": ListOf(Leaf("string")),
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": ANYTHING,
    "k8s.io.apimachinery.pkg.runtime.RawExtension": ANYTHING,
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": Leaf("Time"),
    "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": Leaf("MicroTime"),
    "k8s.io.apimachinery.pkg.api.resource.Quantity": Leaf("Quantity"),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": Leaf("IntOrString"),
}
DELETE_OPTIONS = "DeleteOptions"
OBJECT_META = f"{messages.META}.ObjectMeta"


def read(served: Served, obj: JsonObject, previous: JsonObject | None = None) -> list[str]:
    """Read an object in place; returns the paths of the fields that it does not have.

    The fields of custom resources are their schema's business, and so are the paths of these.
    What is as in `previous`, an object that was read before, is not read again.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    try:
        return (
            read_unwrapped(served, obj)
            if previous is None
            else _read_changes(served, obj, previous)
        )
    except go_types.DecodeError as problem:
        raise cannot_be_handled(served, str(problem)) from None


def read_unwrapped(served: Served, obj: JsonObject) -> list[str]:
    """Decode like `read`, for callers with an error message of their own.

    Raises:
        Unreadable: A field has the wrong type.
    """
    if served.rtype.custom:
        return _read_metadata(obj)
    return go_types.read(obj, _struct_of(obj["apiVersion"], obj["kind"]))


def problems_of_apply(served: Served, obj: JsonObject) -> tuple[list[tuple[str, str]], str]:
    """All that server-side apply finds wrong in an object; see `go_types.problems_of`."""
    if not served.rtype.custom:
        return go_types.problems_of(obj, _struct_of(obj["apiVersion"], obj["kind"]))
    if obj.get("metadata") is None:
        return [], ""
    return go_types.problems_of({"metadata": obj["metadata"]}, _WITH_METADATA)


def _read_changes(served: Served, obj: JsonObject, previous: JsonObject) -> list[str]:
    names = ("apiVersion", "kind")
    same = {n for n, value in obj.items() if n not in names and previous.get(n) == value}
    changed = {n: value for n, value in obj.items() if n not in same}
    paths = read_unwrapped(served, changed)
    for name in [name for name in obj if name not in same and name not in changed]:
        del obj[name]
    return paths


def read_review(
    obj: JsonObject, api_version: str, kind: str, validation: str, warnings: list[str]
) -> None:
    """Read, in place, a document that is answered and not stored, and warn of unknown fields.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    version = api_version.rpartition("/")[2]
    try:
        texts = unknown(go_types.read(obj, _struct_of(api_version, kind)))
    except go_types.DecodeError as problem:
        raise _cannot_be_handled(kind, version, str(problem)) from None
    _report_fields(kind, version, texts, validation, warnings)


def read_delete_options(obj: JsonObject) -> None:
    """Read, in place, the parameters of a delete.

    Raises:
        ApiError: 400, as from Go's decoder.
    """
    try:
        go_types.read(obj, _struct(f"{messages.META}.{DELETE_OPTIONS}"))
    except go_types.DecodeError as problem:
        raise _cannot_be_handled(DELETE_OPTIONS, "v1", str(problem)) from None


def cannot_be_handled(served: Served, why: str) -> ApiError:
    """400: the document is none of the type."""
    return _cannot_be_handled(served.rtype.kind, served.version.name, why)


def _cannot_be_handled(kind: str, version: str, why: str) -> ApiError:
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')


def unknown(paths: list[str]) -> list[str]:
    """The warnings for unknown fields."""
    return [f'unknown field "{path}"' for path in paths]


def report_fields(served: Served, texts: list[str], validation: str, warnings: list[str]) -> None:
    """Warn of unknown or duplicate fields or refuse them, as fieldValidation says.

    Raises:
        ApiError: 400, strictly.
    """
    _report_fields(served.rtype.kind, served.version.name, texts, validation, warnings)


def _report_fields(
    kind: str, version: str, texts: list[str], validation: str, warnings: list[str]
) -> None:
    if not texts or validation == "Ignore":
        return
    if validation == "Strict":
        raise StrictError(kind, version, texts)
    warnings.extend(texts)


def _read_metadata(obj: JsonObject) -> list[str]:
    # Everything but the metadata is read later, with the schema.
    if obj.get("metadata") is None:
        return []
    return go_types.read({"metadata": obj["metadata"]}, _WITH_METADATA)


@cache
def _struct_of(api_version: str, kind: str) -> Struct:
    message = messages.of_kind(api_version, kind)
    if message is None:  # the one built-in type that the table does not know
        return Struct(DEFINITION.name, {**DEFINITION.fields, "metadata": _struct(OBJECT_META)})
    struct = _struct(message.full_name)
    head: dict[str, Form] = {"apiVersion": Leaf("string"), "kind": Leaf("string")}
    return Struct(struct.name, {**head, **struct.fields}, struct.package)


@cache
def _struct(full_name: str) -> Struct:
    message = messages.message(full_name)
    package = message.package.rpartition(".")[2]
    struct = Struct(message.name, package=package)
    for name, entry in messages.json_fields(full_name).items():
        struct.fields[name] = _type_of(entry)
    return struct


def _type_of(entry: Field) -> Form:
    if entry.scalar:
        name = "[]byte" if entry.type == "bytes" else entry.type
        item: Form = Leaf(name, kept=entry.kept or entry.is_list or entry.is_map)
    else:
        item = OWN_FORMS.get(entry.type) or _struct(entry.type)
    if entry.is_list:
        return ListOf(item)
    return MapOf(item) if entry.is_map else item


_WITH_METADATA = Struct("ObjectMeta", {"metadata": _struct(OBJECT_META)})


def metadata_of(obj: JsonObject) -> JsonObject:
    """The metadata of an object that was read, ours to change."""
    meta = as_object(obj.get("metadata")) or {}
    obj["metadata"] = meta
    return meta
