"""The subjects and messages of the bus, from `proto/asyncapi.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from reference.tables import code, table

_FILE: Final = Path(__file__).parents[2] / "proto" / "asyncapi.yaml"


def page() -> str:
    """Write the page."""
    document = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    parts = [
        "# Subjects and messages\n",
        (
            "The machine-readable form is [proto/asyncapi.yaml](../../proto/asyncapi.yaml);"
            " [proto/README.md](../../proto/README.md) says what order, repeats and epochs mean.\n"
        ),
    ]
    for channel in document["channels"].values():
        parts += [f"## `{channel['address']}`\n", f"{channel['description']}\n"]
        parts.append(table(("token", "what it is"), _parameters(channel)))
        messages = [
            link["$ref"].rpartition("/")[2] for link in channel.get("messages", {}).values()
        ]
        if messages:
            parts.append(f"Messages: {', '.join(f'[{m}](#{m.lower()})' for m in messages)}.\n")
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        parts += [f"## {name}\n", f"{schema.get('description', '')}\n"]
        rows = list(_fields(schema))
        if rows:
            parts.append(table(("field", "type", "required", "what it is"), rows))
    return "\n".join(parts)


def _parameters(channel: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, parameter in channel.get("parameters", {}).items():
        values = ", ".join(map(code, parameter.get("enum", [])))
        yield code(name), parameter["description"] + (f" One of {values}." if values else "")


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        is_required = "yes" if name in required else ""
        yield code(name), _type(field), is_required, str(field.get("description", ""))


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return " or ".join(code(str(value)) for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if field.get("type") == "array":
        if "prefixItems" in field:
            return f"[{', '.join(_type(one) for one in field['prefixItems'])}]"
        return f"list of {_type(field.get('items') or {})}"
    return str(field.get("type", "any"))
