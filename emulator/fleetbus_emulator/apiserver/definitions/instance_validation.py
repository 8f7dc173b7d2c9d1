"""Whether a custom resource is what its schema demands, with causes worded as Kubernetes' are.

jsonschema does the checking. It knows nothing of nullable and of the x-kubernetes-* extensions, so
the schema is translated for it once per version; its patterns are run by an engine like Go's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import orjson
from jsonschema import Draft202012Validator, FormatChecker, validators
from jsonschema.exceptions import FormatError, ValidationError

from fleetbus_emulator.apiserver.definitions.formats import is_of_format
from fleetbus_emulator.apiserver.definitions.patterns import is_matched, pattern_problem
from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.json_tree import as_list, as_object, listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import duplicate, invalid, required, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
NULL = {"type": "null"}
KEPT_KEYWORDS = frozenset(
    [
        *("type", "format", "enum", "pattern", "required", "minLength", "maxLength"),
        *("minimum", "maximum", "multipleOf", "minItems", "maxItems"),
        *("minProperties", "maxProperties"),
    ]
)


class Validator:
    """Checks the values of one schema.

    Args:
        source: A structural schema.
    """

    def __init__(self, source: JsonObject) -> None:
        self._source = source
        self._validator = _Checker(_translated(source), format_checker=_FORMATS)
        self._has_keyed_lists = _mentions_keyed_lists(source)

    def problems(self, instance: JsonObject) -> list[Cause]:
        """Validate an object; errors by field."""
        errors = cast("Iterator[ValidationError]", self._validator.iter_errors(instance))  # pyright: ignore[reportUnknownMemberType]
        causes = [cause for error in errors for cause in _causes(error)]
        causes.sort(key=lambda cause: cause.field)
        if self._has_keyed_lists:
            causes += _duplicates(instance, self._source, "")
        return causes


class _Formats(FormatChecker):
    """Kubernetes' formats; numbers may have one too."""

    def conforms(self, instance: object, format: str) -> bool:  # noqa: A002 - jsonschema's name
        """Whether the value is of the format."""
        return is_of_format(format, instance)

    def check(self, instance: object, format: str) -> None:  # noqa: A002 - jsonschema's name
        """Raise FormatError if the value is not of the format."""
        if not is_of_format(format, instance):
            raise FormatError(f"not of format {format}")


def _check_pattern(
    _checker: object, pattern: str, instance: object, _schema: object
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not is_matched(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Checker = cast(
    "type[Draft202012Validator]",
    validators.extend(Draft202012Validator, {"pattern": _check_pattern}),
)


# translation ------------------------------------------------------------------------------------


def _translated(schema: JsonObject) -> JsonObject:
    """The JSON Schema (2020-12) for a structural schema."""
    out = {key: value for key, value in schema.items() if key in KEPT_KEYWORDS}
    _translate_numbers(out, schema)
    pattern = out.pop("pattern", None)
    if pattern and pattern_problem(pattern) is None:  # restored definitions are not validated
        out["pattern"] = pattern
    properties: JsonObject = mapping(schema, "properties")
    if properties:
        out["properties"] = {name: _translated(subschema) for name, subschema in properties.items()}
    for single in ("additionalProperties", "items", "not"):
        subschema = as_object(schema.get(single))
        if subschema is not None:
            out[single] = _translated(subschema)
    for many in ("allOf", "anyOf", "oneOf"):
        if schema.get(many):
            out[many] = [_translated(subschema) for subschema in schema[many]]
    if schema.get(INT_OR_STRING):
        out["type"] = ["integer", "string"]
    return {"anyOf": [NULL, out]} if schema.get("nullable") else out


def _translate_numbers(out: JsonObject, schema: JsonObject) -> None:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(exclusive) is True and bound in out:
            out[exclusive] = out.pop(bound)
    if out.get("multipleOf", 1) <= 0:
        del out["multipleOf"]


# causes -----------------------------------------------------------------------------------------


def _causes(error: ValidationError) -> list[Cause]:
    path = _path(list(error.absolute_path))
    instance: Any = error.instance  # pyright: ignore[reportUnknownMemberType]
    rule = str(cast("Any", error.validator))
    limit = cast("Any", error.validator_value)  # pyright: ignore[reportUnknownMemberType]
    if rule == "required":
        return _missing(error, instance, limit, path)
    if rule == "anyOf" and limit[0] == NULL:
        return [cause for inner in error.context or () for cause in _of_nullable(inner)]
    if rule in {"anyOf", "oneOf", "not"}:
        return [_of_junctor(rule, instance, limit, path)]
    return [_of_value(rule, instance, limit, path)]


def _of_value(rule: str, instance: Any, limit: Any, path: str) -> Cause:
    match rule:
        case "enum":
            texts = [v if isinstance(v, str) else orjson.dumps(v).decode() for v in limit]
            return unsupported(path, instance, texts)
        case "type" | "format":
            return _wrong_type(path, instance, limit, of_format=rule == "format")
        case "maxLength":
            why = f"Too long: may not be more than {limit} bytes"
            return Cause(path, why, "FieldValueTooLong")
        case "maxItems" | "maxProperties":
            items = "item" if limit == 1 else "items"
            why = f"Too many: {len(instance)}: must have at most {limit} {items}"
            return Cause(path, why, "FieldValueTooMany")
        case _:
            text = _WORDING[rule].format(limit=limit)
            return invalid(path, instance, f"{path} in body {text}")


def _missing(error: ValidationError, instance: Any, names: list[str], path: str) -> list[Cause]:
    prefix = f"{path}." if path else ""
    # jsonschema reports each missing name on its own; the name is quoted in the message.
    named = [name for name in names if name not in instance and repr(name) in error.message]
    return [required(f"{prefix}{name}") for name in named]


def _of_nullable(inner: ValidationError) -> list[Cause]:
    return [] if inner.validator_value == "null" else _causes(inner)  # pyright: ignore[reportUnknownMemberType]


def _of_junctor(rule: str, instance: Any, schemas: Any, path: str) -> Cause:
    """Kubernetes reports these without a field."""
    text = {
        "anyOf": "must validate at least one schema (anyOf)",
        "not": "must not validate the schema (not)",
    }.get(rule)
    if text is None:
        valid = sum(_Checker(schema).is_valid(instance) for schema in schemas)  # pyright: ignore[reportUnknownMemberType]
        explanation = f"Found {valid} valid alternatives" if valid else "Found none valid"
        text = f"must validate one and only one schema (oneOf). {explanation}"
    return invalid("<nil>", "", f'"{path}" {text}')


_WORDING = {
    "minimum": "should be greater than or equal to {limit}",
    "maximum": "should be less than or equal to {limit}",
    "exclusiveMinimum": "should be greater than {limit}",
    "exclusiveMaximum": "should be less than {limit}",
    "multipleOf": "should be a multiple of {limit}",
    "minLength": "should be at least {limit} chars long",
    "pattern": "should match '{limit}'",
    "minItems": "should have at least {limit} items",
    "minProperties": "should have at least {limit} properties",
}


def _wrong_type(path: str, instance: Any, expected: Any, *, of_format: bool) -> Cause:
    allowed = expected if isinstance(expected, str) else "integer or string"
    names = ((dict, "object"), (list, "array"), (str, "string"), (bool, "boolean"))
    actual = next((name for kind, name in names if isinstance(instance, kind)), None)
    if actual is None:
        actual = (
            "null" if instance is None else "integer" if isinstance(instance, int) else "number"
        )
    text = orjson.dumps(instance if of_format else actual).decode()
    why = f"Invalid value: {text}: {path} in body must be of type {allowed}: {text}"
    return Cause(path, why, "FieldValueTypeInvalid")


def _path(steps: list[str | int]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


# sets and keyed lists ---------------------------------------------------------------------------


def _mentions_keyed_lists(schema: JsonObject) -> bool:
    if schema.get(LIST_TYPE) in {"set", "map"}:
        return True
    single = (as_object(schema.get(name)) for name in ("items", "additionalProperties"))
    parts = [*mapping(schema, "properties").values(), *single]
    return any(_mentions_keyed_lists(subschema) for subschema in parts if subschema)


def _duplicates(value: Any, schema: JsonObject, path: str) -> list[Cause]:
    """Errors for duplicates in sets and keyed lists."""
    causes: list[Cause] = []
    items = as_list(value)
    if items is not None:
        subschema: JsonObject = mapping(schema, "items")
        keys = listing(schema, LIST_KEYS) if schema.get(LIST_TYPE) == "map" else None
        if schema.get(LIST_TYPE) in {"set", "map"}:
            causes += _repeated(items, keys, path)
        for index, item in enumerate(items):
            causes += _duplicates(item, subschema, f"{path}[{index}]")
    additional: JsonObject = mapping(schema, "additionalProperties")
    for name, below in mapping(value).items():
        subschema = mapping(schema, "properties", name) or additional
        if subschema:
            causes += _duplicates(below, subschema, f"{path}.{name}".removeprefix("."))
    return causes


def _repeated(items: list[Any], keys: list[str] | None, path: str) -> list[Cause]:
    texts: set[bytes] = set()
    causes: list[Cause] = []
    for index, item in enumerate(items):
        value = item if keys is None else {k: item[k] for k in keys if k in mapping(item)}
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if text in texts:
            causes.append(duplicate(f"{path}[{index}]", value))
        texts.add(text)
    return causes


_FORMATS = _Formats()
