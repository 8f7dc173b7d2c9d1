"""Objects of the hub that a provider reads, kept as they are: one list, then each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog

from fleetbus.clusters.fields import map_of, text_of
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import ConfigError, FleetbusError, KubeError
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.connection.backoff import RequestBackoff
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.reflect import (
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
        """Of what kind the objects are."""
        return self._target.resource

    async def read_anew(self, place: Place) -> Object | None:
        """One of the objects as the hub has it now, with the rights and the labels of the others.

        Raises:
            KubeError: it cannot be read.
            ConfigError: our credentials for the hub cannot be loaded.
        """
        if self.objects is None or place not in self.objects:
            return None
        namespace, name = place
        found = await self._client.list(
            self.resource,
            namespace,
            label_selector=self._target.label_selector,
            field_selector=f"metadata.name={name}",
        )
        return found[0] if found else None

    async def run(self, changed: asyncio.Event) -> None:
        """Follow the hub for ever; sets `changed` after each change."""
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
    metadata = map_of(obj.get("metadata"))
    return text_of(metadata.get("namespace")), text_of(metadata.get("name"))


async def discover_on_hub(hub: KubeConfig | None, name: str) -> AsyncGenerator[Resource | None]:
    """Yield the resource of this name in the version that the hub prefers, and end.

    Yields None first if the hub, as its discovery says without doubt, does not serve it yet.

    Args:
        hub: access data of the hub; None means the pod's service account.
        name: kubectl's: `clusters.cluster.x-k8s.io`.
    """
    backoff = RequestBackoff()
    told = False
    async with KubeClient(hub) as client:
        while True:
            error: FleetbusError | None = None
            try:
                await client.discovery.refresh()
                if found := await client.discovery.by_name(name):
                    yield found.resource
                    return
                if not told and not client.discovery.failed:
                    told = True
                    log.info("hub_does_not_serve", resource=name)
                    yield None
            except (KubeError, ConfigError) as e:
                error = e
                log.warning("hub_unreadable", resource=name, error=str(e))
            await asyncio.sleep(backoff.delay(error).total_seconds())


async def watch_hub(
    hub: KubeConfig | None,
    targets: Sequence[WatchTarget],
    read: Callable[[Sequence[Objects]], list[ClusterInfo]],
    follow: Callable[[Sequence[Mirror]], None],
) -> AsyncGenerator[list[ClusterInfo]]:
    """What `read` makes of the hub's objects, each time that this is something else.

    Nothing is yielded before everything has been listed, nor while the hub cannot be read: what
    was told before stays true.

    Args:
        hub: access data of the hub; None means the pod's service account.
        targets: what to mirror.
        read: from the objects of each target, in the targets' order, to the clusters.
        follow: gets what mirrors them, before anything is read.
    """
    last: list[ClusterInfo] | None = None
    async with KubeClient(hub) as client:
        mirrors = [Mirror(client, target) for target in targets]
        follow(mirrors)
        changed = asyncio.Event()
        async with _running(mirrors, changed) as tasks:
            while True:
                await changed.wait()
                changed.clear()
                _raise_if_ended(tasks)
                found = [mirror.objects for mirror in mirrors]
                listed = [dict(objects) for objects in found if objects is not None]
                if len(listed) < len(mirrors):
                    continue
                # In a thread: the kubeconfigs of a large fleet take seconds to parse.
                infos = await asyncio.to_thread(read, listed)
                if infos != last:
                    last = infos
                    yield infos


@asynccontextmanager
async def _running(
    mirrors: Sequence[Mirror], changed: asyncio.Event
) -> AsyncGenerator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(mirror.run(changed), name="mirror the hub") for mirror in mirrors]
    for task in tasks:
        task.add_done_callback(lambda _: changed.set())
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise_if_ended(mirrors: Sequence[asyncio.Task[None]]) -> None:
    """Mirroring never ends by itself, and a mirror that stands still would look like quiet."""
    for task in mirrors:
        if task.done():
            task.result()


def read_entries(
    places: Iterable[Place], read: Callable[[Place], ClusterInfo]
) -> tuple[list[ClusterInfo], dict[str, str]]:
    """The clusters at these places, by place, and why there is none at others.

    What is wrong with one entry is that entry's problem only (rule S7).
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
    except Exception as e:  # noqa: BLE001 -- one entry must not end the fleet of everybody else
        # The text of the error may quote the entry, which may hold secrets.
        return None, f"it cannot be read: {type(e).__name__}"


class SkippedEntries:
    """Which entries of a provider cannot be used; each is told once, until its reason changes."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._reported: Mapping[str, str] = {}
        SKIPPED_ENTRIES.labels(provider)

    def report(self, reasons: Mapping[str, str]) -> None:
        """Tell the entries that are skipped now, by what names them."""
        for entry, reason in reasons.items():
            if self._reported.get(entry) != reason:
                log.warning("cluster_skipped", provider=self._provider, entry=entry, error=reason)
        SKIPPED_ENTRIES.labels(self._provider).inc(len(reasons) - len(self._reported))
        self._reported = dict(reasons)
