"""Shows the content of a revision, and what changed since another, without secret values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from fleetbus.kube.json_fields import many, mapping, string
from fleetbus.owned_objects.secret_values import (
    SENSITIVE_NAME,
    Path,
    name_of,
    secrets_in,
    strings_in,
)
from fleetbus_distributor.preview.diff import diff_lines, hide, without_server_fields

_KIND: Final = "Secret"
_OF_SECRETS: Final = ("data", "stringData")
_OTHER_FIELDS: Final = ("vars", "customize", "serviceAccountName")


@dataclass(frozen=True, slots=True)
class PartChange:
    """Difference of a part of a revision from that of another."""

    sign: str
    """`+`, `-` or `~`."""
    name: str
    """`Deployment prod/web` or `vars`, for example."""
    lines: list[str]
    """Lines of a unified diff."""


@dataclass(frozen=True, slots=True)
class _Part:
    content: dict[str, Any]
    secrets: dict[Path, str]


def show_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a revision for people: one `template` is a list, too."""
    parts = _parts_of(fields)
    contents = {name: hide(text.content, text.secrets) for name, text in parts.items()}
    others = {name: contents.pop(name)[name] for name in _OTHER_FIELDS if name in contents}
    return {"templates": list(contents.values()), **others}


def diff_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[PartChange]:
    """The parts of a revision that differ from those of an earlier one."""
    old, new = _parts_of(before), _parts_of(after)
    changes: list[PartChange] = []
    for name in dict.fromkeys((*new, *old)):
        was, now = (parts.get(name, _Part({}, {})) for parts in (old, new))
        lines = diff_lines(
            hide(was.content, was.secrets), hide(now.content, now.secrets, was.secrets)
        )
        if lines:
            sign = "+" if name not in old else "-" if name not in new else "~"
            changes.append(PartChange(sign, name, lines))
    return changes


def _parts_of(fields: Mapping[str, Any]) -> dict[str, _Part]:
    single = fields.get("template")
    parts: dict[str, _Part] = {}
    kinds: list[str] = []
    templates = [mapping(single)] if single is not None else many(fields, "templates")
    for template in templates:
        content = without_server_fields({**template, "metadata": mapping(template, "metadata")})
        kinds.append(string(content, "kind"))
        parts[_title(content)] = _Part(content, dict(secrets_in(content)))
    # A variable in the kind may make it a Secret on some cluster.
    has_secrets = any(kind == _KIND or "$" in kind for kind in kinds)
    for name in _OTHER_FIELDS:
        if fields.get(name):
            content = {name: fields[name]}
            secrets = dict(secrets_in(content))
            if name == "customize":
                secrets |= _secrets_of_patches(mapping(fields[name]), has_secrets=has_secrets)
            parts[name] = _Part(content, secrets)
    return parts


def _title(template: Mapping[str, Any]) -> str:
    metadata = mapping(template, "metadata")
    namespace = string(metadata, "namespace")
    place = f"{namespace}/" if namespace else ""
    return f"{string(template.get('kind'))} {place}{string(metadata.get('name'))}"


def _secrets_of_patches(
    customize: Mapping[str, Any], *, has_secrets: bool
) -> Iterator[tuple[Path, str]]:
    """The values that patches write: into data of a Secret, or where a name says what they are.

    Args:
        customize: the field.
        has_secrets: whether a template may be a Secret.
    """
    for place, entry in _placed(customize.get("clusters"), ("customize", "clusters")):
        has_data = has_secrets and mapping(entry, "target").get("kind") in (None, _KIND)
        for name in _OF_SECRETS if has_data else ():
            value = mapping(entry, "merge").get(name)
            yield from strings_in(value, (*place, "merge", name), "", is_secret=True)
        for inner, action in _placed(entry.get("action"), (*place, "action")):
            path = string(action, "path")
            is_data = has_data and path.split("/")[1:2] in ([], *([name] for name in _OF_SECRETS))
            if is_data or SENSITIVE_NAME.search(path):
                value = action.get("value")
                yield from strings_in(value, (*inner, "value"), "", is_secret=True)


def _placed(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects in a list, each with its path."""
    if isinstance(value, list):
        for at, entry in enumerate(cast("list[Any]", value)):
            yield (*path, name_of(entry, at)), mapping(entry)
