"""Renders objects as YAML and JSON, with fields in the order of the API server."""

from __future__ import annotations

import json
from typing import Any, cast

import yaml

from fleetbus.kube.json_fields import Tree


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and writes a multi-line string as a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists too: `indentless` is what PyYAML asks for below a key."""
        del indentless
        super().increase_indent(flow, False)

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """Escape all that is not ASCII, if something in the text is not printed as itself."""
        allowed, self.allow_unicode = self.allow_unicode, _is_shown(text)
        super().write_double_quoted(text, split)
        self.allow_unicode = allowed


def _is_shown(text: str) -> bool:
    """Whether each character is printed as itself, or ends a line of a block."""
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


def _represent_string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if not _is_shown(value) else "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_string)


def render_yaml(tree: object) -> str:
    """Render a YAML document."""
    return yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


def render_json(tree: object) -> str:
    """Render an indented JSON document."""
    return json.dumps(tree, indent=2, ensure_ascii=False)


def without_managed_fields(tree: Tree) -> Tree:
    """Copy an object without metadata.managedFields, often longer than the rest."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict):
        return tree
    kept = {k: v for k, v in cast("dict[str, Any]", metadata).items() if k != "managedFields"}
    return {**tree, "metadata": kept}
