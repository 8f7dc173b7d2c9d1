"""The state that an object had before a change, where the stream of events would not have it.

The projector publishes one when an object changes that had not changed for long: its last event is
about to leave the stream, or has left it, so nothing else would tell what was changed. Only readers
of the history want these; they are in a stream of their own.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from fleetbus_proto.codec import MAX_BODY_BYTES

_ID_BYTES = 16


class PriorState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="prior.v1"):
    """The state of an object before a change."""

    cluster: str
    incarnation: int
    """Number of the cluster's history that both resourceVersions belong to."""
    group: str
    resource: str
    namespace: str
    """Empty for a cluster-scoped object."""
    name: str
    uid: str
    resource_version: str
    """Version of this state."""
    replaced_by: str
    """The resourceVersion of the state that followed, as the snapshot saw it."""
    object: bytes
    """JSON as in the event that brought this state."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PriorState)


def encode_prior_state(prior: PriorState) -> bytes:
    """Encode the body of a message."""
    return _encoder.encode(prior)


def decode_prior_state(body: bytes) -> PriorState | None:
    """Decode the body of a message; None if it is none."""
    if len(body) > MAX_BODY_BYTES:
        return None
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def prior_state_id(prior: PriorState) -> str:
    """The id by which JetStream drops repeats: of the change that replaced this state."""
    change = (prior.cluster, prior.group, prior.resource, prior.namespace, prior.name)
    text = "\0".join((*change, str(prior.incarnation), prior.uid, prior.replaced_by))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).hexdigest()
