"""Objects as YAML and JSON for people: in the order the API server gave, without bookkeeping."""

from __future__ import annotations

import json
from typing import Any, cast

import yaml

from fleetbus.cli.objects.tree import Tree


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, and a text of several lines stays one."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists too: `indentless` is what PyYAML asks for below a key."""
        del indentless
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)


def render_yaml(tree: object) -> str:
    """A YAML document."""
    return yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


def render_json(tree: object) -> str:
    """A JSON document, indented."""
    return json.dumps(tree, indent=2, ensure_ascii=False)


def without_managed_fields(tree: Tree) -> Tree:
    """The object without metadata.managedFields, which is longer than the rest."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict):
        return tree
    kept = {k: v for k, v in cast("dict[str, Any]", metadata).items() if k != "managedFields"}
    return {**tree, "metadata": kept}
