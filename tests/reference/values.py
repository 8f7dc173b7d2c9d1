"""The values of the chart, from its schema and values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from reference.tables import code, table

README: Final = Path(__file__).parents[2] / "charts" / "fleetbus" / "README.md"
_TITLE: Final = "## Values\n\n"
_KUBERNETES: Final = ("tolerations", "affinity", "claims", "peers")
"""Definitions of the schema whose fields are those of the Kubernetes API."""
_NOTE: Final = "<!-- Made from values.schema.json by `make reference`; do not edit. -->\n\n"


def readme() -> str:
    """Return the page of the chart with the table as it has to be."""
    head, title, _ = README.read_text(encoding="utf-8").partition(_TITLE)
    chart = README.parent
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    rows = _rows(schema, schema["$defs"], "", defaults)
    return head + title + _NOTE + table(("value", "default", "what it is"), rows)


def _rows(
    schema: dict[str, Any], defs: dict[str, Any], path: str, defaults: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, given in schema.get("properties", {}).items():
        field = _resolved(given, defs)
        key = f"{path}.{name}" if path else name
        default = defaults.get(name)
        is_ours = given.get("$ref", "").rpartition("/")[2] not in _KUBERNETES
        if "properties" in field and is_ours:
            yield from _rows(field, defs, key, default or {})
            continue
        yield code(key), "" if default is None else code(_short(default)), _said(field)
        items = _resolved(field.get("items", {}), defs) if is_ours else {}
        yield from _rows(items, defs, f"{key}[]", {})


def _resolved(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    return {**defs[schema["$ref"].rpartition("/")[2]], **schema}


def _said(field: dict[str, Any]) -> str:
    choices = " or ".join(code(str(one)) for one in field.get("enum", ()))
    return f"{field.get('description', '')} {choices}".strip()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 40 else "see values.yaml"
