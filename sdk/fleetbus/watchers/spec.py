"""The watch spec of a cluster: which resources its watchers watch, and whether they are suspended.

The projector writes it into a key of the bucket, from the Cluster object or another provider,
because a watcher inside a member cluster has no rights on the hub. It survives restarts of both.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus.clusters.info import ClusterInfo
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.keys import kv_watch_spec

SUSPENDED: Final = "Suspended"
UNUSABLE: Final = "Unusable"
"""The reasons in heartbeats, records and conditions: the cluster is suspended; its provider has no
access data for it, or says that it is not healthy."""
DENIED: Final = "Denied"
"""The reason of a resource that is in the watch spec but is never published (S1)."""


class WatchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The value of the key, as JSON."""

    resources: tuple[Any, ...] = ()
    """The resources to watch, not validated; empty for the watcher's own settings."""
    deny: tuple[str, ...] | None = None
    """Resources that `*` excludes, not validated; None for the watcher's own settings."""
    suspended: bool = False


EMPTY_SPEC: Final = WatchSpec()
_decoder = msgspec.json.Decoder(WatchSpec)


def spec_of(info: ClusterInfo) -> WatchSpec:
    """Return the watch spec of a cluster as its provider describes it."""
    return WatchSpec(
        resources=tuple(map(_writable, info.resources)), deny=info.deny, suspended=info.suspended
    )


def encode_spec(spec: WatchSpec) -> bytes:
    """Encode the value of the key; equal specs have equal bytes."""
    return msgspec.json.encode(spec, order="deterministic")


def decode_spec(value: bytes) -> WatchSpec:
    """Decode the value of the key.

    Raises:
        MalformedMessage: it is not a watch spec.
    """
    try:
        return _decoder.decode(value)
    except DECODE_ERRORS as e:
        raise MalformedMessage(f"not a watch spec: {e}") from e


def _writable(entry: Any) -> Any:
    """Return an entry as JSON can hold it; YAML has more types, which are reported as invalid."""
    try:
        msgspec.json.encode(entry)
    except (TypeError, ValueError, RecursionError):
        return repr(entry)
    return entry


async def read_spec(kv: KeyValue, cluster: str) -> WatchSpec | None:
    """Read the watch spec of a cluster; None if there is none.

    Raises:
        BusError: it could not be read.
        MalformedMessage: it cannot be decoded.
    """
    entry = await kv.get(kv_watch_spec(cluster))
    return decode_spec(entry.value) if entry is not None else None
