"""Discovery: the resources that an API server serves, with kinds and short names."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from fleetbus import errors
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_proto.resources import CORE, Resource, ResourceName, parse_resource_name

_REFRESH: Final = timedelta(seconds=3)
"""An unknown kind may just have been installed, but discovery is not repeated more often."""
_PATIENCE: Final = timedelta(seconds=5)
"""For one group version: an aggregated API that hangs must not delay all others."""
_AT_ONCE: Final = 8
_VERSIONS: Final = 2_000
"""The most group versions of one server: each is a request (rule S7)."""
_API_VERSION: Final = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[a-z0-9][-a-z0-9]*")
_RESOURCES: Final = 50_000
"""Of all group versions together; large clusters have a few thousand."""


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


@dataclass(frozen=True, slots=True)
class _Document:
    """The resources of one group version; none if it is not served or cannot be read."""

    resources: list[ApiResource]
    read_at: float


class Discovery:
    """A cached view of a server's discovery documents; its creator closes it.

    Who knows a group version asks for its document only: `by_kind` costs one request, where all
    documents of a server are thirty.

    Args:
        get_json: reads one path of the server.
        patience: how long to wait for one group version.
        cluster: returns the cluster's name, for errors.
        confirm: makes sure that the accepted cluster has answered, because types may be absent; see
            `KubeClient.confirm`.
    """

    def __init__(
        self,
        get_json: Callable[[str], Awaitable[dict[str, Any]]],
        *,
        patience: timedelta = _PATIENCE,
        cluster: Callable[[], str] = str,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._get_json = get_json
        self._confirm = confirm
        self._patience = patience
        self._cluster = cluster
        self._resources: list[ApiResource] = []
        self._failed: dict[str, errors.KubeError] = {}
        self._read_at = float("-inf")
        self._count = 0
        """How many resources the current run has found."""
        self._reading: asyncio.Task[list[ApiResource]] | None = None
        self._documents: dict[str, _Document] = {}
        self._reading_version: dict[str, asyncio.Task[list[ApiResource]]] = {}

    async def aclose(self) -> None:
        """Stop the runs in progress."""
        readings = [*self._reading_version.values(), *([self._reading] if self._reading else [])]
        for reading in readings:
            await cancel_and_wait(reading)

    async def refresh(self) -> list[ApiResource]:
        """Read all documents again; group versions that fail are left out and listed in `failed`.

        Raises:
            KubeError: the list of groups or the core group cannot be read.
        """
        if self._reading is not None:
            await asyncio.wait(
                [self._reading]
            )  # it may have begun before the change that the caller waits for
        return await self._join()

    async def resources(self) -> list[ApiResource]:
        """All resources; the documents are read once.

        Raises:
            KubeError: as `refresh`.
        """
        return self._resources or await self._join()

    async def recent(self) -> list[ApiResource]:
        """All resources, read a few seconds ago at most.

        Raises:
            KubeError: as `refresh`.
        """
        return self._resources if _is_recent(self._read_at) else await self.refresh()

    async def version(self, api_version: str, *, anew: bool = False) -> list[ApiResource]:
        """The resources of one group version; its document is read once.

        Args:
            api_version: like `apps/v1`.
            anew: read it again.

        Returns:
            None of them if it is not served, or cannot be read.

        Raises:
            KubeError: the core group cannot be read.
        """
        if anew and (reading := self._reading_version.get(api_version)):
            await asyncio.wait([reading])  # it may have begun before what the caller waits for
        elif known := None if anew else self._documents.get(api_version):
            return known.resources
        reading = self._reading_version.get(api_version)
        if reading is None or reading.done():
            task = self._read_document(api_version)
            reading = asyncio.create_task(task, name=f"discovery of {api_version}")
            reading.add_done_callback(_see)
            self._reading_version[api_version] = reading
        return await self._result_of(reading)

    async def _join(self) -> list[ApiResource]:
        """Wait for the one shared run, which survives the cancellation of a caller."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="discovery")
            self._reading.add_done_callback(_see)
        return await self._result_of(self._reading)

    async def _result_of(self, reading: asyncio.Task[list[ApiResource]]) -> list[ApiResource]:
        await asyncio.wait([reading])
        if reading.cancelled():
            raise self._named(_unknown("the client of this cluster is closed"))
        try:
            return reading.result()
        except errors.KubeError as e:
            raise self._named(e) from e.__cause__

    @property
    def failed(self) -> dict[str, errors.KubeError]:
        """Group versions whose document could not be read: for them absence proves nothing."""
        return self._failed

    async def serves(self, resource: Resource) -> bool:
        """Whether the server serves this type in any version; reads all documents again.

        Raises:
            KubeError: it is unknown; never NotFound.
        """
        try:
            found = await self.refresh()
        except errors.NotFound as e:  # every API server has discovery: this is none
            raise self._named(_unknown(str(e))) from e
        failed = [v for v in self._failed if v.rpartition("/")[0] == resource.group]
        if any(api.resource.key == resource.key for api in found):
            return True
        if failed:
            raise self._named(_unknown(f"{', '.join(failed)} cannot be read"))
        return False

    async def by_kind(self, api_version: str, kind: str) -> ApiResource | None:
        """The resource that serves a kind; unknown kinds are looked up again.

        Raises:
            KubeError: the core group cannot be read; or another cluster answers, so that nothing
                is known to be absent.
        """
        found = _of_kind(await self.version(api_version), kind)
        if found is None and not _is_recent(self._documents[api_version].read_at):
            found = _of_kind(await self.version(api_version, anew=True), kind)
        if found is None and self._confirm is not None:
            await self._confirm()
        return found

    async def by_name(self, text: str) -> ApiResource | None:
        """The resource of a name as users write it: full, kubectl's, plural or short.

        Raises:
            InvalidName: the text is not a resource name.
        """
        for name in parse_resource_name(text):
            if found := await self._find(lambda r, name=name: _is_meant(r, name)):
                return found
        return None

    async def _find(self, matches: Callable[[ApiResource], bool]) -> ApiResource | None:
        found = _first(await self.resources(), matches)
        if found is None and not _is_recent(self._read_at):
            found = _first(await self.refresh(), matches)
        return found

    async def _read_document(self, api_version: str) -> list[ApiResource]:
        found: list[ApiResource] = []
        if _API_VERSION.fullmatch(api_version):  # a user may have written it, and it is in a path
            group, _, version = api_version.rpartition("/")
            self._count = 0
            read = await self._read_version(asyncio.Semaphore(), group, version, preferred=True)
            found = read if isinstance(read, list) else []
        self._documents[api_version] = _Document(found, time.monotonic())
        return found

    async def _read(self) -> list[ApiResource]:
        versions = [("", "v1", True), *_versions_of(await self._get_json("/apis"))]
        at_once = asyncio.Semaphore(_AT_ONCE)
        self._count = 0
        try:
            async with asyncio.TaskGroup() as reads:
                tasks = [reads.create_task(self._read_version(at_once, *v)) for v in versions]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        found: list[ApiResource] = []
        failed: dict[str, errors.KubeError] = {}
        for (group, version, _), task in zip(versions, tasks, strict=True):
            read = task.result()
            if isinstance(read, list):
                found += read
                name = f"{group}/{version}" if group else version
                self._documents[name] = _Document(read, time.monotonic())
            else:
                failed[f"{group}/{version}"] = read  # an aggregated API that is down
        if self._confirm is not None:
            await self._confirm()
        self._resources, self._failed, self._read_at = found, failed, time.monotonic()
        return found

    async def _read_version(
        self, at_once: asyncio.Semaphore, group: str, version: str, preferred: bool
    ) -> list[ApiResource] | errors.KubeError:
        """The resources of a group version, or why it cannot be read; raises for the core group."""
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        async with at_once:
            try:
                async with asyncio.timeout(self._patience.total_seconds()):
                    document = await self._get_json(path)
                return self._bounded(_resources_of(document, group or CORE, version, preferred))
            except TimeoutError:
                error: errors.KubeError = _unknown(f"no answer for {path} in time")
            except errors.KubeError as e:
                error = e
        if not group:
            raise error
        return self._named(error)

    def _bounded(self, found: list[ApiResource]) -> list[ApiResource]:
        if self._count + len(found) > _RESOURCES:
            raise _unknown(f"the API server has more than {_RESOURCES} resources")
        self._count += len(found)
        return found

    def _named(self, error: errors.KubeError) -> errors.KubeError:
        if isinstance(error, errors.Unreachable):
            error.cluster = error.cluster or self._cluster()
        return error


def _versions_of(document: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Group, version, and whether the server prefers it."""
    try:
        groups = msgspec.convert(document, _Groups).groups or []
    except msgspec.ValidationError as e:
        raise _unknown(f"/apis is not a discovery document: {e}") from e
    versions = [
        (group.name, served.version, served == group.preferred_version)
        for group in groups
        for served in group.versions or []
    ]
    if len(versions) > _VERSIONS:
        raise _unknown(f"the API server has more than {_VERSIONS} group versions")
    return versions


def _resources_of(
    document: dict[str, Any], group: str, version: str, preferred: bool
) -> list[ApiResource]:
    try:
        entries = msgspec.convert(document, _Resources).resources or []
    except msgspec.ValidationError as e:
        raise _unknown(f"{group}/{version} is not a discovery document: {e}") from e
    return [
        ApiResource(
            resource=Resource(group, version, entry.name),
            kind=entry.kind,
            namespaced=entry.namespaced,
            verbs=frozenset(entry.verbs or []),
            short_names=tuple(entry.short_names or []),
            singular=entry.singular_name or "",
            categories=tuple(entry.categories or []),
            preferred=preferred,
        )
        for entry in entries
        if "/" not in entry.name
    ]


def _is_recent(read_at: float) -> bool:
    return time.monotonic() - read_at <= _REFRESH.total_seconds()


def _of_kind(resources: Iterable[ApiResource], kind: str) -> ApiResource | None:
    return next((one for one in resources if one.kind == kind), None)


def _see(reading: asyncio.Task[list[ApiResource]]) -> None:
    """Retrieve the exception: there may be no caller left, which is no error."""
    if not reading.cancelled():
        reading.exception()


def _unknown(text: str) -> errors.Unreachable:
    return errors.Unreachable(0, "Unreachable", f"discovery: {text}")


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
