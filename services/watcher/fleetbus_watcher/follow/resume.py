"""Resume a watch without a list, from a checkpoint of ours or of a peer replica (W5, W10, W15).

Never from memory: what was acknowledged after the last heartbeat may be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from fleetbus.process.pauses import Pauses
from fleetbus.watchers.grant_requests import GrantRequest, read_grant_requests
from fleetbus_proto.events import Rank
from fleetbus_proto.keys import kv_grant
from fleetbus_proto.resources import Resource
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.follow.context import ClusterContext

log = structlog.get_logger()

_POLL: Final = timedelta(seconds=1)
_FIRST_POLL: Final = timedelta(seconds=0.1)
_LAST_POLL: Final = timedelta(seconds=5)
_RECORDED_WITHIN: Final = timedelta(seconds=3)
"""From the end of an epoch to its checkpoint; the projector may remove the request in between."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position from which a watch can resume without a list."""

    rank: Rank
    resource_version: str


class Resumption:
    """Finds the positions of one resource and scope.

    Args:
        resource: what is watched.
        scope: the hash of what narrows it.
        context: of the cluster.
    """

    def __init__(self, resource: Resource, scope: str, context: ClusterContext) -> None:
        self._resource = resource
        self._scope = scope
        self._context = context
        # A version that the server has forgotten; a checkpoint must be newer.
        self._stale = ""
        # The epoch of the last checkpoint that was found.
        self._listed = 0
        # The epoch of a peer replica for which we have waited in vain.
        self._given_up = 0

    def mark_stale(self, resource_version: str) -> None:
        """Note that the server has forgotten this version."""
        if is_newer(resource_version, self._stale):
            self._stale = resource_version

    async def find(self) -> Position | None:
        """Find a position, however old its epoch is; None if there is none.

        Raises:
            EventsLost: events before the checkpoint may be gone.
            BusError: the checkpoint could not be read.
        """
        context = self._context
        checkpoint = await context.checkpoints.read(
            self._resource, self._scope, context.incarnation
        )
        if checkpoint is None:
            return None
        self._listed = checkpoint.rank.id
        if self._stale and not is_newer(checkpoint.resource_version, self._stale):
            return None
        return Position(checkpoint.rank, checkpoint.resource_version)

    async def wait_until_listed(
        self, suffices: Callable[[Rank], bool], last_poll: timedelta = _LAST_POLL
    ) -> bool:
        """Wait for a checkpoint that a peer replica writes; returns True, to end a group.

        It polls, as a watcher may subscribe to nothing but its inbox and its control subject.

        Args:
            suffices: whether an epoch of this rank is new enough.
            last_poll: the longest interval between two polls.

        Raises:
            EventsLost, BusError: as `find`.
        """
        pauses = Pauses(_FIRST_POLL, last_poll)
        while (position := await self.find()) is None or not suffices(position.rank):
            await pauses.sleep()
        return True

    def is_worth_waiting(self, peer: GrantRequest, suffices: Callable[[Rank], bool]) -> bool:
        """Whether the epoch of a peer replica suffices, runs, and was not waited for in vain."""
        is_running = peer.epoch > self._listed and peer.epoch != self._given_up
        # Both numbers are made from the time; an older epoch belongs to an older incarnation.
        is_ours = peer.epoch >= self._context.incarnation.number
        return is_running and is_ours and suffices(Rank("0", peer.epoch))

    async def wait_for(self, peer: GrantRequest, suffices: Callable[[Rank], bool]) -> None:
        """Wait for the end of the epoch of a peer replica, as long as it seems to run (W15).

        Raises:
            EventsLost, BusError: as `find`.
        """
        log.info("peer_replica_lists", resource=str(self._resource), replica=peer.replica)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._context.timing.peer_epoch.total_seconds()):
                await run_group(
                    listed=self.wait_until_listed(suffices, _POLL), gone=self._wait_until_gone(peer)
                )
        self._given_up = peer.epoch

    async def _wait_until_gone(self, peer: GrantRequest) -> bool:
        """Wait until the epoch of a peer replica is over, or the replica seems dead."""
        context, resource = self._context, self._resource
        last_seq, silent_for = -1, timedelta()
        patience = context.settings.heartbeat_idle + context.settings.heartbeat_busy
        key = kv_grant(context.settings.cluster, resource.group, resource.plural)
        while (await read_grant_requests(context.kv, key)).find(peer) is not None:
            seq = await context.loss_detector.latest(peer.replica)
            silent_for = silent_for + _POLL if seq == last_seq else timedelta()
            last_seq = seq
            if silent_for > patience:
                return True
            await asyncio.sleep(_POLL.total_seconds())
        await asyncio.sleep(_RECORDED_WITHIN.total_seconds())
        return True
