"""What the hub wants of a cluster's watchers: what they shall watch, and whether they shall.

The projector writes it, from the Cluster object or what else the cluster comes from, into a key of
the bucket; only it reads the hub, and a watcher inside a member cluster has no rights there. So
both sides may be restarted, and the wish still holds.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus.bus.key_value import UNREADABLE, KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import kv_watch_spec

SUSPENDED: Final = "Suspended"
UNUSABLE: Final = "Unusable"
"""The reasons that heartbeats, records and conditions give: somebody wishes so; its provider says
that it has no access data, or is not well."""
DENIED: Final = "Denied"
"""The reason of a resource that is on the watch list, and never published all the same (S1)."""


class WatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The value of the key, as JSON."""

    resources: tuple[Any, ...] = ()
    """What to watch, unchecked; empty leaves it to the watcher's own settings."""
    deny: tuple[str, ...] | None = None
    """What `*` leaves out, unchecked; None leaves it to the watcher's own settings."""
    suspended: bool = False


NOTHING_WANTED: Final = WatchSpec()
_decoder = msgspec.json.Decoder(WatchSpec)


def spec_of(info: ClusterInfo) -> WatchSpec:
    """What a provider says of a cluster."""
    return WatchSpec(
        resources=tuple(map(_writable, info.resources)), deny=info.deny, suspended=info.suspended
    )


def encode_spec(spec: WatchSpec) -> bytes:
    """The bytes of the key; equal specs have equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(value: bytes) -> WatchSpec:
    """Read the bytes of the key.

    Raises:
        MalformedMessage: they are something else.
    """
    try:
        return _decoder.decode(value)
    except UNREADABLE as e:
        raise MalformedMessage(f"not a watch spec: {e}") from e


def _writable(entry: Any) -> Any:
    """YAML knows more than JSON; what is strange is invalid, and shall be told as such."""
    try:
        msgspec.json.encode(entry)
    except (TypeError, ValueError, RecursionError):
        return repr(entry)
    return entry


async def read_spec(kv: KeyValue, cluster: str) -> WatchSpec | None:
    """What is wanted of a cluster's watchers; None if nobody has said anything.

    Raises:
        BusError: nothing is known.
        MalformedMessage: what was said cannot be read.
    """
    entry = await kv.get(kv_watch_spec(cluster))
    return decode_spec(entry.value) if entry is not None else None
