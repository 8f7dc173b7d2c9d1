"""The fields of our custom resources, from the definitions of the chart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from reference.tables import code, table

_CHART: Final = Path(__file__).parents[2] / "charts" / "fleetbus"


def page() -> str:
    """Write the page."""
    parts = ["# Custom resources\n", "`kubectl explain` shows the same on a cluster.\n"]
    for path in sorted(_CHART.rglob("crds/*.yaml")):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        parts += _resource(definition["spec"])
    return "\n".join(parts)


def _resource(spec: dict[str, Any]) -> Iterator[str]:
    names = spec["names"]
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        short = ", ".join(map(code, names.get("shortNames", [])))
        yield f"## {names['kind']} `{spec['group']}/{version['name']}`\n"
        yield f"{schema.get('description', '')}\n"
        yield f"Resource `{names['plural']}`, {spec['scope']}-scoped, short {short}.\n"
        fields = [row for part in ("spec", "status") for row in _part(schema, part)]
        yield table(("field", "type", "what it is"), fields)


def _part(schema: dict[str, Any], name: str) -> Iterator[tuple[str, str, str]]:
    part = schema["properties"].get(name)
    if part:
        yield from _fields(part, name, is_required=False)


def _fields(
    schema: dict[str, Any], path: str, *, is_required: bool
) -> Iterator[tuple[str, str, str]]:
    said = str(schema.get("description", ""))
    if "default" in schema:
        said += f" Default {code(str(schema['default']))}."
    yield code(path), _type(schema) + (", required" if is_required else ""), said
    items = schema.get("items")
    inner, below = (items, f"{path}[]") if items else (schema, path)
    required = set(inner.get("required", ()))
    for name, field in inner.get("properties", {}).items():
        yield from _fields(field, f"{below}.{name}", is_required=name in required)


def _type(schema: dict[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return " or ".join(code(str(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))
