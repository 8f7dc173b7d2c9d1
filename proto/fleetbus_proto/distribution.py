"""Events of the distributor: what became of a MultiClusterResource, for programs of others.

They are published when something has changed, and may be lost while the bus is away: the status of
the MultiClusterResource is what holds. Their bodies are JSON, so that anybody can read one, and
never have a value of an object.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from fleetbus_proto.resources import CORE
from fleetbus_proto.subjects import DistributionVerb

CONTENT_TYPE = "application/json"
_ID_BYTES = 16


class AffectedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One object, or one field of it, that an event is about."""

    object: str
    """Kind, namespace and name, like `ConfigMap shop/flags`; any namespace if it is in none."""
    api_version: str = ""
    """Like `apps/v1`: two groups may have a kind of one name. Empty if it is not known any more."""
    field: str = ""
    """Its path, like `.data.color`; empty if the event is about the whole object."""
    manager: str = ""
    """The field manager that changed or holds the field; empty if the API server does not tell."""
    time: str = ""
    """When that manager did so, RFC 3339 in whole seconds, UTC, by the API server's clock."""

    @property
    def group(self) -> str:
        """Its group, `core` for the core group; empty if it is not known."""
        group, slash, _ = self.api_version.rpartition("/")
        return group if slash or not self.api_version else CORE


class DistributionEvent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="distribution.v1",
):
    """A change of what the distributor reports of a MultiClusterResource."""

    namespace: str
    """Namespace of the MultiClusterResource."""
    name: str
    """Name of the MultiClusterResource."""
    uid: str
    """UID of the MultiClusterResource."""
    generation: int
    """Generation of the spec that was current then."""
    revision: int = 0
    """Number of the revision that the cluster has, or, without a cluster, that is rolled out; 0
    without `spec.rollout`, or if it is unknown."""
    cluster: str = ""
    """Empty if the event is about none in particular; the subject has `_fleet` then."""
    event: DistributionVerb
    """As in the subject."""
    wave: str = ""
    """Wave of the rollout; set for `wave-open`, `wave-passed` and `wave-failed`."""
    objects: list[AffectedObject] = []
    """At most 20 objects, each with up to 3 fields, if it is about fields."""
    more: int = 0
    """Number of objects that are not listed."""
    reason: str = ""
    """One word, as in the status."""
    message: str = ""
    """For people, without any value of an object."""
    time: str
    """When it was noticed, RFC 3339 with microseconds, UTC, by the distributor's clock."""


def encode_distribution_event(event: DistributionEvent) -> bytes:
    """Encode the body of an event."""
    return msgspec.json.encode(event)


def distribution_event_id(event: DistributionEvent, version: str, key: bytes) -> str:
    """The id by which JetStream drops repeats: of the same content, found from the same version.

    Args:
        event: the event; when it was noticed does not count.
        version: the resourceVersion of the MultiClusterResource from which it was found.
        key: a secret of the publisher: whoever can predict an id could vote under it, and the event
            would be dropped as a duplicate.
    """
    content = encode_distribution_event(msgspec.structs.replace(event, time=""))
    text = f"{version} ".encode() + content
    return blake2b(text, key=key, digest_size=_ID_BYTES).hexdigest()


def decode_distribution_event(body: bytes) -> DistributionEvent | None:
    """Decode the body of an event; None if it is none."""
    try:
        return msgspec.json.decode(body, type=DistributionEvent)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
