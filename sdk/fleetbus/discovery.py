"""What an API server serves: kinds, plurals, short names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fleetbus import errors
from fleetbus_proto.resources import CORE, Resource, ResourceName, parse_resource_name

_REFRESH: Final = timedelta(seconds=3)
"""A kind that is not known may have been installed a moment ago, but do not ask all the time."""


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One resource that an API server serves."""

    resource: Resource
    kind: str
    namespaced: bool
    verbs: frozenset[str]
    short_names: tuple[str, ...] = ()
    singular: str = ""
    preferred: bool = True
    """Whether its version is the one the server prefers for this group."""

    @property
    def is_watchable(self) -> bool:
        """Whether a watcher can follow it."""
        return {"list", "watch"} <= self.verbs


class Discovery:
    """A cached view of a server's discovery documents.

    Args:
        get_json: reads one path of the server.
    """

    def __init__(self, get_json: Callable[[str], Awaitable[dict[str, Any]]]) -> None:
        self._get_json = get_json
        self._resources: list[ApiResource] = []
        self._failed: dict[str, errors.KubeError] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def refresh(self) -> list[ApiResource]:
        """Read everything anew; a group version that fails is left out and told by `failed`."""
        async with self._reading:
            await self._read()
        return self._resources

    async def resources(self) -> list[ApiResource]:
        """All resources, read once."""
        return self._resources or await self.refresh()

    @property
    def failed(self) -> dict[str, errors.KubeError]:
        """Group versions whose document could not be read: absent from it proves nothing."""
        return self._failed

    async def by_kind(self, api_version: str, kind: str) -> ApiResource | None:
        """The resource that serves a kind, read anew if it is not known."""
        return await self._find(lambda r: r.kind == kind and r.resource.api_version == api_version)

    async def by_name(self, text: str) -> ApiResource | None:
        """The resource a person means: full names, kubectl's names, plurals, short names.

        Raises:
            InvalidName: the text is not a resource name.
        """
        for name in parse_resource_name(text):
            if found := await self._find(lambda r, name=name: _is_meant(r, name)):
                return found
        return None

    async def _find(self, matches: Callable[[ApiResource], bool]) -> ApiResource | None:
        found = _first(await self.resources(), matches)
        if found is None and time.monotonic() - self._read_at > _REFRESH.total_seconds():
            found = _first(await self.refresh(), matches)
        return found

    async def _read(self) -> None:
        groups = (await self._get_json("/apis")).get("groups", [])
        versions = [("", "v1", True)]
        for group in groups:
            preferred = group.get("preferredVersion", {}).get("version", "")
            for served in group.get("versions", []):
                version = served["version"]
                versions.append((group["name"], version, version == preferred))
        found: list[ApiResource] = []
        failed: dict[str, errors.KubeError] = {}
        for group, version, preferred in versions:
            try:
                found += await self._read_version(group, version, preferred)
            except errors.KubeError as e:
                if not group:
                    raise
                failed[f"{group}/{version}"] = e  # an aggregated API that is down
        self._resources, self._failed, self._read_at = found, failed, time.monotonic()

    async def _read_version(self, group: str, version: str, preferred: bool) -> list[ApiResource]:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        document = await self._get_json(path)
        return [
            ApiResource(
                resource=Resource(group or CORE, version, entry["name"]),
                kind=entry["kind"],
                namespaced=entry["namespaced"],
                verbs=frozenset(entry.get("verbs", [])),
                short_names=tuple(entry.get("shortNames", [])),
                singular=entry.get("singularName", ""),
                preferred=preferred,
            )
            for entry in document.get("resources", [])
            if "/" not in entry["name"]
        ]


def _first(
    resources: Iterable[ApiResource], matches: Callable[[ApiResource], bool]
) -> ApiResource | None:
    candidates = [r for r in resources if matches(r)]
    return next((r for r in candidates if r.preferred), candidates[0] if candidates else None)


def _is_meant(api: ApiResource, name: ResourceName) -> bool:
    resource = api.resource
    if name.group is not None and name.group != resource.group:
        return False
    if name.version is not None and name.version != resource.version:
        return False
    return name.plural in (resource.plural, api.singular, api.kind.lower(), *api.short_names)
