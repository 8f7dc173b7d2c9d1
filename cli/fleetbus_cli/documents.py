"""Renders objects as YAML and JSON, with fields in the order of the API server."""

from __future__ import annotations

import json
from typing import Any, cast

from fleetbus.kube.json_fields import Tree


def render_yaml(tree: object) -> str:
    """Render a YAML document."""
    from fleetbus_cli.yaml_text import dump  # noqa: PLC0415 -- import cost

    return dump(tree)


def render_json(tree: object) -> str:
    """Render an indented JSON document."""
    return json.dumps(tree, indent=2, ensure_ascii=False)


def without_managed_fields(tree: Tree) -> Tree:
    """Copy an object without metadata.managedFields, often longer than the rest."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict):
        return tree
    fields = {k: v for k, v in cast("dict[str, Any]", metadata).items() if k != "managedFields"}
    return {**tree, "metadata": fields}
