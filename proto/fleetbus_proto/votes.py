"""Votes on the gates of a rollout; their bodies are JSON, so that anybody can write one."""

from __future__ import annotations

from typing import Literal

import msgspec

CONTENT_TYPE = "application/json"


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """A vote on a gate of a wave; the last one on a subject counts."""

    vote: Literal["pass", "fail"]
    """Whether the wave passes the gate, or has failed."""
    reason: str = ""
    """For people; it is shown in the status."""


def encode_vote(vote: Vote) -> bytes:
    """Encode the body of a vote."""
    return msgspec.json.encode(vote)


def decode_vote(body: bytes) -> Vote | None:
    """Decode the body of a vote; None if it is none."""
    try:
        return msgspec.json.decode(body, type=Vote)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
