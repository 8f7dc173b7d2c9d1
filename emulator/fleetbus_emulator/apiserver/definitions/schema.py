"""The schema of a custom resource: prune, default, validate, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import orjson

from fleetbus_emulator.apiserver.definitions.instance_validation import Validator
from fleetbus_emulator.apiserver.errors import StrictError
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.merge_rules import (
    ATOMIC,
    BUILTIN,
    MAP,
    NO_DEFAULT,
    MergeRule,
)

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.errors import Cause

JsonObject = dict[str, Any]
_TYPE = ("apiVersion", "kind")
TOP = (*_TYPE, "metadata")
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"


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
        # Of the metadata, a definition may restrict the name and its prefix; nothing is pruned.
        validated = {k: v for k, v in _properties(source).items() if k not in _TYPE}
        self._validator = Validator({**self._source, "properties": validated, "required": required})
        self._has_defaults = _mentions(self._source, "default")

    def admit(self, obj: JsonObject, validation: str, warnings: list[str]) -> None:
        """Prune and default an object in place; unknown fields are refused or warned of."""
        unknown = self._pruned(obj)
        self._complain(unknown, validation, warnings)
        _drop_nulls(obj, self._source)
        if self._has_defaults:
            _default(obj, self._source)

    def unknown_fields(self, obj: JsonObject) -> list[str]:
        """The paths of what would be pruned; changes nothing."""
        return self._pruned(orjson.loads(orjson.dumps(obj)))

    def _pruned(self, obj: JsonObject) -> list[str]:
        """Prune in place; the paths of what was."""
        unknown: list[str] = []
        for name in [name for name in obj if name not in TOP]:
            subschema = _properties(self._source).get(name)
            if subschema is not None:
                _prune(obj[name], subschema, name, unknown)
            elif not self._source.get(PRESERVE):
                unknown.append(name)
                del obj[name]
        return unknown

    def _complain(self, unknown: list[str], validation: str, warnings: list[str]) -> None:
        if not unknown or validation == "Ignore":
            return
        texts = [f'unknown field "{path}"' for path in unknown]
        if validation != "Strict":
            warnings.extend(texts)
            return
        raise StrictError(self._kind, self._version, texts)

    def problems(self, obj: JsonObject) -> list[Cause]:
        """Validate an object against the schema."""
        instance = {k: v for k, v in obj.items() if k not in _TYPE}
        return self._validator.problems(instance)


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
        return keyword in parts or any(
            _mentions(subschema, keyword) for subschema in parts.values()
        )
    if isinstance(schema, list):
        return any(_mentions(subschema, keyword) for subschema in cast("list[Any]", schema))
    return False


# prune and default ------------------------------------------------------------------------------


def _prune(value: Any, schema: JsonObject, path: str, unknown: list[str]) -> None:
    if isinstance(value, list):
        items: JsonObject = mapping(schema, "items")
        if schema.get(PRESERVE):
            items = {**items, PRESERVE: True}
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
        subschema = properties.get(name) or _additional(schema)
        if subschema is None:
            continue
        if fields[name] is None:
            if name in properties and not subschema.get("nullable"):
                del fields[name]
        else:
            _drop_nulls(fields[name], subschema)


def _default(value: Any, schema: JsonObject) -> None:
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            _default(item, mapping(schema, "items"))
        return
    if not isinstance(value, dict):
        return
    fields = cast("JsonObject", value)
    for name, subschema in _properties(schema).items():
        if name not in fields and "default" in subschema:
            fields[name] = orjson.loads(orjson.dumps(subschema["default"]))
        if name in fields:
            _default(fields[name], subschema)
    additional = _additional(schema)
    if additional is not None:
        for name in fields.keys() - _properties(schema).keys():
            _default(fields[name], additional)


# merging ----------------------------------------------------------------------------------------


def merge_rule_of(schema: JsonObject) -> MergeRule:
    """The merge rule of server-side apply for objects of this schema."""
    rule = _merge_rule(schema)
    rule.fields["metadata"] = BUILTIN
    return rule


def _merge_rule(schema: JsonObject) -> MergeRule:
    rule = MergeRule(atomic=schema.get("x-kubernetes-map-type") == ATOMIC, declared=True)
    rule.list_type = schema.get("x-kubernetes-list-type") or ATOMIC
    rule.fields = {name: _merge_rule(subschema) for name, subschema in _properties(schema).items()}
    items: JsonObject = mapping(schema, "items")
    if items:
        rule.rest = _merge_rule(items)
    elif (additional := _additional(schema)) is not None:
        rule.rest = _merge_rule(additional)
    if rule.list_type == MAP:
        properties = _properties(items)
        rule.keys = {
            key: properties.get(key, {}).get("default", NO_DEFAULT)
            for key in listing(schema, "x-kubernetes-list-map-keys")
        }
    return rule
