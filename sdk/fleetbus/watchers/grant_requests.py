"""Who asks to list a resource of a cluster, and the projector's answers (rule W7).

One key of the bucket per resource holds one ask for each replica and scope. The watcher writes the
ask, the projector the answer in it; both by compare-and-set, so neither undoes what the other has
written, and both read it again after a restart. After its write the projector wakes the cluster's
watchers, and they look at the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import structlog

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import UNREADABLE, Entry, KeyValue
from fleetbus.bus.send import send
from fleetbus.errors import BusError
from fleetbus_proto.subjects import CONTROL_GRANTS, control_subject

log = structlog.get_logger()


Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_TRIES: Final = 50
MOST_BYTES: Final = 64 * 1024
"""More than all replicas and scopes of a resource need; the projector reads the keys of the whole
fleet, and one cluster's must not cost it more."""


class AsksContended(BusError):
    """A key that somebody writes without end."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What the projector says to one ask."""

    heard: Milliseconds
    """When it first saw the ask, in ms by its own clock: the place in the line."""
    at: Milliseconds
    """When it wrote this, likewise; repeated while the asker waits, as a sign of life."""
    granted: bool = False
    room: Bytes = 0
    """The bytes that a granted epoch is counted with; 0 means that nothing limits it."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One replica wants to list one scope of the resource."""

    replica: str
    scope: str = ""
    since: Milliseconds
    """When it asked, in ms by its own clock; with replica and scope the identity of the ask."""
    patience: Seconds
    """After so many seconds without a sign of the projector it goes ahead by itself."""
    bytes: Bytes = 0
    """How much its epoch will put on the stream, as far as it knows; 0 when it does not."""
    epoch: Milliseconds = 0
    """The id of its epoch, once that runs."""
    answer: Answer | None = None

    @property
    def is_granted(self) -> bool:
        """Whether the projector has said yes."""
        return self.answer is not None and self.answer.granted

    @property
    def is_running(self) -> bool:
        """Whether it holds a grant, or has gone ahead without."""
        return self.is_granted or bool(self.epoch)

    @property
    def identity(self) -> tuple[str, str, int]:
        """What stays the same of an ask of one resource, however it stands."""
        return (self.replica, self.scope, self.since)

    def is_same(self, other: Ask) -> bool:
        """Whether both are the same ask, at two times."""
        return self.identity == other.identity


Asks = tuple[Ask, ...]
Change = Callable[[Asks], Asks]


@dataclass(frozen=True, slots=True)
class HeldAsks:
    """The asks of one resource as the bucket held them."""

    asks: Asks
    revision: int
    """0 if there was no such key."""
    value: bytes
    problem: str = ""
    """Why the value cannot be read; it counts as no asks."""

    def find(self, ask: Ask) -> Ask | None:
        """How an ask stands; None if it is not there any more."""
        return next((found for found in self.asks if found.is_same(ask)), None)


class _Value(msgspec.Struct):
    asks: list[Ask] = []


_decoder = msgspec.json.Decoder(_Value)
UNSEEN: Final = HeldAsks((), 0, b"")
"""Nobody has looked yet."""
NOBODY_ASKS: Final = HeldAsks((), 0, msgspec.json.encode(_Value()))
"""What a key holds from which the last ask was removed."""


def held_asks(entry: Entry | None) -> HeldAsks:
    """What an entry of the bucket says."""
    if entry is None:
        return HeldAsks((), 0, b"")
    if len(entry.value) > MOST_BYTES:
        return HeldAsks((), entry.revision, b"", f"more than {MOST_BYTES} bytes")
    try:
        asks = tuple(_decoder.decode(entry.value).asks)
    except UNREADABLE as e:
        return HeldAsks((), entry.revision, entry.value, str(e))
    return HeldAsks(asks, entry.revision, entry.value)


async def read_asks(kv: KeyValue, key: str) -> HeldAsks:
    """What the bucket holds.

    Raises:
        BusError: nothing is known.
    """
    return held_asks(await kv.get(key))


async def change_asks(kv: KeyValue, key: str, change: Change, held: HeldAsks = UNSEEN) -> HeldAsks:
    """Change the asks of a resource by compare-and-set, as often as somebody else was faster.

    Args:
        kv: the bucket.
        key: of the resource.
        change: from what is held to what shall be; called anew for each attempt. If it changes
            nothing, nothing is written.
        held: what was last seen there; spares a read if it still is so.

    Raises:
        AsksContended: somebody else was faster each time.
        BusError: it may not have been written.
    """
    for _ in range(_TRIES):
        wanted = change(held.asks)
        if wanted == held.asks and held is not UNSEEN:
            return held
        if held.problem:
            log.warning("asks_unreadable", key=key, error=held.problem)
        value = msgspec.json.encode(_Value(list(wanted)))
        revision = await kv.update(key, value, held.revision)
        if revision is not None:
            return HeldAsks(wanted, revision, value)
        held = await read_asks(kv, key)
    raise AsksContended(f"{key} is written faster than it can be changed")


async def wake_for_grants(bus: Bus, cluster: str) -> None:
    """Make a cluster's watchers look at their asks; they also look by themselves, later."""
    try:
        await send(bus, control_subject(cluster), CONTROL_GRANTS)
    except BusError as e:
        log.warning("wake_failed", cluster=cluster, error=str(e))
