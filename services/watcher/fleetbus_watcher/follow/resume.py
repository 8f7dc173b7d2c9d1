"""Where a resource can go on without a list: at a checkpoint, our own or a twin's (W5, W10, W15).

Never from memory: what was acknowledged after the last heartbeat may be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NoReturn

import structlog

from fleetbus.bus.key_value import KeyValue
from fleetbus.kube.listing import WatchTarget
from fleetbus.watchers.grant_requests import GrantRequest, read_grant_requests
from fleetbus_proto.events import Incarnation, Rank
from fleetbus_proto.keys import kv_grant
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.errors import TwinListed
from fleetbus_watcher.publish.checkpoint import Checkpoints
from fleetbus_watcher.publish.loss_detector import Chain
from fleetbus_watcher.settings import WatcherSettings

log = structlog.get_logger()

_TWIN_PATIENCE: Final = timedelta(minutes=2)
"""How long a twin's epoch is waited for (W15)."""
_LOOK: Final = timedelta(seconds=1)
_SOON: Final = timedelta(seconds=0.1)
_SELDOM: Final = timedelta(seconds=5)
_RECORDED_WITHIN: Final = timedelta(seconds=3)
"""From the end of an epoch to the checkpoint; the projector may take the ask away in between."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a watch can go on without a list."""

    rank: Rank
    resource_version: str


class Resumption:
    """The positions of one resource and scope.

    Args:
        target: the resource.
        scope: the hash of what narrows it.
        incarnation: the present one; a checkpoint of another is none.
        kv: the bucket.
        checkpoints: the records.
        chain: knows whether a twin still beats.
        settings: of the watcher.
    """

    def __init__(
        self,
        *,
        target: WatchTarget,
        scope: str,
        incarnation: Incarnation,
        kv: KeyValue,
        checkpoints: Checkpoints,
        chain: Chain,
        settings: WatcherSettings,
    ) -> None:
        self._resource = target.resource
        self._scope = scope
        self._incarnation = incarnation
        self._kv = kv
        self._checkpoints = checkpoints
        self._chain = chain
        self._settings = settings
        # Where the server no longer can go on; a checkpoint must be further.
        self._stale = ""
        # The epoch that the record descends from.
        self._listed = 0
        # The epoch of a twin that was waited for in vain.
        self._given_up = 0

    def mark_stale(self, resource_version: str) -> None:
        """The server has forgotten this version: only what is newer helps."""
        if is_newer(resource_version, self._stale):
            self._stale = resource_version

    async def find(self) -> Position | None:
        """Where a watch can go on, whatever the age of the epoch behind it; None for nowhere.

        Raises:
            EventsLost: what the checkpoint says may be gone.
            BusError: nothing is known.
        """
        found = await self._checkpoints.read(self._resource, self._scope, self._incarnation)
        if found is None:
            return None
        self._listed = found.rank.id
        if self._stale and not is_newer(found.resource_version, self._stale):
            return None
        return Position(found.rank, found.resource_version)

    async def raise_if_found(
        self, suffices: Callable[[Rank], bool], seldom: timedelta = _SELDOM
    ) -> NoReturn:
        """Wait for a checkpoint that a twin writes.

        It is looked for: a watcher's rights to subscribe end at its inbox and its control subject.

        Args:
            suffices: whether an epoch of this rank is new enough.
            seldom: the longest pause between two looks.

        Raises:
            TwinListed: there is one.
            EventsLost, BusError: as `find`.
        """
        pause = _SOON
        while (found := await self.find()) is None or not suffices(found.rank):
            await asyncio.sleep(pause.total_seconds())
            pause = min(2 * pause, seldom)
        raise TwinListed("another replica has listed it")

    def is_worth_waiting(self, twin: GrantRequest, suffices: Callable[[Rank], bool]) -> bool:
        """Whether a twin's epoch will do, is not over, and was not yet waited for in vain."""
        is_running = twin.epoch > self._listed and twin.epoch != self._given_up
        # Both numbers are made of the time; an older epoch belongs to an older incarnation.
        is_ours = twin.epoch >= self._incarnation.number
        return is_running and is_ours and suffices(Rank("0", twin.epoch))

    async def wait_for(self, twin: GrantRequest, suffices: Callable[[Rank], bool]) -> None:
        """Wait for the end of a twin's epoch, as long as it seems to run (W15).

        Raises:
            EventsLost, BusError: as `find`.
        """
        log.info("twin_lists", resource=str(self._resource), replica=twin.replica)
        with suppress(TimeoutError, TwinListed):
            async with asyncio.timeout(_TWIN_PATIENCE.total_seconds()):
                await race(
                    found=self.raise_if_found(suffices, _LOOK), gone=self._raise_if_gone(twin)
                )
        self._given_up = twin.epoch

    async def _raise_if_gone(self, twin: GrantRequest) -> NoReturn:
        """Wait until nothing is to be expected of a twin any more.

        Raises:
            TimeoutError: then.
        """
        heart, silent_for = -1, timedelta()
        resource = self._resource
        key = kv_grant(self._settings.cluster, resource.group, resource.plural)
        while (await read_grant_requests(self._kv, key)).find(twin) is not None:
            latest = await self._chain.latest(twin.replica)
            silent_for = silent_for + _LOOK if latest == heart else timedelta()
            heart = latest
            if silent_for > self._settings.heartbeat_idle + self._settings.heartbeat_busy:
                raise TimeoutError
            await asyncio.sleep(_LOOK.total_seconds())
        await asyncio.sleep(_RECORDED_WITHIN.total_seconds())
        raise TimeoutError
