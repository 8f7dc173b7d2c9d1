"""The schemas of Kubernetes' own types, from a table that is read when somebody asks for one.

`tests/reference/kubernetes_types.py` writes the table.
"""

from __future__ import annotations

import lzma
import re
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

from fleetbus_proto.resources import CORE
from fleetbus_query_api.catalog.kinds import Kind

JsonObject = dict[str, Any]
V2_PREFIX: Final = "#/definitions/"
V3_PREFIX: Final = "#/components/schemas/"
GVK: Final = "x-kubernetes-group-version-kind"

_TABLE: Final = "kubernetes_types.json.xz"
_MODEL: Final = re.compile(
    r"(?P<group>[A-Z][a-z]+)??(?P<version>V\d+(?:(?:alpha|beta)\d+)?)(?P<kind>.+)"
)
_OBJECT_META: Final = "V1ObjectMeta"
_INT_OR_STRING: Final = "IntOrString"
_EITHER: Final = frozenset({"maxSurge", "maxUnavailable", "minAvailable", "port", "targetPort"})
"""Fields that are a number or a string; of other fields the table says `object`, too."""
_SCALARS: Final[dict[str, JsonObject]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "object": {"type": "object"},
}
_EITHER_TYPE: Final[JsonObject] = {"oneOf": [{"type": "integer"}, {"type": "string"}]}


class _Types(msgspec.Struct, frozen=True):
    """The table."""

    fields: dict[str, dict[str, tuple[str, str, bool]]]
    """Fields of each model: type, description, and whether it is required."""
    kinds: dict[str, str]
    """The description of each kind."""


class Schemas:
    """Collects the schemas of kinds, and of all that they refer to.

    Args:
        prefix: of references: that of a version of OpenAPI.

    Attributes:
        found: schemas by name.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._types = _read_types()
        self.found: JsonObject = {}

    def add_built_in(self, kind: Kind) -> str:
        """Add one of Kubernetes' own kinds; returns the name of its schema, "" if unknown."""
        model = self._find_model(kind)
        if not model:
            return ""
        name = self._add(model)
        text = self._types.kinds.get(kind.kind, "")
        self.found[name] |= {"description": text, GVK: [group_version_kind(kind)]}
        return name

    def add_custom(self, kind: Kind, schema: JsonObject | None) -> str:
        """Add a kind by the schema of its definition; without one, an object of any fields."""
        name = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
        base: JsonObject = schema or {"x-kubernetes-preserve-unknown-fields": True}
        meta = self._refer(_OBJECT_META)
        common = {
            "apiVersion": {"type": "string", "description": "The group and version of the API."},
            "kind": {"type": "string", "description": "The type of the object."},
            "metadata": {"description": "As of all objects.", **self._embed(meta)},
        }
        defined: JsonObject = base.get("properties") or {}
        metadata = {"metadata": common["metadata"]}  # of which a definition says nothing
        fields = {"type": "object", "properties": {**common, **defined, **metadata}}
        self.found[name] = {**base, **fields, GVK: [group_version_kind(kind)]}
        return name

    def _find_model(self, kind: Kind) -> str:
        version = kind.version[:1].upper() + kind.version[1:]
        group = "core" if kind.group == CORE else kind.group.partition(".")[0]
        for name in (f"{version}{kind.kind}", f"{group.capitalize()}{version}{kind.kind}"):
            if name in self._types.fields:
                return name
        return ""

    def _add(self, model: str) -> str:
        """Add a model and all that it refers to; returns the name of its schema."""
        name = _schema_name(model)
        if name in self.found:
            return name
        schema: JsonObject = {"type": "object"}
        self.found[name] = schema  # before its fields, which may refer to it
        fields = self._types.fields[model]
        schema["properties"] = {
            field: self._field(field, kind, text) for field, (kind, text, _) in fields.items()
        }
        if required := [field for field, (_, _, is_required) in fields.items() if is_required]:
            schema["required"] = required
        return name

    def _field(self, name: str, kind: str, text: str) -> JsonObject:
        schema = self._refer_either() if kind == "object" and name in _EITHER else self._of(kind)
        return {"description": text, **self._embed(schema)} if text else self._embed(schema)

    def _of(self, kind: str) -> JsonObject:
        """The schema of a type as the table has it, such as `list[V1Container]`."""
        if kind.startswith("list["):
            return {"type": "array", "items": self._of(kind[len("list[") : -1])}
        if kind.startswith("dict("):
            value = kind[len("dict(") : -1].partition(", ")[2]
            return {"type": "object", "additionalProperties": self._of(value)}
        return dict(_SCALARS[kind]) if kind in _SCALARS else self._refer(kind)

    def _embed(self, schema: JsonObject) -> JsonObject:
        """A reference with a description beside it, which version 3 allows in `allOf` only."""
        is_reference = "$ref" in schema and self._prefix == V3_PREFIX
        return {"allOf": [schema]} if is_reference else schema

    def _refer(self, model: str) -> JsonObject:
        return {"$ref": self._prefix + self._add(model)}

    def _refer_either(self) -> JsonObject:
        name = f"io.k8s.{_INT_OR_STRING}"
        kinds = _EITHER_TYPE if self._prefix == V3_PREFIX else _SCALARS["str"]
        self.found[name] = {"format": "int-or-string", **kinds}
        return {"$ref": self._prefix + name}


def group_version_kind(kind: Kind) -> dict[str, str]:
    """The kind as documents name it."""
    group = "" if kind.group == CORE else kind.group
    return {"group": group, "version": kind.version, "kind": kind.kind}


def _schema_name(model: str) -> str:
    """The name of a schema: kubectl shows the part behind the last dot."""
    match = _MODEL.fullmatch(model)
    if match is None:
        return f"io.k8s.{model}"
    parts = (match["group"] or "", match["version"], match["kind"])
    return ".".join(["io.k8s", *(segment.lower() for segment in parts[:2] if segment), parts[2]])


@cache
def _read_types() -> _Types:
    raw = resources.files(__package__ or "").joinpath(_TABLE).read_bytes()
    return msgspec.json.decode(lzma.decompress(raw), type=_Types)
