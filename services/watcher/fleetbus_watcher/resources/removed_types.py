"""Removal of types: only with proof are their objects deleted from the snapshot (rule W17).

That discovery lacks a type is no proof: an aggregated API may be down, a CRD in the middle of an
upgrade. Proof is that two good discoveries in a row lack it, that a complete list of CRDs lacks
its CRD, which it had before, and that no APIService has its group, which may have replaced the CRD.
Which types had a CRD is kept in the bucket, so that a removal while no watcher runs is noticed too.
Then the end of an empty list is published that needs no confirmation, and the keys of the type are
deleted.

A type without a CRD that disappears, for instance with its APIService, is left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Any, Final, NoReturn

import msgspec
import structlog

from fleetbus.bus.key_value import DECODE_ERRORS, Entry
from fleetbus.errors import BusError, KubeError, NotFound
from fleetbus.kube.client import KubeClient
from fleetbus.kube.list_watch.listing import METADATA, WatchTarget, list_pages
from fleetbus.kube.responses import invalid_response
from fleetbus.process.clock import utc_now
from fleetbus.watchers.resync import read_resync
from fleetbus_proto.events import EpochEnd, Rank
from fleetbus_proto.keys import kv_audit, kv_checkpoint, kv_types
from fleetbus_proto.resources import Resource, is_built_in
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.audit.pages import read_identity
from fleetbus_watcher.errors import (
    ClusterReplaced,
    EpochAbandoned,
    HistoryBroken,
    WatcherError,
)
from fleetbus_watcher.etcd_restore import check_list_version
from fleetbus_watcher.follow.context import CRDS, ClusterContext
from fleetbus_watcher.incarnation import claim_epoch, compare_and_set
from fleetbus_watcher.selection import SelectedResource, SelectionResult

log = structlog.get_logger()

_PAGE: Final = 50
"""CRDs per page: their metadata may contain a copy of the whole definition."""
_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"
_DISCOVERIES: Final = 2
"""So many good discoveries in a row must lack a type."""


class _Type(msgspec.Struct, frozen=True):
    """A watched type that is defined by a CRD."""

    group: str
    version: str
    resource: str
    kind: str
    scopes: tuple[str, ...]

    @property
    def api(self) -> Resource:
        return Resource(self.group, self.version, self.resource)

    @property
    def key(self) -> str:
        return self.api.key

    @property
    def crd(self) -> str:
        """The name of its CRD."""
        return f"{self.resource}.{self.group}"


class _Record(msgspec.Struct, frozen=True):
    """The value of the key, as JSON."""

    types: tuple[_Type, ...] = ()


_decoder = msgspec.json.Decoder(_Record)


class _ServiceSpec(msgspec.Struct):
    group: str = ""
    service: dict[str, Any] | None = None
    """None for what the API server serves itself, CRDs above all."""


class _Service(msgspec.Struct):
    spec: _ServiceSpec


class _Services(msgspec.Struct):
    items: list[_Service]


class RemovedTypes:
    """Detects removed types of one cluster.

    Args:
        context: of the cluster.
        stop: stops the watchers of a resource, by its key. What they still reported would make the
            removed type known again, as one that cannot be read.
    """

    def __init__(self, context: ClusterContext, stop: Callable[[str], Awaitable[None]]) -> None:
        self._context = context
        self._stop = stop
        self._cluster = context.settings.cluster
        self._log = log.bind(cluster=self._cluster)
        self._observed = asyncio.Event()
        self._selected = SelectionResult()
        # The types in the bucket, once it is read: watched, or absent without proof of removal.
        self._types: dict[str, _Type] = {}
        self._is_read = False
        # The keys of those that are watched.
        self._watched: set[str] = set()
        # Whether a watched type is defined by a CRD.
        self._has_crd: dict[str, bool] = {}
        # How many good discoveries in a row lacked a type.
        self._absent: dict[str, int] = {}

    def observe(self, selected: SelectionResult) -> None:
        """Take note of a discovery; one that failed returns the previous result."""
        if selected is self._selected:
            return
        self._selected = selected
        for key, entry in self._types.items():
            if key in selected.served:
                self._absent.pop(key, None)
            elif entry.group not in selected.in_doubt:
                self._absent[key] = self._absent.get(key, 0) + 1
        self._observed.set()

    def holds(self, resource: Resource) -> bool:
        """Whether a resource that is not selected may still exist; its watch then stays (W8)."""
        is_missing = resource.key in self._types and resource.key not in self._selected.served
        return is_missing or resource.group in self._selected.in_doubt

    async def run(self) -> NoReturn:
        """Check after each discovery until cancelled; no failure of server or bus ends it.

        Raises:
            ClusterReplaced, HistoryBroken: everything must start over.
        """
        while True:
            await self._observed.wait()
            self._observed.clear()
            try:
                await self._check()
            except (ClusterReplaced, HistoryBroken):
                raise
            except (KubeError, BusError, WatcherError) as e:
                self._log.warning("removed_types_check_failed", error=str(e))
            if self._needs_second_discovery():
                await asyncio.sleep(self._context.timing.second_discovery.total_seconds())
                self._context.types_changed.set()

    def _needs_second_discovery(self) -> bool:
        """Whether another good discovery soon would help; a failing group may stay so for long."""
        doubt = self._selected.in_doubt
        return any(
            count < _DISCOVERIES and self._types[key].group not in doubt
            for key, count in self._absent.items()
        )

    async def _check(self) -> None:
        if not self._is_read:
            self._types = {entry.key: entry for entry in await self._read()}
            self._is_read = True
            self._absent = {
                key: 1
                for key, entry in self._types.items()
                if key not in self._selected.served and entry.group not in self._selected.in_doubt
            }
        await self._record_watched(self._selected)
        gone = [self._types[key] for key, count in self._absent.items() if count >= _DISCOVERIES]
        if gone:
            await self._remove_proven(gone)

    # --- known types --------------------------------------------------------------------------

    async def _record_watched(self, selected: SelectionResult) -> None:
        """Record watched types with a CRD; those that are not served stay recorded."""
        watched: dict[str, list[SelectedResource]] = {}
        for each in selected.resources.values():
            if not is_built_in(each.api.resource.group):
                watched.setdefault(each.api.resource.key, []).append(each)
        await self._classify(watched)
        types = {key: _type_of(scopes) for key, scopes in watched.items() if self._has_crd[key]}
        # Only what we watched: another replica may have another watch spec for a while.
        left = {key for key in self._watched if key in selected.served and key not in types}
        new = {key: entry for key, entry in types.items() if self._types.get(key) != entry}
        if new or left:
            await self._change(new, left)
        self._watched = set(types)

    async def _classify(self, watched: Mapping[str, list[SelectedResource]]) -> None:
        self._has_crd = {key: has for key, has in self._has_crd.items() if key in watched}
        unknown = {
            f"{scopes[0].api.resource.plural}.{scopes[0].api.resource.group}": key
            for key, scopes in watched.items()
            if key not in self._has_crd
        }
        if unknown:
            crds, _ = await self._find_crds(unknown)
            self._has_crd |= {key: crd in crds for crd, key in unknown.items()}

    async def _find_crds(self, names: Iterable[str]) -> tuple[set[str], str]:
        """Return which of the names are in a complete list of CRDs, and its version.

        Raises:
            KubeError, WatcherError: it may not be complete (W8).
        """
        context, searched, present, version = self._context, set(names), set[str](), ""
        async with context.lists:
            pages = list_pages(
                context.client,
                WatchTarget(CRDS),
                limit=_PAGE,
                idle_timeout=context.settings.silence,
                accept=METADATA,
            )
            async with aclosing(pages):
                async for page in pages:
                    version = page.resource_version
                    present |= {read_identity(item)[1] for item in page.items} & searched
        return present, version

    # --- removal ------------------------------------------------------------------------------

    async def _remove_proven(self, gone: list[_Type]) -> None:
        context = self._context
        await context.identity.check()
        highest = await self._highest_mark(gone)
        crds, version = await self._find_crds(each.crd for each in gone)
        check_list_version(highest, version, EpochAbandoned)
        # A type whose CRD exists is being deleted or changed, or is not served at the moment.
        gone = [each for each in gone if each.crd not in crds]
        aggregated = await _aggregated_groups(context.client) if gone else frozenset[str]()
        for each in gone:
            if each.group in aggregated:
                # Its CRD was replaced; what objects the aggregated server has is unknown.
                await self._change({}, {each.key})
                self._log.warning("type_is_aggregated", resource=str(each.api))
            else:
                await self._remove(each, version)
            self._context.types_changed.set()

    async def _remove(self, removed: _Type, version: str) -> None:
        await self._stop(removed.key)
        # Not in the bucket any more: a peer replica was first.
        if removed.key in {recorded.key for recorded in await self._read()}:
            for scope in removed.scopes:
                await self._publish_end(removed, scope, version)
            await self._remove_keys(removed)
        # Last of all: while it is recorded, everything before is repeated.
        await self._change({}, {removed.key})
        self._log.info("type_removed", resource=str(removed.api))

    async def _highest_mark(self, types: Iterable[_Type]) -> str:
        """Return the highest version known of these types, to compare with the list (W12).

        All types of a cluster share one version counter.
        """
        context, highest = self._context, ""
        for each in types:
            for scope in each.scopes:
                checkpoint = await context.checkpoints.read(each.api, scope, context.incarnation)
                if checkpoint is not None and is_newer(checkpoint.resource_version, highest):
                    highest = checkpoint.resource_version
        return highest

    async def _publish_end(self, removed: _Type, scope: str, version: str) -> None:
        context, resource = self._context, removed.api
        request = await read_resync(context.kv, self._cluster, resource)
        epoch = await claim_epoch(context.kv, self._cluster, resource, request)
        await context.publisher.publish_marker(
            EpochEnd(
                cluster=self._cluster,
                incarnation=context.incarnation,
                group=removed.group,
                version=removed.version,
                resource=removed.resource,
                kind=removed.kind,
                epoch=Rank(version, epoch),
                scope=scope,
                count=0,
                removed=True,
                observed_at=utc_now(),
            )
        )

    async def _remove_keys(self, removed: _Type) -> None:
        """Delete the keys of a type, but not its last epoch id, which must never decrease (W7)."""
        place = (self._cluster, removed.group, removed.resource)
        for scope in removed.scopes:
            await self._context.kv.delete(kv_checkpoint(*place, scope))
            await self._context.kv.delete(kv_audit(*place, scope))

    # --- the record ---------------------------------------------------------------------------

    async def _read(self) -> tuple[_Type, ...]:
        return _decode(await self._context.kv.get(kv_types(self._cluster)))

    async def _change(self, new: dict[str, _Type], left: AbstractSet[str]) -> None:
        """Change the record by compare-and-set: a peer replica may have another watch spec."""
        kv, key = self._context.kv, kv_types(self._cluster)
        while True:
            entry = await kv.get(key)
            types = {t.key: t for t in _decode(entry) if t.key not in left} | new
            value = msgspec.json.encode(_Record(tuple(types[name] for name in sorted(types))))
            if await compare_and_set(kv, key, value, entry):
                break
        self._types = {k: t for k, t in self._types.items() if k not in left} | new
        for name in left:
            self._absent.pop(name, None)


async def _aggregated_groups(client: KubeClient) -> frozenset[str]:
    """Return the groups whose APIService names a service, whether that answers or not.

    Raises:
        KubeError: they could not be read (W8); without APIServices there are no such groups.
    """
    try:
        services = msgspec.convert(await client.get_json(_SERVICES), _Services)
    except NotFound:
        return frozenset()
    except msgspec.ValidationError as e:
        raise invalid_response(f"invalid list of APIServices: {e}") from e
    return frozenset(item.spec.group for item in services.items if item.spec.service is not None)


def _decode(entry: Entry | None) -> tuple[_Type, ...]:
    try:
        return _decoder.decode(entry.value).types if entry is not None else ()
    except DECODE_ERRORS:
        return ()


def _type_of(selected: list[SelectedResource]) -> _Type:
    api = selected[0].api
    resource = api.resource
    scopes = tuple(sorted(each.scope for each in selected))
    return _Type(resource.group, resource.version, resource.plural, api.kind, scopes)
