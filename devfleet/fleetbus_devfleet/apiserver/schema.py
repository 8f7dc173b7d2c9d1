"""The schema of a custom resource: prune, default, validate, in this order.

jsonschema does the validation; it neither prunes nor defaults, and knows nothing of nullable and
the x-kubernetes-* extensions, so the schema is translated for it once per version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import orjson
from jsonschema import Draft202012Validator

from fleetbus_devfleet.apiserver.errors import Cause, bad_request
from fleetbus_devfleet.apiserver.shapes import ATOMIC, BUILTIN, MAP, NO_DEFAULT, Shape
from fleetbus_devfleet.apiserver.tree import as_object, listing, mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.exceptions import ValidationError

JsonObject = dict[str, Any]
TOP = ("apiVersion", "kind", "metadata")
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
KEPT_KEYWORDS = frozenset(
    [
        "type",
        "enum",
        "minimum",
        "maximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "required",
    ]
)


class Schema:
    """The schema of one version of a custom resource.

    Args:
        source: The openAPIV3Schema.
        kind: Names the kind in messages.
        version: Names the version in messages.
    """

    def __init__(self, source: JsonObject, kind: str, version: str) -> None:
        self.source = source
        self._kind = kind
        self._version = version
        properties = {k: v for k, v in _properties(source).items() if k not in TOP}
        self._source = {**source, "properties": properties}
        required = [name for name in listing(source, "required") if name not in TOP]
        self._validator = Draft202012Validator(translate({**self._source, "required": required}))
        self._has_defaults = _mentions(self._source, "default")

    def admit(self, obj: JsonObject, validation: str, warnings: list[str]) -> None:
        """Prune and default an object in place; unknown fields are refused or warned of."""
        unknown: list[str] = []
        for name in [name for name in obj if name not in TOP]:
            part = _properties(self._source).get(name)
            if part is not None:
                _prune(obj[name], part, name, unknown)
            elif not self._source.get(PRESERVE):
                unknown.append(name)
                del obj[name]
        self._complain(unknown, validation, warnings)
        _drop_nulls(obj, self._source)
        if self._has_defaults:
            _default(obj, self._source)

    def _complain(self, unknown: list[str], validation: str, warnings: list[str]) -> None:
        if not unknown or validation == "Ignore":
            return
        texts = [f'unknown field "{path}"' for path in unknown]
        if validation != "Strict":
            warnings.extend(texts)
            return
        raise bad_request(
            f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: '
            f"strict decoding error: {', '.join(texts)}"
        )

    def problems(self, obj: JsonObject) -> list[Cause]:
        """What the schema objects to."""
        instance = {name: value for name, value in obj.items() if name not in TOP}
        errors = cast("Iterator[ValidationError]", self._validator.iter_errors(instance))  # pyright: ignore[reportUnknownMemberType]
        causes = [cause for error in errors for cause in _causes(error)]
        return sorted(causes, key=lambda cause: cause.field)


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    return mapping(schema, "properties")


def _additional(schema: JsonObject) -> JsonObject | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return cast("JsonObject", additional)
    return {PRESERVE: True} if additional is True else None


def _mentions(schema: Any, keyword: str) -> bool:
    if isinstance(schema, dict):
        parts = cast("JsonObject", schema)
        return keyword in parts or any(_mentions(part, keyword) for part in parts.values())
    if isinstance(schema, list):
        return any(_mentions(part, keyword) for part in cast("list[Any]", schema))
    return False


# prune and default ------------------------------------------------------------------------------


def _prune(value: Any, schema: JsonObject, path: str, unknown: list[str]) -> None:
    if isinstance(value, list):
        items: JsonObject = mapping(schema, "items")
        for index, item in enumerate(cast("list[Any]", value)):
            _prune(item, items, f"{path}[{index}]", unknown)
        return
    if not isinstance(value, dict):
        return
    fields = cast("JsonObject", value)
    properties, additional = _properties(schema), _additional(schema)
    for name in list(fields):
        here = f"{path}.{name}"
        if name in properties:
            _prune(fields[name], properties[name], here, unknown)
        elif additional is not None:
            _prune(fields[name], additional, here, unknown)
        elif not (schema.get(PRESERVE) or (schema.get(EMBEDDED) and name in TOP)):
            unknown.append(here)
            del fields[name]


def _drop_nulls(value: Any, schema: JsonObject) -> None:
    """A null where the schema does not allow one counts as absent."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _drop_nulls(item, mapping(schema, "items"))
        return
    if not isinstance(value, dict):
        return
    fields, properties = cast("JsonObject", value), _properties(schema)
    for name in list(fields):
        part = properties.get(name) or _additional(schema)
        if part is None:
            continue
        if fields[name] is None:
            if name in properties and not part.get("nullable"):
                del fields[name]
        else:
            _drop_nulls(fields[name], part)


def _default(value: Any, schema: JsonObject) -> None:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _default(item, mapping(schema, "items"))
        return
    if not isinstance(value, dict):
        return
    fields = cast("JsonObject", value)
    for name, part in _properties(schema).items():
        if name not in fields and "default" in part:
            fields[name] = orjson.loads(orjson.dumps(part["default"]))
        if name in fields:
            _default(fields[name], part)
    additional = _additional(schema)
    if additional is not None:
        for name in fields.keys() - _properties(schema).keys():
            _default(fields[name], additional)


# validate ---------------------------------------------------------------------------------------


def translate(schema: JsonObject) -> JsonObject:
    """The JSON Schema (2020-12) for a structural schema."""
    out = {key: value for key, value in schema.items() if key in KEPT_KEYWORDS}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in out:
            out[exclusive] = out.pop(bound)
    if schema.get("properties"):
        out["properties"] = {name: translate(p) for name, p in _properties(schema).items()}
    for single in ("additionalProperties", "items", "not"):
        part = as_object(schema.get(single))
        if part is not None:
            out[single] = translate(part)
    for many in ("allOf", "anyOf", "oneOf"):
        if schema.get(many):
            out[many] = [translate(part) for part in schema[many]]
    if schema.get(INT_OR_STRING):
        out["type"] = ["integer", "string"]
    if schema.get("nullable"):
        return {"anyOf": [{"type": "null"}, out]}
    return out


def _causes(error: ValidationError) -> list[Cause]:
    path = _path(list(error.absolute_path))
    instance: Any = error.instance  # pyright: ignore[reportUnknownMemberType]
    rule = cast("Any", error.validator)
    limit = cast("Any", error.validator_value)  # pyright: ignore[reportUnknownMemberType]
    if rule == "required":
        missing = [name for name in limit if name not in instance]
        prefix = f"{path}." if path else ""
        # jsonschema reports each missing name on its own; the name stands quoted in the message.
        named = [name for name in missing if f"'{name}'" in error.message]
        return [Cause(f"{prefix}{n}", "Required value", "FieldValueRequired") for n in named]
    if rule == "anyOf" and error.context:
        return [cause for inner in error.context for cause in _nullable(inner)]
    shown = orjson.dumps(instance).decode()
    if rule == "enum":
        supported = ", ".join(orjson.dumps(value).decode() for value in limit)
        why = f"Unsupported value: {shown}: supported values: {supported}"
        return [Cause(path, why, "FieldValueNotSupported")]
    if rule == "type":
        return [_wrong_type(path, instance, limit)]
    text = _WORDING.get(str(rule), "does not satisfy {rule} {limit}").format(rule=rule, limit=limit)
    return [Cause(path, f"Invalid value: {shown}: {path} in body {text}")]


def _nullable(inner: ValidationError) -> list[Cause]:
    return [] if inner.validator_value == "null" else _causes(inner)  # pyright: ignore[reportUnknownMemberType]


_WORDING = {
    "minimum": "should be greater than or equal to {limit}",
    "maximum": "should be less than or equal to {limit}",
    "exclusiveMinimum": "should be greater than {limit}",
    "exclusiveMaximum": "should be less than {limit}",
    "multipleOf": "should be a multiple of {limit}",
    "minLength": "should be at least {limit} chars long",
    "maxLength": "should be at most {limit} chars long",
    "pattern": "should match '{limit}'",
    "minItems": "should have at least {limit} items",
    "maxItems": "should have at most {limit} items",
    "uniqueItems": "shouldn't contain duplicates",
    "minProperties": "should have at least {limit} properties",
    "maxProperties": "should have at most {limit} properties",
    "not": "must not validate the schema (not)",
    "oneOf": "must validate one and only one schema (oneOf)",
    "anyOf": "must validate at least one schema (anyOf)",
}


def _wrong_type(path: str, instance: Any, expected: Any) -> Cause:
    wanted = expected if isinstance(expected, str) else "integer or string"
    names = (
        (dict, "object"),
        (list, "array"),
        (str, "string"),
        (bool, "boolean"),
        (int, "integer"),
    )
    found = (
        "null"
        if instance is None
        else next((name for kind, name in names if isinstance(instance, kind)), "number")
    )
    why = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
    return Cause(path, why, "FieldValueTypeInvalid")


def _path(steps: list[str | int]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


# merging ----------------------------------------------------------------------------------------


def shape_of(schema: JsonObject) -> Shape:
    """How server-side apply merges objects of this schema."""
    shape = _shape(schema)
    shape.fields["metadata"] = BUILTIN
    return shape


def _shape(schema: JsonObject) -> Shape:
    shape = Shape(atomic=schema.get("x-kubernetes-map-type") == ATOMIC)
    shape.list_type = schema.get("x-kubernetes-list-type") or ATOMIC
    shape.fields = {name: _shape(part) for name, part in _properties(schema).items()}
    items: JsonObject = mapping(schema, "items")
    if items:
        shape.rest = _shape(items)
    elif (additional := _additional(schema)) is not None:
        shape.rest = _shape(additional)
    if shape.list_type == MAP:
        properties = _properties(items)
        shape.keys = {
            key: properties.get(key, {}).get("default", NO_DEFAULT)
            for key in listing(schema, "x-kubernetes-list-map-keys")
        }
    return shape
