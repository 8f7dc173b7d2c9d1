"""Enqueues a MultiClusterResource when somebody votes on it (rule D19).

A plain subscription in every process: a vote that it misses is found by the poll of the gate, and a
request that is enqueued twice is one.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from fleetbus.bus.connection import Bus, subscribed
from fleetbus.reconcile import Request
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import VOTES_ALL, parse_vote_subject

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger()

_STORED_AFTER: Final = timedelta(milliseconds=100)
"""A vote is announced when it is sent; the stream has it a moment later."""


class VoteWatch:
    """Listens for votes.

    Args:
        bus: a connection.
        fleet: to know the hub.
        queue: of the controller for all clusters.
        controller: its name.
    """

    def __init__(self, *, bus: Bus, fleet: FleetView, queue: RedisQueue, controller: str) -> None:
        self._bus = bus
        self._fleet = fleet
        self._queue = queue
        self._controller = controller

    async def run(self) -> None:
        """Listen until cancelled."""
        async with subscribed(self._bus, VOTES_ALL, self._on_vote):
            await asyncio.Event().wait()

    async def _on_vote(self, message: Msg) -> None:
        try:
            namespace, name = parse_vote_subject(message.subject)
        except InvalidName as error:
            log.debug("vote_ignored", subject=message.subject, error=str(error))
            return
        if not self._fleet.hub:
            return
        request = Request(self._controller, self._fleet.hub, namespace, name)
        try:
            await self._queue.add_after(request, _STORED_AFTER)
        except QueueUnavailableError as error:
            log.debug("vote_postponed", subject=message.subject, error=str(error))
