"""Writes YAML as kubectl does. Only what prints YAML imports this: PyYAML takes long to load."""

from __future__ import annotations

import yaml


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


def dump(tree: object) -> str:
    """Render a YAML document."""
    return yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )
