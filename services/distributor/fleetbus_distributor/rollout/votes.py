"""Reads votes from the bus (rule D19).

The last message on the subject of a gate counts, so a vote may come before its wave is open, and a
vote that was not noticed is found later.
"""

from __future__ import annotations

from typing import Final

from fleetbus.bus.connection import Bus, NoStream
from fleetbus.errors import BusError
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_proto.subjects import DISTRIBUTION_STREAM
from fleetbus_proto.votes import decode_vote

_NOT_FOUND: Final = "404"
_MAX_REASON: Final = 200
_VOTES: Final = {"pass": GateState.PASSED, "fail": GateState.FAILED}


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
