"""The form of a definition: which fields it has and of which types, as Go's decoder knows them.

What Go cannot read into the type is 400; fields that the type does not have are dropped, with a
warning, or refused if the writer wants to be told strictly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver.errors import ApiError, bad_request
from fleetbus_devfleet.apiserver.syntax import type_name
from fleetbus_devfleet.apiserver.tree import as_list, as_object

if TYPE_CHECKING:
    from collections.abc import Mapping

JsonObject = dict[str, Any]
KIND = "CustomResourceDefinition"
STRING, BOOL, INT, FLOAT, ANYTHING = "string", "bool", "int64", "float64", "anything"


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """A Go struct: its name, and its fields with their forms.

    Attributes:
        or_bool: A boolean may stand in its place.
        or_list: A list of such structs may stand in its place.
    """

    name: str
    fields: dict[str, Form] = field(default_factory=dict[str, "Form"])
    or_bool: bool = False
    or_list: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    item: Form


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with texts as keys."""

    value: Form


Form = str | Struct | ListOf | MapOf


def _schema_form() -> Struct:
    props = Struct("JSONSchemaProps")
    either = Struct("JSONSchemaPropsOrBool", props.fields, or_bool=True)
    fields: dict[str, Form] = {
        **dict.fromkeys(("id", "$schema", "$ref", "description", "type", "format"), STRING),
        **dict.fromkeys(("title", "pattern"), STRING),
        **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), STRING),
        **dict.fromkeys(("minimum", "maximum", "multipleOf"), FLOAT),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems"), INT),
        **dict.fromkeys(("maxProperties", "minProperties"), INT),
        **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable"), BOOL),
        "x-kubernetes-preserve-unknown-fields": BOOL,
        "x-kubernetes-embedded-resource": BOOL,
        "x-kubernetes-int-or-string": BOOL,
        "x-kubernetes-list-map-keys": ListOf(STRING),
        "x-kubernetes-validations": ListOf(_RULE),
        **dict.fromkeys(("default", "example"), ANYTHING),
        "enum": ListOf(ANYTHING),
        "required": ListOf(STRING),
        "items": Struct("JSONSchemaPropsOrArray", props.fields, or_list=True),
        **dict.fromkeys(("allOf", "oneOf", "anyOf"), ListOf(props)),
        "not": props,
        **dict.fromkeys(("properties", "patternProperties", "definitions"), MapOf(props)),
        **dict.fromkeys(("additionalProperties", "additionalItems"), either),
        "dependencies": MapOf(ANYTHING),
        "externalDocs": Struct("ExternalDocumentation", {"description": STRING, "url": STRING}),
    }
    props.fields.update(fields)
    return props


_RULE = Struct(
    "ValidationRule",
    {
        **dict.fromkeys(("rule", "message", "messageExpression", "reason", "fieldPath"), STRING),
        "optionalOldSelf": BOOL,
    },
)
_NAMES = Struct(
    "CustomResourceDefinitionNames",
    {
        **dict.fromkeys(("plural", "singular", "kind", "listKind"), STRING),
        "shortNames": ListOf(STRING),
        "categories": ListOf(STRING),
    },
)
_SCALE = Struct(
    "CustomResourceSubresourceScale",
    dict.fromkeys(("specReplicasPath", "statusReplicasPath", "labelSelectorPath"), STRING),
)
_COLUMN = Struct(
    "CustomResourceColumnDefinition",
    {
        **dict.fromkeys(("name", "type", "format", "description", "jsonPath"), STRING),
        "priority": "int32",
    },
)
_VERSION = Struct(
    "CustomResourceDefinitionVersion",
    {
        "name": STRING,
        **dict.fromkeys(("served", "storage", "deprecated"), BOOL),
        "deprecationWarning": STRING,
        "schema": Struct("CustomResourceValidation", {"openAPIV3Schema": _schema_form()}),
        "subresources": Struct(
            "CustomResourceSubresources",
            {"status": Struct("CustomResourceSubresourceStatus"), "scale": _SCALE},
        ),
        "additionalPrinterColumns": ListOf(_COLUMN),
        "selectableFields": ListOf(Struct("SelectableField", {"jsonPath": STRING})),
    },
)
_SERVICE = Struct(
    "ServiceReference",
    {**dict.fromkeys(("namespace", "name", "path"), STRING), "port": "int32"},
)
_WEBHOOK = Struct(
    "WebhookConversion",
    {
        "clientConfig": Struct(
            "WebhookClientConfig", {"url": STRING, "service": _SERVICE, "caBundle": STRING}
        ),
        "conversionReviewVersions": ListOf(STRING),
    },
)
_SPEC = Struct(
    "CustomResourceDefinitionSpec",
    {
        "group": STRING,
        "names": _NAMES,
        "scope": STRING,
        "versions": ListOf(_VERSION),
        "conversion": Struct("CustomResourceConversion", {"strategy": STRING, "webhook": _WEBHOOK}),
        "preserveUnknownFields": BOOL,
    },
)
_CONDITION = Struct(
    "CustomResourceDefinitionCondition",
    {
        **dict.fromkeys(("type", "status", "lastTransitionTime", "reason", "message"), STRING),
        "observedGeneration": INT,
    },
)
_STATUS = Struct(
    "CustomResourceDefinitionStatus",
    {
        "conditions": ListOf(_CONDITION),
        "acceptedNames": _NAMES,
        "storedVersions": ListOf(STRING),
        "observedGeneration": INT,
    },
)
_DEFINITION = Struct(
    KIND,
    {"apiVersion": STRING, "kind": STRING, "metadata": ANYTHING, "spec": _SPEC, "status": _STATUS},
)
_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    STRING: (str,),
    BOOL: (bool,),
    "int32": (int,),
    INT: (int,),
    FLOAT: (int, float),
}


def admit(obj: JsonObject, validation: str, warnings: list[str]) -> None:
    """Read a definition in place: what it cannot have is dropped, null counts as absent.

    Raises:
        ApiError: 400, a field has the wrong type; or, strictly, one that is unknown.
    """
    unknown: list[str] = []
    _read(obj, _DEFINITION, _Place(KIND, ""), unknown)
    if not unknown or validation == "Ignore":
        return
    texts = [f'unknown field "{path}"' for path in unknown]
    if validation == "Strict":
        raise bad_request(f"{_CANNOT}strict decoding error: {', '.join(texts)}")
    warnings.extend(texts)


_CANNOT = f'{KIND} in version "v1" cannot be handled as a {KIND}: '


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a document something stands.

    Attributes:
        struct: The Go struct that has the field.
        path: The path; without the indices, which Go's decoder does not tell, in `fields`.
    """

    struct: str
    path: str
    fields: str = ""

    def field(self, struct: str, name: str) -> _Place:
        return _Place(
            struct, f"{self.path}.{name}".lstrip("."), f"{self.fields}.{name}".lstrip(".")
        )

    def item(self, index: int) -> _Place:
        return _Place(self.struct, f"{self.path}[{index}]", self.fields)


def _read(value: Any, form: Form, place: _Place, unknown: list[str]) -> None:
    if isinstance(form, str):
        if form == ANYTHING:
            return
        if isinstance(value, _JSON_TYPES[form]) and (form == BOOL or not isinstance(value, bool)):
            return
        raise _mismatch(value, form, place)
    if isinstance(form, ListOf):
        _read_list(value, form, place, unknown)
    elif isinstance(form, MapOf):
        fields = as_object(value)
        if fields is None:
            raise _mismatch(value, _go_type(form), place)
        for name, part in fields.items():
            if part is None:
                fields[name] = {}  # Go's zero value of a struct
            _read(fields[name], form.value, place.field(place.struct, name), unknown)
    else:
        _read_struct(value, form, place, unknown)


def _read_list(value: Any, form: ListOf, place: _Place, unknown: list[str]) -> None:
    items = as_list(value)
    if items is None:
        raise _mismatch(value, _go_type(form), place)
    for index, item in enumerate(items):
        if item is None and form.item != ANYTHING:
            items[index] = {} if isinstance(form.item, Struct) else ""  # Go's zero value
        _read(items[index], form.item, place.item(index), unknown)


def _read_struct(value: Any, form: Struct, place: _Place, unknown: list[str]) -> None:
    if form.or_bool and isinstance(value, bool):
        return
    if form.or_list and isinstance(value, list):
        _read_list(value, ListOf(Struct("JSONSchemaProps", form.fields)), place, unknown)
        return
    fields = as_object(value)
    if fields is None:
        raise _mismatch(value, _go_type(form), place)
    for name, part in _present(fields).items():
        known = form.fields.get(name)
        here = place.field(form.name, name)
        if known is None:
            unknown.append(here.path)
            del fields[name]
        else:
            _read(part, known, here, unknown)


def _present(fields: JsonObject) -> JsonObject:
    """The fields that are not null; the others are removed."""
    for name in [name for name, value in fields.items() if value is None]:
        del fields[name]
    return dict(fields)


def _go_type(form: Form) -> str:
    if isinstance(form, str):
        return form
    if isinstance(form, ListOf):
        return f"[]{_go_type(form.item)}"
    if isinstance(form, MapOf):
        return f"map[string]{_go_type(form.value)}"
    return f"v1.{form.name}"


def _mismatch(value: Any, expected: str, place: _Place) -> ApiError:
    found = type_name(value)
    if found == "number" and expected in {INT, "int32"}:
        found = f"number {value}"
    return bad_request(
        f"{_CANNOT}json: cannot unmarshal {found} into Go struct field "
        f"{place.struct}.{place.fields} of type {expected}"
    )
