"""Votes on the gates of a rollout, on the bus (rule D19).

The last message on the subject of a gate counts, so a vote may come before its wave is open, and a
vote that was not noticed is found later.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from fleetbus.bus.connection import Bus, NoStream, subscribed
from fleetbus.errors import BusError
from fleetbus.reconcile import Request
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_distributor.fleet_view import FleetView
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, VOTES_ALL, parse_vote_subject
from fleetbus_proto.votes import decode_vote

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger()

_NOT_FOUND: Final = "404"
_MAX_REASON: Final = 200
_VOTES: Final = {"pass": GateState.PASSED, "fail": GateState.FAILED}
_STORED_AFTER: Final = timedelta(milliseconds=100)
"""A vote is announced when it is sent; the stream has it a moment later."""


class Votes:
    """Reads the last vote on a subject.

    Args:
        bus: a connection.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def __call__(self, subject: str) -> Finding:
        """Read the last vote; a pending finding says why there is none."""
        path = f"$JS.API.DIRECT.GET.{DISTRIBUTION_STREAM}.{subject}"
        try:
            message = await self._bus.request(path)
        except NoStream:
            why = f"no vote can be read: there is no stream {DISTRIBUTION_STREAM} yet"
            return Finding(GateState.PENDING, why)
        except BusError as error:
            return Finding(GateState.PENDING, f"no vote can be read: {error}")
        headers = message.headers or {}
        if headers.get("Status") == _NOT_FOUND:
            return Finding(GateState.PENDING)
        return read_vote(message.data, subject)


def read_vote(body: bytes, subject: str) -> Finding:
    """Read the body of a vote; one that cannot be read counts as none."""
    vote = decode_vote(body)
    if vote is None:
        expected = 'it has to be {"vote": "pass"} or {"vote": "fail", "reason": "…"}'
        return Finding(GateState.PENDING, f"the last vote on {subject} cannot be read: {expected}")
    reason = "".join(char if char.isprintable() else " " for char in vote.reason)[:_MAX_REASON]
    return Finding(_VOTES[vote.vote], reason)


class VoteWatch:
    """Enqueues a MultiClusterResource when somebody votes on it.

    A plain subscription in every process: a vote that it misses is found by the poll of the gate,
    and a request that is enqueued twice is one.

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
