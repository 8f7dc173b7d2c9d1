"""Reads the arguments of `fleetbus get`: TYPE[,TYPE] [NAME …] or TYPE/NAME …, as with kubectl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from fleetbus.errors import ConfigError

_VERSION: Final = re.compile(r"v\d+((alpha|beta)\d+)?")


class Chosen(NamedTuple):
    """A resource, and the names of its objects; none for all of them."""

    resource: str
    names: Sequence[str]


def parse_objects(arguments: Sequence[str]) -> list[Chosen]:
    """Parse the arguments.

    Raises:
        ConfigError: both forms are mixed, or a part is missing.
    """
    pairs = [split_name(one) for one in arguments]
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
    found: dict[str, list[str]] = {}
    for resource, name in pairs:
        found.setdefault(resource, []).append(name)
    return [Chosen(resource, names) for resource, names in found.items()]


def split_name(argument: str) -> tuple[str, str]:
    """Split TYPE/NAME; the name is empty if it is only a type, like `v1/pods`.

    Raises:
        ConfigError: the type or the name is missing.
    """
    parts = argument.split("/")
    if not all(parts):
        raise ConfigError(f"{argument!r} is neither TYPE nor TYPE/NAME")
    # A type has a version before its plural, or it has no slash: `v1/pods`, `apps/v1/deployments`.
    at = next((index for index, part in enumerate(parts) if _VERSION.fullmatch(part)), None)
    of_type = 1 if at is None or at > 1 else at + 2
    if len(parts) > of_type + 1:
        raise ConfigError(f"{argument!r} is neither TYPE nor TYPE/NAME")
    return ("/".join(parts[:of_type]), "/".join(parts[of_type:]))
