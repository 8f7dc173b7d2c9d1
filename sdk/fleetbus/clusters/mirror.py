"""Mirrors the hub's objects for providers: one list, then each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.json_fields import mapping, string
from fleetbus.kube.list_watch.reflect import (
    ObjectChange,
    ObjectList,
    Observer,
    WatchTarget,
    WatchType,
    reflect,
)
from fleetbus.process.metrics import SKIPPED_ENTRIES
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource

log = structlog.get_logger()

Place = tuple[str, str]
"""Namespace (empty at cluster scope) and name."""

Objects = dict[Place, Object]


class Mirror:
    """All objects of one selection of the hub; None until they have been listed."""

    def __init__(self, client: KubeClient, target: WatchTarget) -> None:
        self._client = client
        self._target = target
        self.objects: Objects | None = None

    @property
    def resource(self) -> Resource:
        """The resource of the objects."""
        return self._target.resource

    async def read_anew(self, place: Place) -> Object | None:
        """Read one of the objects from the hub again, within the mirror's selection.

        Raises:
            KubeError: it cannot be read.
            ConfigError: our credentials for the hub cannot be loaded.
        """
        if self.objects is None or place not in self.objects:
            return None
        namespace, name = place
        objects = await self._client.list(
            self.resource,
            namespace,
            label_selector=self._target.label_selector,
            field_selector=f"metadata.name={name}",
        )
        return objects[0] if objects else None

    async def run(self, changed: asyncio.Event) -> None:
        """Follow the hub for ever; set `changed` after each change."""
        observer = Observer(on_failure=self._log_failure)
        async for step in reflect(self._client, self._target, observer=observer):
            if isinstance(step, ObjectList):
                self.objects = {key_of(obj): obj for obj in step.objects}
            else:
                self._take(step)
            changed.set()

    def _take(self, change: ObjectChange) -> None:
        objects = self.objects if self.objects is not None else {}
        if change.type is WatchType.DELETED:
            objects.pop(key_of(change.object), None)
        else:
            objects[key_of(change.object)] = change.object
        self.objects = objects

    def _log_failure(self, error: Exception) -> None:
        log.warning("hub_unreadable", resource=str(self._target.resource), error=str(error))


def key_of(obj: Object) -> tuple[str, str]:
    """Namespace, empty at cluster scope, and name."""
    metadata = mapping(obj, "metadata")
    return string(metadata, "namespace"), string(metadata, "name")


async def discover_on_hub(hub: KubeConfig | None, name: str) -> AsyncGenerator[Resource | None]:
    """Yield the resource of this name in the version that the hub prefers, and end.

    Yields None first if discovery is complete and the hub does not serve the resource yet.

    Args:
        hub: access data of the hub; None means the pod's service account.
        name: kubectl's: `clusters.cluster.x-k8s.io`.
    """
    backoff = ApiBackoff()
    is_reported = False
    async with KubeClient(hub) as client:
        while (resource := await _find_resource(client, name, backoff)) is None:
            if not is_reported and not client.discovery.failed:
                is_reported = True
                log.info("hub_does_not_serve", resource=name)
                yield None
            await asyncio.sleep(backoff.delay().total_seconds())
        yield resource


async def _find_resource(client: KubeClient, name: str, backoff: ApiBackoff) -> Resource | None:
    """The resource of this name; None if the hub does not serve it. Retries until it answers."""
    while True:
        try:
            await client.discovery.refresh()
            api_resource = await client.discovery.by_name(name)
        except (KubeError, ConfigError) as e:
            log.warning("hub_unreadable", resource=name, error=str(e))
            await asyncio.sleep(backoff.delay(e).total_seconds())
        else:
            return api_resource.resource if api_resource else None


async def watch_hub(
    hub: KubeConfig | None,
    targets: Sequence[WatchTarget],
    read: Callable[[Sequence[Objects]], list[ClusterInfo]],
    follow: Callable[[Sequence[Mirror]], None],
) -> AsyncGenerator[list[ClusterInfo]]:
    """Yield the clusters that `read` finds in the hub's objects, whenever they have changed.

    Nothing is yielded before everything has been listed, nor while the hub cannot be read: the last
    set then stays valid.

    Args:
        hub: access data of the hub; None means the pod's service account.
        targets: what to mirror.
        read: from the objects of each target, in the targets' order, to the clusters.
        follow: is given the mirrors before anything is read.
    """
    last: list[ClusterInfo] | None = None
    async with _mirrored(hub, targets) as (mirrors, next_change):
        follow(mirrors)
        while True:
            await next_change()
            infos = await _read_mirrors(mirrors, read)
            if infos is not None and infos != last:
                last = infos
                yield infos


async def watch_served(
    hub: KubeConfig | None,
    name: str,
    sets: Callable[[Resource], AsyncGenerator[list[ClusterInfo]]],
) -> AsyncGenerator[list[ClusterInfo]]:
    """Yield the sets of clusters from a resource of the hub; an empty one until it is served.

    Args:
        hub: access data of the hub; None means the pod's service account.
        name: the name of the resource, as for `discover_on_hub`.
        sets: yields the sets, given the resource in the served version.
    """
    async with aclosing(discover_on_hub(hub, name)) as resources:
        served = await anext(resources)
        if served is None:
            yield []
            served = await anext(resources)
    if served is not None:
        async with aclosing(sets(served)) as infos:
            async for each in infos:
                yield each


async def _read_mirrors(
    mirrors: Sequence[Mirror], read: Callable[[Sequence[Objects]], list[ClusterInfo]]
) -> list[ClusterInfo] | None:
    """The clusters; None until all objects have been listed."""
    listed = [dict(mirror.objects) for mirror in mirrors if mirror.objects is not None]
    if len(listed) < len(mirrors):
        return None
    # In a thread: parsing the kubeconfigs of a large fleet takes seconds.
    return await asyncio.to_thread(read, listed)


@asynccontextmanager
async def _mirrored(
    hub: KubeConfig | None, targets: Sequence[WatchTarget]
) -> AsyncGenerator[tuple[list[Mirror], Callable[[], Awaitable[None]]]]:
    """Running mirrors of the targets, and a function that waits for the next change."""
    changed = asyncio.Event()
    async with KubeClient(hub) as client:
        mirrors = [Mirror(client, target) for target in targets]
        tasks = [asyncio.create_task(each.run(changed), name="mirror the hub") for each in mirrors]
        for task in tasks:
            task.add_done_callback(lambda _: changed.set())

        async def next_change() -> None:
            await changed.wait()
            changed.clear()
            _raise_if_ended(tasks)

        try:
            yield mirrors, next_change
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _raise_if_ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """A mirror never ends by itself; one that has failed would look like a quiet hub."""
    for task in tasks:
        if task.done():
            task.result()


def read_entries(
    places: Iterable[Place], read: Callable[[Place], ClusterInfo]
) -> tuple[list[ClusterInfo], dict[str, str]]:
    """Read the clusters at these places; also return why the others cannot be read.

    A problem with one entry affects only that entry (rule S7).
    """
    infos: dict[str, ClusterInfo] = {}
    reasons: dict[str, str] = {}
    for place in sorted(places):
        info, reason = _read_entry(place, read)
        if info is not None and infos.setdefault(info.name, info) is not info:
            reason = f"another entry is already named {info.name!r}"
        if reason:
            reasons["/".join(place)] = reason
    return list(infos.values()), reasons


def _read_entry(
    place: Place, read: Callable[[Place], ClusterInfo]
) -> tuple[ClusterInfo | None, str]:
    try:
        return read(place), ""
    except (InvalidName, ConfigError) as e:
        return None, str(e)
    except Exception as e:  # noqa: BLE001 -- one entry must not affect the other clusters
        # The message may quote the entry, which may contain secrets.
        return None, f"it cannot be read: {type(e).__name__}"


class SkippedEntries:
    """Logs the unusable entries of a provider, each once until its reason changes."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._reported: Mapping[str, str] = {}
        SKIPPED_ENTRIES.labels(provider)

    def report(self, reasons: Mapping[str, str]) -> None:
        """Report the entries that are skipped now, by their name."""
        for entry, reason in reasons.items():
            if self._reported.get(entry) != reason:
                log.warning("cluster_skipped", provider=self._provider, entry=entry, error=reason)
        SKIPPED_ENTRIES.labels(self._provider).inc(len(reasons) - len(self._reported))
        self._reported = dict(reasons)
