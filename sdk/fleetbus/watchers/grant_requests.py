"""Requests of watchers to list a resource, and the projector's answers (rule W7).

One key of the bucket per resource holds one request for each replica and scope. The watcher writes
the request, the projector its answer inside it; both by compare-and-set, so neither overwrites the
other, and both read it again after a restart. After its write the projector wakes the cluster's
watchers, which then read the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import DECODE_ERRORS, Entry, KeyValue
from fleetbus.errors import BusError
from fleetbus_proto.subjects import CONTROL_GRANTS, control_subject

log = structlog.get_logger()


Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_ATTEMPTS: Final = 50
MOST_BYTES: Final = 64 * 1024
"""More than all replicas and scopes of a resource need. The projector reads the keys of the whole
fleet, so the size of one cluster's values is bounded."""


class GrantRequestsContended(BusError):
    """A key is written faster than it can be changed by compare-and-set."""


class GrantAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The projector's answer to one request."""

    received: Milliseconds
    """When it first saw the request, in ms by its own clock: the place in the queue."""
    at: Milliseconds
    """When it wrote this, likewise; renewed while the watcher waits, as a keep-alive."""
    granted: bool = False
    bytes: Bytes = 0
    """Number of granted bytes; 0 means unlimited."""


class GrantRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The request of one replica to list one scope of the resource."""

    replica: str
    scope: str = ""
    since: Milliseconds
    """When it was made, in ms by the watcher's clock; identifies it, with replica and scope."""
    patience: Seconds
    """Seconds that the watcher waits without an answer of the projector before it lists anyway."""
    bytes: Bytes = 0
    """Bytes that the list will publish, as far as the watcher knows; 0 if it does not."""
    epoch: Milliseconds = 0
    """The id of the epoch, once it runs."""
    answer: GrantAnswer | None = None

    @property
    def is_granted(self) -> bool:
        """Whether the projector has granted it."""
        return self.answer is not None and self.answer.granted

    @property
    def is_running(self) -> bool:
        """Whether it is granted, or runs without a grant."""
        return self.is_granted or bool(self.epoch)

    @property
    def identity(self) -> tuple[str, str, int]:
        """The identity of a request for one resource."""
        return (self.replica, self.scope, self.since)

    def is_same(self, other: GrantRequest) -> bool:
        """Whether both are the same request, at two times."""
        return self.identity == other.identity


GrantRequests = tuple[GrantRequest, ...]
Change = Callable[[GrantRequests], GrantRequests]


@dataclass(frozen=True, slots=True)
class StoredGrantRequests:
    """The requests for one resource as they are stored in the bucket."""

    requests: GrantRequests
    revision: int
    """0 if the key does not exist."""
    value: bytes
    problem: str = ""
    """Why the value cannot be decoded; it then counts as empty."""

    def find(self, request: GrantRequest) -> GrantRequest | None:
        """Return the stored state of a request; None if it is gone."""
        return next((stored for stored in self.requests if stored.is_same(request)), None)


class _Value(msgspec.Struct):
    requests: list[GrantRequest] = []


_decoder = msgspec.json.Decoder(_Value)
NOT_READ: Final = StoredGrantRequests((), 0, b"")
"""The key has not been read yet."""
NO_GRANT_REQUESTS: Final = StoredGrantRequests((), 0, msgspec.json.encode(_Value()))
"""The value of a key whose last request was removed."""


def decode_grant_requests(entry: Entry | None) -> StoredGrantRequests:
    """Decode an entry of the bucket."""
    if entry is None:
        return StoredGrantRequests((), 0, b"")
    if len(entry.value) > MOST_BYTES:
        return StoredGrantRequests((), entry.revision, b"", f"more than {MOST_BYTES} bytes")
    try:
        requests = tuple(_decoder.decode(entry.value).requests)
    except DECODE_ERRORS as e:
        return StoredGrantRequests((), entry.revision, entry.value, str(e))
    return StoredGrantRequests(requests, entry.revision, entry.value)


async def read_grant_requests(kv: KeyValue, key: str) -> StoredGrantRequests:
    """Read the requests for one resource.

    Raises:
        BusError: they could not be read.
    """
    return decode_grant_requests(await kv.get(key))


async def change_grant_requests(
    kv: KeyValue, key: str, change: Change, stored: StoredGrantRequests = NOT_READ
) -> StoredGrantRequests:
    """Change the requests for a resource by compare-and-set; retries when another writer was first.

    Args:
        kv: the bucket.
        key: of the resource.
        change: computes the new requests from the stored ones; called for each attempt. If it
            changes nothing, nothing is written.
        stored: what was read last; saves a read if it is still current.

    Raises:
        GrantRequestsContended: another writer was first each time.
        BusError: it may not have been written.
    """
    for _ in range(_ATTEMPTS):
        changed = change(stored.requests)
        if changed == stored.requests and stored is not NOT_READ:
            return stored
        if stored.problem:
            log.warning("grant_requests_unreadable", key=key, error=stored.problem)
        value = msgspec.json.encode(_Value(list(changed)))
        revision = await kv.update(key, value, stored.revision)
        if revision is not None:
            return StoredGrantRequests(changed, revision, value)
        stored = await read_grant_requests(kv, key)
    raise GrantRequestsContended(f"{key} is written faster than it can be changed")


async def notify_granted(bus: Bus, cluster: str) -> None:
    """Make a cluster's watchers read their grant requests; without this they do so later."""
    try:
        await bus.publish(control_subject(cluster), CONTROL_GRANTS)
    except BusError as e:
        log.warning("wake_failed", cluster=cluster, error=str(e))
