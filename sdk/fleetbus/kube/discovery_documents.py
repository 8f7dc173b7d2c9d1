"""The discovery documents of an API server: the legacy ones, and the aggregated ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from fleetbus import errors
from fleetbus_proto.resources import CORE, Resource

MAX_VERSIONS: Final = 2_000
"""The most group versions of one server: each may be a request (rule S7)."""
MAX_TYPES: Final = 10_000
"""The most types of one server beside the built-in ones; large clusters have a few thousand."""
AGGREGATED: Final = ",".join(
    [
        *(
            f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            for version in ("v2", "v2beta1")
        ),
        "application/json",
    ]
)
_STALE: Final = "Stale"


class GroupVersion(NamedTuple):
    """A group version that a server serves; the core group is empty."""

    group: str
    version: str
    is_preferred: bool
    """Whether it is the version that the server prefers for this group."""

    def __str__(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class _Served(msgspec.Struct):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_Served] | None = None  # Go writes an empty slice as null
    preferred_version: _Served | None = None


class _Groups(msgspec.Struct):
    groups: list[_Group] | None = None


class _Entry(msgspec.Struct, rename="camel"):
    name: str
    kind: str
    namespaced: bool
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    singular_name: str | None = None
    categories: list[str] | None = None


class _Resources(msgspec.Struct):
    resources: list[_Entry] | None = None


class _ResponseKind(msgspec.Struct):
    kind: str = ""


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str
    response_kind: _ResponseKind | None = None
    scope: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    singular_resource: str | None = None
    categories: list[str] | None = None


class _AggregatedVersion(msgspec.Struct):
    version: str
    resources: list[_AggregatedResource] | None = None
    freshness: str = ""


class _GroupName(msgspec.Struct):
    name: str = ""


class _AggregatedGroup(msgspec.Struct):
    metadata: _GroupName
    versions: list[_AggregatedVersion] | None = None


class _AggregatedGroups(msgspec.Struct):
    items: list[_AggregatedGroup] | None = None


_decode_aggregated = msgspec.json.Decoder(_AggregatedGroups).decode


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One resource that an API server serves."""

    resource: Resource
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()
    singular: str = ""
    categories: tuple[str, ...] = ()
    preferred: bool = True
    """Whether its version is the one the server prefers for this group."""

    @property
    def is_watchable(self) -> bool:
        """Whether a watcher can follow it."""
        return {"list", "watch"} <= self.verbs


def versions_of(document: dict[str, Any]) -> list[GroupVersion]:
    """The group versions of the legacy list of groups.

    Raises:
        Unreachable: it is no such list.
    """
    try:
        groups = msgspec.convert(document, _Groups).groups or []
    except msgspec.ValidationError as e:
        raise unknown(f"/apis is not a discovery document: {e}") from e
    versions = [
        GroupVersion(group.name, served.version, served == group.preferred_version)
        for group in groups
        for served in group.versions or []
    ]
    if len(versions) > MAX_VERSIONS:
        raise unknown(f"the API server has more than {MAX_VERSIONS} group versions")
    return versions


def resources_of(document: dict[str, Any], where: GroupVersion) -> list[ApiResource]:
    """The resources of the legacy document of a group version.

    Raises:
        Unreachable: it is no such document.
    """
    try:
        entries = msgspec.convert(document, _Resources).resources or []
    except msgspec.ValidationError as e:
        raise unknown(f"{where} is not a discovery document: {e}") from e
    return [
        ApiResource(
            resource=Resource(where.group or CORE, where.version, entry.name),
            kind=entry.kind,
            namespaced=entry.namespaced,
            verbs=frozenset(entry.verbs or []),
            short_names=tuple(entry.short_names or []),
            singular=entry.singular_name or "",
            categories=tuple(entry.categories or []),
            preferred=where.is_preferred,
        )
        for entry in entries
        if "/" not in entry.name
    ]


def unknown(text: str) -> errors.Unreachable:
    """The error for documents that cannot be had, or mean nothing."""
    return errors.Unreachable(0, "Unreachable", f"discovery: {text}")


def read_aggregated(
    document: bytes, *, most: int
) -> Iterator[tuple[GroupVersion, list[ApiResource] | None]]:
    """The resources of each group version of an aggregated document; None if they are not current.

    Args:
        document: JSON.
        most: resources of a group version that are read; one more shows that there are more.

    Raises:
        Unreachable: it is no such document.
    """
    try:
        groups = _decode_aggregated(document).items or []
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise unknown(f"not an aggregated discovery document: {e}") from e
    if sum(len(group.versions or []) for group in groups) > MAX_VERSIONS:
        raise unknown(f"the API server has more than {MAX_VERSIONS} group versions")
    for group in groups:
        for number, served in enumerate(group.versions or []):
            where = GroupVersion(group.metadata.name, served.version, number == 0)
            # An entry without a kind is only the parent of subresources.
            listed = (entry for entry in served.resources or [] if entry.response_kind)
            resources = [_aggregated_resource(where, entry) for entry in islice(listed, most + 1)]
            yield where, None if served.freshness == _STALE else resources


def _aggregated_resource(where: GroupVersion, entry: _AggregatedResource) -> ApiResource:
    return ApiResource(
        resource=Resource(where.group or CORE, where.version, entry.resource),
        kind=entry.response_kind.kind if entry.response_kind else "",
        namespaced=entry.scope == "Namespaced",
        verbs=frozenset(entry.verbs or []),
        short_names=tuple(entry.short_names or []),
        singular=entry.singular_resource or "",
        categories=tuple(entry.categories or []),
        preferred=where.is_preferred,
    )
