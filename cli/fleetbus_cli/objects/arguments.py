"""Reads the arguments of `fleetbus get`: TYPE[,TYPE] [NAME …] or TYPE/NAME …, as with kubectl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fleetbus.errors import ConfigError
from fleetbus_proto.resources import is_usual_version


class Chosen(NamedTuple):
    """A resource, and the names of its objects; none for all of them."""

    resource: str
    names: Sequence[str]


def parse_objects(arguments: Sequence[str]) -> list[Chosen]:
    """Parse the arguments.

    Raises:
        ConfigError: both forms are mixed, or a part is missing.
    """
    pairs = [split_name(argument) for argument in arguments]
    if not any(name for _, name in pairs):
        first, *names = arguments
        resources = first.split(",")
        if not all(resources):
            raise ConfigError(f"{first!r} is not TYPE[,TYPE]: a type is missing beside a comma")
        return [Chosen(resource, names) for resource in resources]
    if not all(name for _, name in pairs):
        raise ConfigError(
            "TYPE/NAME and TYPE NAME cannot be mixed: `pods/web services/web`, or `pods web db`"
        )
    by_resource: dict[str, list[str]] = {}
    for resource, name in pairs:
        by_resource.setdefault(resource, []).append(name)
    return [Chosen(resource, names) for resource, names in by_resource.items()]


def split_name(argument: str) -> tuple[str, str]:
    """Split TYPE/NAME; the name is empty if it is only a type, like `v1/pods`.

    Raises:
        ConfigError: the type or the name is missing.
    """
    parts = argument.split("/")
    if not all(parts):
        raise ConfigError(f"{argument!r} is neither TYPE nor TYPE/NAME")
    of_type = _parts_of_type(parts)
    if len(parts) > of_type + 1:
        raise ConfigError(f"{argument!r} is neither TYPE nor TYPE/NAME")
    return ("/".join(parts[:of_type]), "/".join(parts[of_type:]))


def _parts_of_type(parts: Sequence[str]) -> int:
    """Count the parts that name the type; no name contains a slash."""
    if len(parts) > 1 and is_usual_version(parts[0]):  # v1/pods
        return 2
    # The group of a definition has a dot; other groups have versions like v1.
    is_full = len(parts) > 2 and ("." in parts[0] or is_usual_version(parts[1]))  # noqa: PLR2004
    return 3 if is_full else 1
