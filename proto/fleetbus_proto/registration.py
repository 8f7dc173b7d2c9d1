"""Registrations: an agent reports to the hub the nkey that it will log in with.

A join on the hub makes a one-time nkey. The agent makes one of its own, and sends the public half
on `registration_subject`, signed with the one-time nkey; later its nkey signs the next one. What a
signer may do follows from the hub's record: the one-time nkey may register once, the current nkey
may name its successor, and the successor may say that it is in use, with itself as `key`.

The bodies are JSON. A seed is never in one.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")
CONTENT_TYPE = "application/json"
REGISTRATION = "fleetbus registration 1\n"
"""Precedes what is signed, so that no signature for another purpose is one of a registration."""
MAX_REGISTRATION_BYTES = 4096


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An agent's nkey; unknown fields are ignored."""

    cluster: str
    """As in the subject."""
    key: str
    """The public nkey of a user, `U…`."""
    uid: str = ""
    """UID of the namespace kube-system of the agent's cluster; empty if it is unknown."""
    instance: str = ""
    """Name of the agent's process or pod, for people."""


class SignedRegistration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A registration as it was signed, byte for byte; in JSON bytes are base64."""

    body: bytes
    """The `Registration`, as JSON."""
    signed_by: str
    """The public nkey that signed."""
    signature: bytes
    """Ed25519, of `REGISTRATION` and the body."""
    proof: bytes
    """The same by the `key` of the registration: nobody registers the nkey of another."""


class RegistrationAnswer(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The answer of the hub to a registration."""

    state: str
    """`accepted`: the key may log in; `pending`: once somebody on the hub accepts it; `refused`."""
    message: str = ""
    """For people: why, and what to do."""


ACCEPTED = "accepted"
PENDING = "pending"
REFUSED = "refused"


def encode_registration(
    registration: Registration | SignedRegistration | RegistrationAnswer,
) -> bytes:
    """Encode a body."""
    return msgspec.json.encode(registration)


def decode_signed(body: bytes) -> SignedRegistration | None:
    """Decode a request; None if it is none, or larger than `MAX_REGISTRATION_BYTES`."""
    return _decode(body, SignedRegistration) if len(body) <= MAX_REGISTRATION_BYTES else None


def decode_registration(body: bytes) -> Registration | None:
    """Decode what was signed; None if it is no registration."""
    return _decode(body, Registration)


def decode_answer(body: bytes) -> RegistrationAnswer | None:
    """Decode an answer; None if it is none."""
    return _decode(body, RegistrationAnswer)


def _decode(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
