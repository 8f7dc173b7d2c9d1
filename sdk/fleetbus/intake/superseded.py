"""Which state of an object a controller need not look at, as a newer one waits beside it."""

from __future__ import annotations

from collections.abc import Sequence

from fleetbus.controller.controller import Watch
from fleetbus.controller.filters import read_metadata
from fleetbus.kube.listing import UNREADABLE
from fleetbus_proto.events import Event


def is_skippable(watches: Sequence[Watch], older: Event, newer: Event) -> bool:
    """Whether the newer state wakes whoever the older one would have woken.

    Runs read the snapshot, and other consumers write it: somebody may have read the older state
    although this controller was not told of it. Who would be woken by it alone, and not by what
    came before and after, would keep what it has read for ever (promise 2).

    Args:
        watches: those of the objects' resource.
        older: a state of an object, not its deletion.
        newer: a later one of the same.
    """
    # Only the author's function knows whom a state names, or what of it matters.
    if any(watch.predicate or watch.map for watch in watches):
        return False
    if not any(watch.owned or watch.selector or watch.annotation_selector for watch in watches):
        return True
    if older.object is None or newer.object is None:
        return False
    try:
        return read_metadata(older.object) == read_metadata(newer.object)
    except UNREADABLE:
        return False
