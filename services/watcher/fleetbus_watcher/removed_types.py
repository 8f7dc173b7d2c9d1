"""Types that end: only with proof is what we know of their objects given up (rule W17).

That discovery does not tell of a type is no proof: an aggregated API may be down, a CRD in the
midst of an upgrade. Proof is that two good discoveries in a row lack it and that a complete list of
CRDs does, in which it was before, and that no APIService has its group: it may have taken the CRD's
place. Which types had a CRD is kept in the bucket, so that one that ends while no watcher runs is
noticed too. Then the end is published, like that of an empty list which needs no second look, and
the keys of the type are removed.

A type without a CRD that goes, as with its APIService, is left as it is: nobody can tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from datetime import timedelta
from typing import Final, NoReturn

import msgspec
import structlog

from fleetbus.bus.key_value import DECODE_ERRORS, Entry
from fleetbus.errors import BusError, KubeError
from fleetbus.kube.listing import METADATA, WatchTarget, list_pages
from fleetbus.process.clock import utc_now
from fleetbus.watchers.resync import read_resync
from fleetbus_proto.events import EpochEnd, Rank
from fleetbus_proto.keys import kv_audit, kv_checkpoint, kv_types
from fleetbus_proto.resources import Resource, is_built_in
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.aggregated_groups import aggregated_groups
from fleetbus_watcher.audit.pages import read_identity
from fleetbus_watcher.errors import (
    ClusterReplaced,
    EpochAbandoned,
    HistoryBroken,
    WatcherError,
)
from fleetbus_watcher.follow.resource_watcher import Surroundings
from fleetbus_watcher.incarnation import claim_epoch, swap
from fleetbus_watcher.selection import Choice, Chosen
from fleetbus_watcher.server_checks import check_list

log = structlog.get_logger()

CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_PAGE: Final = 50
"""CRDs per page: their metadata may hold a copy of the whole definition."""
_SECOND_LOOK: Final = timedelta(seconds=2)
_LOOKS: Final = 2


class _Type(msgspec.Struct, frozen=True):
    """A watched type that a CRD defines."""

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


class TypeEnds:
    """Follows which types there are in one cluster.

    Args:
        around: what all resources share.
        discover: makes somebody discover again soon, and `observe` what was found.
    """

    def __init__(self, around: Surroundings, discover: Callable[[], None]) -> None:
        self._around = around
        self._discover = discover
        self._cluster = around.settings.cluster
        self._log = log.bind(cluster=self._cluster)
        self._observed = asyncio.Event()
        self._chosen = Chosen()
        # Those in the bucket, once they are read: watched, or gone and not proven to be.
        self._types: dict[str, _Type] = {}
        self._is_read = False
        # Those of them that are watched.
        self._watched: set[str] = set()
        # Whether a CRD defines a type that is watched.
        self._has_crd: dict[str, bool] = {}
        # In how many good discoveries in a row a type was not there.
        self._absent: dict[str, int] = {}

    def observe(self, chosen: Chosen) -> None:
        """Take note of a discovery; of one that failed there is nothing new to choose from."""
        if chosen is self._chosen:
            return
        self._chosen = chosen
        for key, found in self._types.items():
            if key in chosen.served:
                self._absent.pop(key, None)
            elif found.group not in chosen.in_doubt:
                self._absent[key] = self._absent.get(key, 0) + 1
        self._observed.set()

    def holds(self, resource: Resource) -> bool:
        """Whether a type that is not chosen is not known to have ended; it stays as it is (W8)."""
        is_missing = resource.key in self._types and resource.key not in self._chosen.served
        return is_missing or resource.group in self._chosen.in_doubt

    async def run(self) -> NoReturn:
        """Look after each discovery until cancelled; no failure of server or bus ends it.

        Raises:
            ClusterReplaced, HistoryBroken: everything must start anew.
        """
        while True:
            await self._observed.wait()
            self._observed.clear()
            try:
                await self._look()
            except (ClusterReplaced, HistoryBroken):
                raise
            except (KubeError, BusError, WatcherError) as e:
                self._log.warning("types_in_doubt", error=str(e))
            if self._wants_second_look():
                await asyncio.sleep(_SECOND_LOOK.total_seconds())
                self._discover()

    def _wants_second_look(self) -> bool:
        """Whether a good discovery soon would tell more; a group in doubt may stay so for long."""
        doubt = self._chosen.in_doubt
        return any(
            count < _LOOKS and self._types[key].group not in doubt
            for key, count in self._absent.items()
        )

    async def _look(self) -> None:
        if not self._is_read:
            self._types = {found.key: found for found in await self._read()}
            self._is_read = True
            self._absent = {
                key: 1
                for key, found in self._types.items()
                if key not in self._chosen.served and found.group not in self._chosen.in_doubt
            }
        await self._note(self._chosen)
        gone = [self._types[key] for key, count in self._absent.items() if count >= _LOOKS]
        if gone:
            await self._end_proven(gone)

    # --- which types there are ----------------------------------------------------------------

    async def _note(self, chosen: Chosen) -> None:
        """Keep those that are watched and have a CRD, and those that are not served."""
        watched: dict[str, list[Choice]] = {}
        for choice in chosen.choices.values():
            if not is_built_in(choice.api.resource.group):
                watched.setdefault(choice.api.resource.key, []).append(choice)
        await self._classify(watched)
        ours = {key: _type_of(choices) for key, choices in watched.items() if self._has_crd[key]}
        # Not those of others: another replica may be told to watch other types for a while.
        left = {key for key in self._watched if key in chosen.served and key not in ours}
        new = {key: found for key, found in ours.items() if self._types.get(key) != found}
        if new or left:
            await self._change(new, left)
        self._watched = set(ours)

    async def _classify(self, watched: Mapping[str, list[Choice]]) -> None:
        self._has_crd = {key: has for key, has in self._has_crd.items() if key in watched}
        unknown = {
            f"{choices[0].api.resource.plural}.{choices[0].api.resource.group}": key
            for key, choices in watched.items()
            if key not in self._has_crd
        }
        if unknown:
            found, _ = await self._find_crds(unknown)
            self._has_crd |= {key: crd in found for crd, key in unknown.items()}

    async def _find_crds(self, names: Iterable[str]) -> tuple[set[str], str]:
        """Those of the names that a complete list of CRDs holds, and its version.

        Raises:
            KubeError, WatcherError: it may not be complete (W8).
        """
        around, wanted, found, version = self._around, set(names), set[str](), ""
        async with around.lists:
            pages = list_pages(
                around.client,
                WatchTarget(CRDS),
                limit=_PAGE,
                idle_timeout=around.settings.silence,
                accept=METADATA,
            )
            async with aclosing(pages):
                async for page in pages:
                    version = page.resource_version
                    found |= {read_identity(item)[1] for item in page.items} & wanted
        return found, version

    # --- the end ------------------------------------------------------------------------------

    async def _end_proven(self, gone: list[_Type]) -> None:
        around = self._around
        await around.check_identity()
        known = await self._highest_mark(gone)
        found, version = await self._find_crds(each.crd for each in gone)
        check_list(known, version, EpochAbandoned)
        # One whose CRD is there is being deleted, or changed, or not served just now.
        gone = [each for each in gone if each.crd not in found]
        aggregated = await aggregated_groups(around.client) if gone else frozenset[str]()
        for each in gone:
            if each.group in aggregated:
                # Its CRD was replaced; what the server behind it holds nobody can tell.
                await self._change({}, {each.key})
                self._log.warning("type_is_aggregated", resource=str(each.api))
            else:
                await self._end(each, version)
            self._discover()

    async def _end(self, ended: _Type, version: str) -> None:
        # Not in the bucket any more: the other replica was faster.
        if ended.key in {recorded.key for recorded in await self._read()}:
            for scope in ended.scopes:
                await self._publish_end(ended, scope, version)
            await self._remove_keys(ended)
        # Last of all: as long as it is there, everything before is done again.
        await self._change({}, {ended.key})
        self._log.info("type_ended", resource=str(ended.api))

    async def _highest_mark(self, types: Iterable[_Type]) -> str:
        """What the server has told of them, read before it is asked again (W12); empty for nothing.

        All types of a cluster have one counter of versions.
        """
        around, highest = self._around, ""
        for each in types:
            for scope in each.scopes:
                found = await around.checkpoints.read(each.api, scope, around.incarnation)
                if found is not None and is_newer(found.resource_version, highest):
                    highest = found.resource_version
        return highest

    async def _publish_end(self, ended: _Type, scope: str, version: str) -> None:
        around, resource = self._around, ended.api
        wanted = await read_resync(around.kv, self._cluster, resource)
        epoch = await claim_epoch(around.kv, self._cluster, resource, wanted)
        await around.publisher.publish_marker(
            EpochEnd(
                cluster=self._cluster,
                incarnation=around.incarnation,
                group=ended.group,
                version=ended.version,
                resource=ended.resource,
                kind=ended.kind,
                epoch=Rank(version, epoch),
                scope=scope,
                count=0,
                removed=True,
                observed_at=utc_now(),
            )
        )

    async def _remove_keys(self, ended: _Type) -> None:
        """What was known of it; not the last epoch id, which must never fall (W7)."""
        place = (self._cluster, ended.group, ended.resource)
        for scope in ended.scopes:
            await self._around.kv.delete(kv_checkpoint(*place, scope))
            await self._around.kv.delete(kv_audit(*place, scope))

    # --- the record ---------------------------------------------------------------------------

    async def _read(self) -> tuple[_Type, ...]:
        return _decode(await self._around.kv.get(kv_types(self._cluster)))

    async def _change(self, new: dict[str, _Type], left: AbstractSet[str]) -> None:
        """By compare-and-set: another replica may be told to watch other types."""
        kv, key = self._around.kv, kv_types(self._cluster)
        while True:
            entry = await kv.get(key)
            types = {t.key: t for t in _decode(entry) if t.key not in left} | new
            value = msgspec.json.encode(_Record(tuple(types[name] for name in sorted(types))))
            if await swap(kv, key, value, entry):
                break
        self._types = {k: t for k, t in self._types.items() if k not in left} | new
        for name in left:
            self._absent.pop(name, None)


def _decode(entry: Entry | None) -> tuple[_Type, ...]:
    try:
        return _decoder.decode(entry.value).types if entry is not None else ()
    except DECODE_ERRORS:
        return ()


def _type_of(choices: list[Choice]) -> _Type:
    api = choices[0].api
    resource = api.resource
    scopes = tuple(sorted(choice.scope for choice in choices))
    return _Type(resource.group, resource.version, resource.plural, api.kind, scopes)
