"""Discovery: the resources that an API server serves, with kinds and short names.

All of them are two documents, of the core group and of all others (aggregated discovery, Kubernetes
1.26 and later); read again with their entity tags they are one empty response while no type has
changed, as the core group then needs no request of its own. An older server answers with its list
of groups, and each group version is a request.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeAlias

from fleetbus import errors
from fleetbus.kube.discovery_documents import (
    AGGREGATED,
    MAX_TYPES,
    ApiResource,
    GroupVersion,
    read_aggregated,
    resources_of,
    unknown,
    versions_of,
)
from fleetbus.kube.requests import Call
from fleetbus.kube.responses import Answer, parse_object
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_proto.resources import (
    CORE,
    Resource,
    ResourceName,
    is_built_in,
    parse_resource_name,
)

REFRESH: Final = timedelta(seconds=3)
"""An unknown kind may just have been installed, but discovery is not repeated more often."""
_CORE_AGAIN: Final = 300.0
"""Seconds. Only another version of the server has other types in the core group, and then other
groups have changed as well; this is for one where they have not."""
_PATIENCE: Final = timedelta(seconds=5)
"""For one group version: an aggregated API that hangs must not delay all others."""
_AT_ONCE: Final = 8
_API_VERSION: Final = re.compile(r"([a-z0-9][-a-z0-9.]*/)?[a-z0-9][-a-z0-9]*")


_VersionRead: TypeAlias = tuple[GroupVersion, list[ApiResource] | errors.KubeError]
"""A group version with its resources, or with the reason why they cannot be read."""


@dataclass(frozen=True, slots=True)
class _Document:
    """The resources of one group version; none if it is not served or cannot be read."""

    resources: list[ApiResource]
    read_at: float


@dataclass(frozen=True, slots=True)
class _Aggregated:
    """An aggregated document: per group version its resources, or why they cannot be read."""

    etag: str
    versions: Sequence[_VersionRead]
    read_at: float


class Discovery:
    """A cached view of a server's discovery documents; its creator closes it.

    Who knows a group version asks for its document only: `by_kind` costs one request, where all
    documents of a server are thirty.

    Args:
        exchange: sends a request to the server.
        cluster: returns the cluster's name, for errors.
        confirm: makes sure that the accepted cluster has answered, because types may be absent; see
            `KubeClient.confirm`.
        patience: how long to wait for one group version.
        most: limit of the types that are not built in, over all group versions together; and of
            each group version.
    """

    def __init__(
        self,
        exchange: Callable[[Call], Awaitable[Answer]],
        cluster: Callable[[], str] = str,
        confirm: Callable[[], Awaitable[None]] | None = None,
        *,
        patience: timedelta = _PATIENCE,
        most: int = MAX_TYPES,
    ) -> None:
        self._exchange = exchange
        self._confirm = confirm
        self._patience = patience
        self._most = most
        self._cluster = cluster
        self._resources: list[ApiResource] = []
        self._failed: dict[str, errors.KubeError] = {}
        self._read_at = float("-inf")
        self._aggregated: dict[str, _Aggregated] = {}
        """The last aggregated document of a path."""
        self._count = 0
        """Number of types that the current run has found, without the built-in ones."""
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
        elif document := None if anew else self._documents.get(api_version):
            return document.resources
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
            raise self._named(unknown("the client of this cluster is closed"))
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
            resources = await self.refresh()
        except errors.NotFound as e:  # every API server has discovery: this is none
            raise self._named(unknown(str(e))) from e
        failed = [v for v in self._failed if v.rpartition("/")[0] == resource.group]
        if any(api.resource.key == resource.key for api in resources):
            return True
        if failed:
            raise self._named(unknown(f"{', '.join(failed)} cannot be read"))
        return False

    async def by_kind(self, api_version: str, kind: str) -> ApiResource | None:
        """The resource that serves a kind; unknown kinds are looked up again.

        Raises:
            KubeError: the core group cannot be read; or another cluster answers, so that nothing
                is known to be absent.
        """
        resource = _of_kind(await self.version(api_version), kind)
        if resource is None and not _is_recent(self._documents[api_version].read_at):
            resource = _of_kind(await self.version(api_version, anew=True), kind)
        if resource is None and self._confirm is not None:
            await self._confirm()
        return resource

    async def by_name(self, text: str) -> ApiResource | None:
        """The resource of a name as users write it: full, kubectl's, plural or short.

        Raises:
            InvalidName: the text is not a resource name.
        """
        for name in parse_resource_name(text):
            if resource := await self._find(lambda r, name=name: _is_meant(r, name)):
                return resource
        return None

    async def _find(self, matches: Callable[[ApiResource], bool]) -> ApiResource | None:
        resource = _first(await self.resources(), matches)
        if resource is None and not _is_recent(self._read_at):
            resource = _first(await self.refresh(), matches)
        return resource

    async def _read_document(self, api_version: str) -> list[ApiResource]:
        resources: list[ApiResource] = []
        if _API_VERSION.fullmatch(api_version):  # a user may have written it, and it is in a path
            group, _, version = api_version.rpartition("/")
            self._count = 0
            where = GroupVersion(group, version, is_preferred=True)
            read = await self._read_version(asyncio.Semaphore(), where)
            resources = read if isinstance(read, list) else []
        self._documents[api_version] = _Document(resources, time.monotonic())
        return resources

    async def _read(self) -> list[ApiResource]:
        self._count = 0
        resources: list[ApiResource] = []
        failed: dict[str, errors.KubeError] = {}
        for where, read in await self._read_versions():
            if isinstance(read, list):
                resources += read
                self._documents[str(where)] = _Document(read, time.monotonic())
            else:
                failed[str(where)] = read  # an aggregated API that is down
        if self._confirm is not None:
            await self._confirm()
        self._resources, self._failed, self._read_at = resources, failed, time.monotonic()
        return resources

    async def _read_versions(
        self,
    ) -> Sequence[_VersionRead]:
        """The resources of each group version, or why they cannot be read."""
        answer = await self._ask("/apis")
        others = await self._read_aggregated("/apis", answer)
        if others is None:
            return await self._read_each(versions_of(parse_object(answer.body)))
        core = self._core_beside(answer)
        if core is None:
            core = await self._read_aggregated("/api", await self._ask("/api"))
        if core is None:  # one of several API servers is older than the others
            return await self._read_each([where for where, _ in others])
        return [*core, *others]

    def _core_beside(self, others: Answer) -> Sequence[_VersionRead] | None:
        """The core group as it was read, while nothing suggests another version of the server."""
        core = self._aggregated.get("/api")
        if core is None or not others.is_unchanged:
            return None
        return core.versions if time.monotonic() - core.read_at < _CORE_AGAIN else None

    async def _ask(self, path: str) -> Answer:
        last = self._aggregated.get(path)
        return await self._exchange(
            Call("GET", path, accept=AGGREGATED, etag=last.etag if last else "")
        )

    async def _read_aggregated(self, path: str, answer: Answer) -> Sequence[_VersionRead] | None:
        """The versions of an aggregated document; None if the server has answered another."""
        if answer.is_unchanged:
            last = self._aggregated[path]
            self._aggregated[path] = replace(last, read_at=time.monotonic())
            return last.versions
        if "APIGroupDiscoveryList" not in answer.media_type:
            return None
        versions: list[_VersionRead] = []
        for where, resources in read_aggregated(answer.body, most=self._most):
            if resources is None:
                error = unknown(f"the API server of {where} does not answer")
                versions.append((where, self._named(error)))
            else:
                versions.append((where, self._bounded(where, resources)))
            await asyncio.sleep(0)  # let others run: a pool shares the process
        self._aggregated[path] = _Aggregated(answer.etag, versions, time.monotonic())
        return versions

    async def _read_each(self, versions: Sequence[GroupVersion]) -> Sequence[_VersionRead]:
        versions = [GroupVersion("", "v1", is_preferred=True), *versions]
        at_once = asyncio.Semaphore(_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as reads:
                tasks = [reads.create_task(self._read_version(at_once, v)) for v in versions]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        return [(where, task.result()) for where, task in zip(versions, tasks, strict=True)]

    async def _read_version(
        self, at_once: asyncio.Semaphore, where: GroupVersion
    ) -> list[ApiResource] | errors.KubeError:
        """The resources of a group version, or why it cannot be read; raises for the core group."""
        path = f"/apis/{where}" if where.group else f"/api/{where}"
        async with at_once:
            try:
                async with asyncio.timeout(self._patience.total_seconds()):
                    answer = await self._exchange(Call("GET", path))
                resources = self._bounded(where, resources_of(parse_object(answer.body), where))
            except TimeoutError:
                resources = unknown(f"no answer for {path} in time")
            except errors.KubeError as e:
                resources = e
        if isinstance(resources, list):
            return resources
        if not where.group:
            raise resources
        return self._named(resources)

    def _bounded(
        self, where: GroupVersion, resources: list[ApiResource]
    ) -> list[ApiResource] | errors.KubeError:
        """The resources, if there is room: who adds types does not push out the built-in ones."""
        count = 0 if is_built_in(where.group or CORE) else self._count
        if count + len(resources) > self._most:
            return self._named(unknown(f"the API server has more than {self._most} types"))
        if not is_built_in(where.group or CORE):
            self._count += len(resources)
        return resources

    def _named(self, error: errors.KubeError) -> errors.KubeError:
        if isinstance(error, errors.Unreachable):
            error.cluster = error.cluster or self._cluster()
        return error


def _is_recent(read_at: float) -> bool:
    return time.monotonic() - read_at <= REFRESH.total_seconds()


def _of_kind(resources: Iterable[ApiResource], kind: str) -> ApiResource | None:
    return next((resource for resource in resources if resource.kind == kind), None)


def _see(reading: asyncio.Task[list[ApiResource]]) -> None:
    """Retrieve the exception: there may be no caller left, which is no error."""
    if not reading.cancelled():
        reading.exception()


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
