"""Decides what becomes of a registration; reads and writes nothing (rule S3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from fleetbus.agents.nkeys import is_public_key, is_signed
from fleetbus.agents.records import AgentRecord, read_time
from fleetbus.process.clock import rfc3339
from fleetbus_proto.registration import (
    ACCEPTED,
    PENDING,
    REFUSED,
    REGISTRATION,
    Registration,
    RegistrationAnswer,
    SignedRegistration,
    decode_registration,
    decode_signed,
)

ROTATIONS: Final = timedelta(minutes=10)
"""Between two rotations of a cluster: each costs a reload of all accounts."""
REFUSALS: Final = timedelta(minutes=1)
"""Between two notes of refusals in a record: an agent repeats its request every few seconds."""
_AGAIN: Final = "on the hub, `fleetbus join {cluster} --agent` makes a new registration"
_LONGEST: Final = 100
_LONGEST_REFUSAL: Final = 250


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts beside the record that count for a decision."""

    now: datetime
    approval: bool
    """Whether somebody on the hub accepts each new agent."""
    uid: str = ""
    """The UID of the accepted cluster (rule W13); empty if none is known."""
    taken: frozenset[str] = frozenset()
    """The nkeys of other clusters."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, and the record that follows; None if it stays as it is."""

    state: str
    message: str = ""
    record: AgentRecord | None = None

    @property
    def answer(self) -> RegistrationAnswer:
        """The answer to the agent."""
        return RegistrationAnswer(state=self.state, message=self.message)


def read_request(
    cluster: str, body: bytes
) -> tuple[SignedRegistration, Registration] | RegistrationAnswer:
    """Read and verify a request of a cluster's agent; the refusal if it does not count."""
    signed = decode_signed(body)
    registration = decode_registration(signed.body) if signed is not None else None
    if signed is None or registration is None:
        return _refusal("this is no registration")
    if registration.cluster != cluster:
        return _refusal("the registration is for another cluster than its subject")
    if not is_public_key(registration.key):
        return _refusal("the key is not the public nkey of a user")
    message = REGISTRATION.encode() + signed.body
    if not is_signed(signed.signed_by, message, signed.signature):
        return _refusal("the signature is wrong")
    if not is_signed(registration.key, message, signed.proof):
        return _refusal("the proof is wrong: whoever registers an nkey must have its seed")
    return signed, registration


def decide(
    record: AgentRecord, signer: str, registration: Registration, given: Circumstances
) -> Decision:
    """Decide what a verified registration changes.

    Args:
        record: of the cluster.
        signer: the public nkey that signed it.
        registration: what it says.
        given: what else counts.
    """
    key = registration.key
    if key in given.taken:
        return Decision(REFUSED, "another cluster has this nkey: each agent makes its own")
    if signer == record.one_time:
        return _register(record, registration, given)
    if signer == record.key:
        return _rotate(record, key, given)
    if key == signer == record.next_key:
        return Decision(ACCEPTED, "", record.changed_to(key=key, next_key=""))
    return Decision(
        REFUSED,
        "this nkey does not count (any more): it was used before, replaced or revoked; "
        + _AGAIN.format(cluster=record.cluster),
    )


def noted_refusal(record: AgentRecord, why: str, now: datetime) -> AgentRecord | None:
    """The record with a refusal, for people; None if it is on record, or another one just was."""
    shown = why[:_LONGEST_REFUSAL]
    is_recent = bool(record.refused_at) and now < read_time(record.refused_at) + REFUSALS
    if is_recent or record.refused == shown:
        return None
    return replace(record, refused=shown, refused_at=rfc3339(now, timespec="seconds"))


def _register(record: AgentRecord, registration: Registration, given: Circumstances) -> Decision:
    """The one-time nkey is used up, whatever comes of it."""
    cluster = record.cluster
    if not record.may_register(given.now):
        return Decision(
            REFUSED,
            f"the registration expired at {record.expires}; {_AGAIN.format(cluster=cluster)}",
        )
    after = record.changed_to(
        one_time="",
        expires="",
        uid=_shown(registration.uid),
        instance=_shown(registration.instance),
        changed=rfc3339(given.now, timespec="seconds"),
    )
    is_another = bool(given.uid and registration.uid and given.uid != registration.uid)
    if given.approval or is_another:
        why = (
            f"the cluster that registered has the UID {after.uid}, not {given.uid}; "
            if is_another
            else ""
        )
        return Decision(PENDING, why + _accept(cluster), replace(after, pending=registration.key))
    return Decision(ACCEPTED, "", replace(after, key=registration.key, next_key="", pending=""))


def _rotate(record: AgentRecord, key: str, given: Circumstances) -> Decision:
    if key in (record.key, record.next_key):  # repeated
        return Decision(ACCEPTED)
    if record.changed and given.now < read_time(record.changed) + ROTATIONS:
        return Decision(REFUSED, f"the nkey was changed at {record.changed}: try again later")
    changed = rfc3339(given.now, timespec="seconds")
    return Decision(ACCEPTED, "", record.changed_to(next_key=key, changed=changed))


def _accept(cluster: str) -> str:
    return f"somebody on the hub must accept it: fleetbus clusters accept {cluster}"


def _refusal(message: str) -> RegistrationAnswer:
    return RegistrationAnswer(state=REFUSED, message=message)


def _shown(text: str) -> str:
    """A string of an agent, short and without control characters."""
    return "".join(letter for letter in text[:_LONGEST] if letter.isprintable())
