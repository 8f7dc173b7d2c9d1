"""The resource type that a definition describes."""

from __future__ import annotations

import functools
import re
from typing import Any

import orjson

from fleetbus_emulator.apiserver.definitions.schema import Schema, merge_rule_of
from fleetbus_emulator.apiserver.definitions.selectable_fields import selectable_fields
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.resource import Column, ResourceType, ScalePaths, TypeVersion

JsonObject = dict[str, Any]
SHARED_VERSIONS = 200
DESCRIBED = "Custom resource definition column (in JSONPath format): "


def resource_type(definition: JsonObject) -> ResourceType:
    """The type that a valid definition describes; only served versions are part of it."""
    spec = definition["spec"]
    names = spec["names"]
    accepted: JsonObject = mapping(definition, "status", "acceptedNames")
    versions = {
        version["name"]: _type_version(orjson.dumps(version), names["kind"])
        for version in spec["versions"]
        if version.get("served")
    }
    stored = next(v["name"] for v in spec["versions"] if v.get("storage"))
    return ResourceType(
        group=spec["group"],
        plural=names["plural"],
        kind=names["kind"],
        versions=versions,
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        short_names=tuple(listing(accepted, "shortNames")),
        categories=tuple(listing(accepted, "categories")),
        custom=True,
        has_generation=True,
        unconditional_update=False,
        store=(spec["group"], names["plural"]),
        storage=stored,
    )


@functools.lru_cache(maxsize=SHARED_VERSIONS)
def _type_version(encoded: bytes, kind: str) -> TypeVersion:
    """Shared by all clusters that have the same definition: it is large, and never changed."""
    version: JsonObject = orjson.loads(encoded)
    subresources: JsonObject = mapping(version, "subresources")
    schema: JsonObject = version["schema"]["openAPIV3Schema"]
    scale: JsonObject | None = subresources.get("scale")
    return TypeVersion(
        name=version["name"],
        subresources=frozenset(name for name in ("status", "scale") if name in subresources),
        columns=tuple(_column(column) for column in listing(version, "additionalPrinterColumns")),
        scale=_scale_paths(scale) if scale else None,
        schema=Schema(schema, kind, version["name"]),
        merge_rule=merge_rule_of(schema),
        selectable=selectable_fields(version),
    )


def _column(column: JsonObject) -> Column:
    return Column(
        name=column["name"],
        type=column.get("type", "string"),
        priority=column.get("priority", 0),
        json_path=column.get("jsonPath", ""),
        format=column.get("format", ""),
        description=column.get("description") or f"{DESCRIBED}{column.get('jsonPath', '')}",
    )


def _scale_paths(scale: JsonObject) -> ScalePaths:
    selector = scale.get("labelSelectorPath")
    return ScalePaths(
        spec_replicas=_steps(scale["specReplicasPath"]),
        status_replicas=_steps(scale["statusReplicasPath"]),
        selector=_steps(selector) if selector else None,
    )


def _steps(path: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^.]+", path))
