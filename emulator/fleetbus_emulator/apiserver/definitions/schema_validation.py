"""Validation of the schema of a definition: known keywords, and structural schemas.

A structural schema gives the type of every value once, outside of allOf, anyOf, oneOf and not, so
that pruning and defaulting need look nowhere else. As on a real server the keywords come first;
only a schema whose keywords are well is looked at for structure, and only then for its defaults.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.definitions.patterns import pattern_problem
from fleetbus_emulator.apiserver.definitions.schema import Schema
from fleetbus_emulator.apiserver.json_tree import as_object, listing, mapping
from fleetbus_emulator.apiserver.types.field_errors import forbidden, invalid, required, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fleetbus_emulator.apiserver.errors import Cause

JsonObject = dict[str, Any]
TYPES = ("array", "boolean", "integer", "number", "object", "string")
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
METADATA = frozenset({"apiVersion", "kind", "metadata"})
UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
FORBIDDEN_AT_ROOT_WITH_STATUS = (
    *("allOf", "anyOf", "oneOf", "not", "enum", "default", "additionalProperties", "nullable"),
    *("minProperties", "maxProperties", EMBEDDED, INT_OR_STRING, LIST_TYPE, LIST_KEYS, MAP_TYPE),
)
# Keywords that are forbidden within allOf, anyOf, oneOf and not.
NOT_NESTED = (
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (PRESERVE, "must be false to be structural"),
    (EMBEDDED, "must be false to be structural"),
    (INT_OR_STRING, "must be false to be structural"),
    (LIST_KEYS, "must be empty to be structural"),
    (LIST_TYPE, "must be undefined to be structural"),
)
ROOT, ITEM, FIELD = "at the root", "for specified array items", "for specified object fields"
# How a schema may say again what x-kubernetes-int-or-string says.
INTEGER_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def schema_problems(schema: JsonObject, place: str, *, with_status: bool) -> list[Cause]:
    """Validate the schema of a version that has, or has not, the status subresource."""
    if not schema:
        return []
    causes = _root_problems(schema, place, with_status=with_status)
    causes += _keyword_problems(schema, place, is_root=True)
    structural = _structure_problems(schema, place, ROOT)
    if structural:
        return causes + sorted(structural, key=lambda cause: (cause.field, cause.message))
    return causes or list(_default_problems(schema, place))


def _root_problems(schema: JsonObject, place: str, *, with_status: bool) -> list[Cause]:
    causes: list[Cause] = []
    if with_status and schema.get("type", "object") != "object":
        why = (
            'only "object" is allowed as the type at the root of the schema if the status '
            "subresource is enabled"
        )
        causes.append(invalid(f"{place}.type", schema["type"], why))
    elif with_status and any(schema.get(name) for name in FORBIDDEN_AT_ROOT_WITH_STATUS):
        why = (
            "only [Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum "
            "MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items "
            "Properties ExternalDocs Example XPreserveUnknownFields XValidations] fields are "
            "allowed at the root of the schema if the status subresource is enabled"
        )
        causes.append(invalid(place, schema, why))
    if schema.get("nullable"):
        causes.append(forbidden(f"{place}.nullable", "nullable cannot be true at the root"))
    return causes


def _parts(schema: JsonObject, place: str) -> Iterator[tuple[str, str, JsonObject]]:
    """(keyword, place, schema) of the schemas directly within one."""
    for keyword in ("additionalProperties", "items", "not"):
        subschema = as_object(schema.get(keyword))
        if subschema is not None:
            yield keyword, f"{place}.{keyword}", subschema
    for name, subschema in mapping(schema, "properties").items():
        yield "properties", f"{place}.properties[{name}]", subschema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, subschema in enumerate(listing(schema, keyword)):
            yield keyword, f"{place}.{keyword}[{index}]", subschema


# keywords ---------------------------------------------------------------------------------------


def _keyword_problems(schema: JsonObject, place: str, *, is_root: bool = False) -> list[Cause]:
    causes = _plain_keywords(schema, place)
    if is_root:
        causes += [
            forbidden(f"{where}.default", f"must not be set in top-level {name}")
            for name in METADATA
            for where in _defaults_below(
                mapping(schema, "properties").get(name), f"{place}.properties[{name}]"
            )
        ]
    if schema.get("additionalProperties", True) is not True and schema.get("properties"):
        why = "additionalProperties and properties are mutual exclusive"
        causes.append(forbidden(f"{place}.additionalProperties", why))
    causes += _merge_keywords(schema, place)
    for _, where, subschema in _parts(schema, place):
        causes += _keyword_problems(subschema, where)
    return causes


def _plain_keywords(schema: JsonObject, place: str) -> list[Cause]:
    causes: list[Cause] = []
    type_name = schema.get("type")
    if type_name and type_name not in TYPES:
        causes.append(unsupported(f"{place}.type", type_name, TYPES))
    found_unsupported = (keyword for keyword in UNSUPPORTED if schema.get(keyword))
    causes += [forbidden(f"{place}.{k}", f"{k} is not supported") for k in found_unsupported]
    if type_name == "null":
        why = "type cannot be set to null, use nullable as an alternative"
        causes.append(forbidden(f"{place}.type", why))
    if isinstance(schema.get("items"), list):
        why = "items must be a schema object and not an array"
        causes.append(forbidden(f"{place}.items", why))
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        causes.append(forbidden(f"{place}.uniqueItems", why))
    if schema.get(PRESERVE) is False:
        causes.append(invalid(f"{place}.{PRESERVE}", False, "must be true or undefined"))
    for index, rule in enumerate(listing(schema, "x-kubernetes-validations")):
        if not str(rule.get("rule") or "").strip():
            where = f"{place}.x-kubernetes-validations[{index}].rule"
            causes.append(required(where, "rule is not specified"))
    return causes


def _defaults_below(schema: Any, place: str) -> list[str]:
    fields = as_object(schema)
    if fields is None:
        return []
    here = [place] if "default" in fields else []
    return here + [at for _, where, p in _parts(fields, place) for at in _defaults_below(p, where)]


def _merge_keywords(schema: JsonObject, place: str) -> list[Cause]:
    causes: list[Cause] = []
    for keyword, type_name, supported in (
        (MAP_TYPE, "object", ("atomic", "granular")),
        (LIST_TYPE, "array", ("atomic", "set", "map")),
    ):
        value = schema.get(keyword)
        if value is None:
            continue
        why = f"must be {type_name} if {keyword} is specified"
        if not schema.get("type"):
            causes.append(required(f"{place}.type", why))
        elif schema["type"] != type_name:
            causes.append(invalid(f"{place}.type", schema["type"], why))
        if value not in supported:
            causes.append(unsupported(f"{place}.{keyword}", value, supported))
    list_type = schema.get(LIST_TYPE)
    if schema.get(LIST_KEYS) and list_type != "map":
        why = f"must be map if {LIST_KEYS} is non-empty"
        where = f"{place}.{LIST_TYPE}"
        causes.append(invalid(where, list_type, why) if list_type else required(where, why))
    rules: dict[Any, Callable[[JsonObject, str], list[Cause]]] = {"map": _map_list, "set": _set}
    if list_type in rules:
        causes += rules[list_type](schema, place)
    return causes


def _set(schema: JsonObject, place: str) -> list[Cause]:
    items: JsonObject = mapping(schema, "items")
    causes: list[Cause] = []
    why = f"must be atomic as item of a list with {LIST_TYPE}=set"
    if items.get("type") == "array" and items.get(LIST_TYPE, "atomic") != "atomic":
        causes.append(invalid(f"{place}.items.{LIST_TYPE}", items[LIST_TYPE], why))
    if items.get("type") == "object" and items.get(MAP_TYPE) != "atomic":
        causes.append(invalid(f"{place}.items.{MAP_TYPE}", items.get(MAP_TYPE), why))
    if items.get("nullable"):
        why = f"cannot be nullable when {LIST_TYPE} is set"
        causes.append(forbidden(f"{place}.items.nullable", why))
    return causes


def _map_list(schema: JsonObject, place: str) -> list[Cause]:
    items, keys = as_object(schema.get("items")), listing(schema, LIST_KEYS)
    causes: list[Cause] = []
    if not keys:
        why = f"must not be empty if {LIST_TYPE} is map"
        causes.append(required(f"{place}.{LIST_KEYS}", why))
    if items is None:
        if "items" not in schema:
            why = f"must have a schema if {LIST_TYPE} is map"
            causes.append(required(f"{place}.items", why))
        return causes
    if items.get("nullable"):
        why = f"cannot be nullable when {LIST_TYPE} is map"
        causes.append(forbidden(f"{place}.items.nullable", why))
    if items.get("type") != "object":
        why = f"must be object if parent array's {LIST_TYPE} is map"
        causes.append(invalid(f"{place}.items.type", items.get("type", ""), why))
        return causes
    if len(set(keys)) != len(keys):
        why = "must not contain duplicate entries"
        causes.append(invalid(f"{place}.{LIST_KEYS}", keys, why))
    for key in dict.fromkeys(keys):
        causes += _map_key(items, key, keys, place)
    return causes


def _map_key(items: JsonObject, key: str, keys: list[str], place: str) -> list[Cause]:
    subschema = as_object(mapping(items, "properties").get(key))
    if subschema is None:
        why = "entries must all be names of item properties"
        return [invalid(f"{place}.{LIST_KEYS}", keys, why)]
    where, causes = f"{place}.items.properties[{key}]", list[Any]()
    if subschema.get("type") in {"array", "object"}:
        why = f"must be a scalar type if parent array's {LIST_TYPE} is map"
        causes.append(invalid(f"{where}.type", subschema["type"], why))
    if key not in listing(items, "required") and "default" not in subschema:
        why = (
            f"this property is in {LIST_KEYS}, so it must have a default or be a required property"
        )
        causes.append(required(f"{where}.default", why))
    if subschema.get("nullable"):
        why = f"this property is in {LIST_KEYS}, so it cannot be nullable"
        causes.append(forbidden(f"{where}.nullable", why))
    return causes


# structure --------------------------------------------------------------------------------------


def _structure_problems(schema: JsonObject, place: str, level: str) -> list[Cause]:
    causes = _type_problems(schema, place, level)
    causes += _extension_problems(schema, place, level)
    if schema.get("type") == "array" and "items" not in schema:
        causes.append(required(f"{place}.items", "must be specified"))
    if level == ROOT or schema.get(EMBEDDED):
        causes += _metadata_types(schema, place)
    causes += _pattern_problems(schema, place)
    for keyword, where, subschema in _parts(schema, place):
        if keyword in {"items", "properties", "additionalProperties"}:
            causes += _structure_problems(subschema, where, ITEM if keyword == "items" else FIELD)
        elif not (keyword == "anyOf" and schema["anyOf"] == INTEGER_OR_STRING):
            first = keyword == "allOf" and subschema is schema["allOf"][0]
            says_again = first and subschema.get("anyOf") == INTEGER_OR_STRING
            nested = (
                {k: v for k, v in subschema.items() if k != "anyOf"} if says_again else subschema
            )
            causes += _nested_problems(nested, where)
            causes += _completeness(nested, schema, where, place)
    return causes


def _type_problems(schema: JsonObject, place: str, level: str) -> list[Cause]:
    type_name = schema.get("type") or ""
    if schema.get(EMBEDDED) and type_name != "object":
        why = f"must be object if {EMBEDDED} is true"
        where = f"{place}.type"
        return [invalid(where, type_name, why) if type_name else required(where, why)]
    if not type_name and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        return [required(f"{place}.type", f"must not be empty {level}")]
    if level == ROOT and type_name and type_name != "object":
        return [invalid(f"{place}.type", type_name, "must be object at the root")]
    return []


def _extension_problems(schema: JsonObject, place: str, level: str) -> list[Cause]:
    causes: list[Cause] = []
    if level == ROOT and "additionalProperties" in schema:
        causes.append(forbidden(f"{place}.additionalProperties", "must not be used at the root"))
    if schema.get(EMBEDDED) and "additionalProperties" in schema:
        why = f"must not be used if {EMBEDDED} is set"
        causes.append(forbidden(f"{place}.additionalProperties", why))
    if schema.get(EMBEDDED) and not schema.get(PRESERVE) and not schema.get("properties"):
        why = f"must not be empty if {EMBEDDED} is true without {PRESERVE}"
        causes.append(required(f"{place}.properties", why))
    for keyword in (PRESERVE, EMBEDDED):
        if schema.get(INT_OR_STRING) and schema.get(keyword):
            why = f"must be false if {INT_OR_STRING} is true"
            causes.append(invalid(f"{place}.{keyword}", True, why))
    return causes


def _metadata_types(schema: JsonObject, place: str) -> list[Cause]:
    causes: list[Cause] = []
    properties: JsonObject = mapping(schema, "properties")
    for name, expected in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        actual = mapping(properties, name).get("type", "")
        if name in properties and actual != expected:
            where = f"{place}.properties[{name}].type"
            causes.append(invalid(where, actual, f"must be {expected}"))
    extra = set(mapping(properties, "metadata", "properties")) - {"name", "generateName"}
    if extra:
        why = (
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified"
        )
        causes.append(forbidden(f"{place}.properties[metadata]", why))
    return causes


def _pattern_problems(schema: JsonObject, place: str) -> list[Cause]:
    pattern = schema.get("pattern")
    why = pattern_problem(pattern) if pattern else None
    if why is None:
        return []
    detail = f"must be a valid regular expression, but isn't: {why}"
    return [invalid(f"{place}.pattern", pattern, detail)]


def _nested_problems(schema: JsonObject, place: str) -> list[Cause]:
    causes = [
        forbidden(f"{place}.{keyword}", why)
        for keyword, why in NOT_NESTED
        if schema.get(keyword) not in (None, "", False, [])
    ]
    if "metadata" in mapping(schema, "properties"):
        why = "must not be specified in a nested context"
        causes.append(forbidden(f"{place}.properties[metadata]", why))
    causes += _pattern_problems(schema, place)
    for _, where, subschema in _parts(schema, place):
        causes += _nested_problems(subschema, where)
    return causes


def _completeness(
    nested: JsonObject, schema: JsonObject, place: str, schema_place: str
) -> list[Cause]:
    """Check that each field of a value validation is specified outside of it as well."""
    causes: list[Cause] = []
    if as_object(nested.get("items")) is not None:
        outside = as_object(schema.get("items"))
        if outside is None:
            why = f"because it is defined in {place}.items"
            return [required(f"{schema_place}.items", why)]
        where = (f"{place}.items", f"{schema_place}.items")
        causes += _completeness(mapping(nested, "items"), outside, *where)
    for name, subschema in mapping(nested, "properties").items():
        here, there = f"{place}.properties[{name}]", f"{schema_place}.properties[{name}]"
        outside = as_object(mapping(schema, "properties").get(name))
        if outside is None and as_object(schema.get("additionalProperties")) is None:
            causes.append(required(there, f"because it is defined in {here}"))
        elif outside is not None:
            causes += _completeness(subschema, outside, here, there)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for index, subschema in enumerate(listing(nested, keyword)):
            causes += _completeness(subschema, schema, f"{place}.{keyword}[{index}]", schema_place)
    return causes


# defaults ---------------------------------------------------------------------------------------


def _default_problems(schema: JsonObject, place: str) -> Iterator[Cause]:
    """A default has to be what the schema would accept, with nothing that would be pruned."""
    if "default" in schema:
        keywords = {keyword: value for keyword, value in schema.items() if keyword != "default"}
        checker = Schema({"type": "object", "properties": {"default": keywords}}, "", "")
        value = {"default": schema["default"]}
        for cause in checker.problems(value):
            yield replace(cause, field=f"{place}.{cause.field}")
        if checker.unknown_fields(value):
            yield invalid(f"{place}.default", schema["default"], "must not have unknown fields")
    for keyword, below, subschema in _parts(schema, place):
        if keyword in {"items", "properties", "additionalProperties"}:
            yield from _default_problems(subschema, below)
