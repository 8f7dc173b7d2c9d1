"""A kubeconfig, parsed: its contexts, clusters and users by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from fleetbus.errors import ConfigError
from fleetbus.kube.connection.yaml_document import parse_yaml

_SECTIONS: Final = ("clusters", "contexts", "users")
_HEADER: Final = {"kind": "Config", "apiVersion": "v1"}
_Entry = dict[str, Any]
_Scalar = str | int | float
"""The types that a name may have in YAML; kubectl accepts numbers too."""


class Document:
    """One parsed kubeconfig.

    Args:
        text: YAML or JSON.
        source: its origin, for messages.
        aliases: whether YAML aliases are allowed.

    Raises:
        ConfigError: the text is not a kubeconfig.
    """

    def __init__(self, text: str, source: str, *, aliases: bool) -> None:
        self.source = source
        content = _parse(text, source, aliases=aliases)
        if not isinstance(content, dict) or "clusters" not in content:
            raise ConfigError(f"{source}: not a kubeconfig: it has no field 'clusters'")
        self.fields = cast("dict[str, Any]", content)
        for field, expected in _HEADER.items():
            if self.fields.get(field) not in (None, "", expected):
                raise ConfigError(f"{source}: not a kubeconfig: its {field!r} is not {expected!r}")

    @property
    def current_context(self) -> str:
        """Its current context; empty if it has none."""
        return _name(self.fields.get("current-context"))

    def entries(self, field: str) -> list[dict[str, Any]]:
        """The entries of a section, each with a name.

        Raises:
            ConfigError: the section is not a list of maps with names.
        """
        section: object = self.fields.get(field) or []
        if not isinstance(section, list):
            raise ConfigError(f"{self.source}: field {field!r} is not a list")
        for entry in cast("list[Any]", section):
            if not isinstance(entry, dict) or "name" not in entry:
                raise ConfigError(f"{self.source}: an entry of {field!r} has no name")
            if not isinstance(entry["name"], _Scalar):
                raise ConfigError(
                    f"{self.source}: the name of an entry of {field!r} is not a string"
                )
        return cast("list[dict[str, Any]]", section)

    def cluster_of(self, context: str) -> dict[str, Any]:
        """The cluster of a context, empty for the current one.

        Raises:
            ConfigError: the document lacks something that the context names.
        """
        name = context or self.current_context
        if not name:
            raise ConfigError(f"{self.source}: it has no current-context, and no context was given")
        entry = self._named("contexts", name)
        return self._named("clusters", _name(entry.get("cluster")))

    def user_of(self, context: str) -> dict[str, Any]:
        """The user of a context, empty for the current one; empty if the context has none.

        Raises:
            ConfigError: the document lacks something that the context names.
        """
        user = _name(self._named("contexts", context or self.current_context).get("user"))
        return self._named("users", user) if user else {}

    def parts(self) -> dict[str, str]:
        """Each context with only its own part of the document, as JSON.

        Raises:
            ConfigError: a section is not a list of maps with names.
        """
        sections = {field: self._by_name(field) for field in _SECTIONS}
        return {name: self._part(sections, name) for name in sections["contexts"]}

    def _part(self, sections: Mapping[str, Mapping[str, list[_Entry]]], name: str) -> str:
        context: object = sections["contexts"][name][0].get("context")
        fields = cast("dict[str, Any]", context) if isinstance(context, dict) else {}
        names = {
            "contexts": name,
            "clusters": _name(fields.get("cluster")),
            "users": _name(fields.get("user")),
        }
        content = {field: entries.get(names[field], []) for field, entries in sections.items()}
        try:
            # YAML has dates and recursive structures, JSON does not.
            return json.dumps({**content, "current-context": name}, default=str)
        except (ValueError, TypeError, RecursionError) as e:
            raise ConfigError(f"{self.source}: context {name!r} cannot be read: {e}") from e

    def _by_name(self, field: str) -> dict[str, list[_Entry]]:
        """The entries of a section by name; more than one of a name is a problem of that name."""
        entries: dict[str, list[_Entry]] = {}
        for entry in self.entries(field):
            entries.setdefault(str(entry["name"]), []).append(entry)
        return entries

    def _named(self, field: str, name: str) -> dict[str, Any]:
        kind = field.removesuffix("s")
        entries = self._by_name(field).get(name, [])
        if not entries:
            raise ConfigError(f"{self.source}: {field} has no entry named {name!r}")
        if len(entries) > 1:
            raise ConfigError(f"{self.source}: {field} has two entries named {name!r}")
        fields: object = entries[0].get(kind)
        if fields is None and kind != "context":
            return {}
        if not isinstance(fields, dict):
            raise ConfigError(f"{self.source}: {kind} {name!r} is not a map")
        return cast("dict[str, Any]", fields)


def _parse(text: str, source: str, *, aliases: bool) -> object:
    if text.startswith("{"):
        try:
            return orjson.loads(text)  # what `parts` wrote
        except orjson.JSONDecodeError:
            pass  # YAML may also begin like this
    try:
        return parse_yaml(text, aliases=aliases)
    except ValueError as e:
        raise ConfigError(f"{source}: {e}") from None


def _name(value: object) -> str:
    """A name that the document refers to; empty if it is of another type."""
    return str(value) if isinstance(value, _Scalar) else ""
