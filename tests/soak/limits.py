"""The limits of all series of a soak, each with its reason: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from soak.slopes import Slope

MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of the growth of a series.

    Attributes:
        pattern: of the names of series.
        per_hour: the largest slope, in the unit of the series.
        least_rise: a rise by less than this, over what was evaluated, is noise.
        unit: for people.
        reason: why not more, and why not less.
    """

    pattern: str
    per_hour: float
    least_rise: float
    unit: str
    reason: str

    def is_exceeded_by(self, slope: Slope) -> bool:
        """Whether this is a leak: too fast, and more than noise."""
        return slope.per_hour > self.per_hour and slope.rise > self.least_rise


LIMITS: Final = (
    Limit(
        "memory/valkey",
        24 * MIB,
        4 * MIB,
        "bytes",
        "rewriting the append-only file forks; freed pages come back late",
    ),
    Limit(
        "memory/nats",
        24 * MIB,
        8 * MIB,
        "bytes",
        "Go's heap swings between two collections by as much as it holds",
    ),
    Limit(
        "memory/*",
        8 * MIB,
        3 * MIB,
        "bytes",
        "a pod with a limit of 256 MiB then lives for a day at least; fragments of Python's heap"
        " settle within half an hour",
    ),
    Limit(
        "descriptors/watcher-pool*",
        4,
        45,
        "files",
        "each cluster that moves between the replicas takes its watches along, and half of them"
        " move when one is killed; a leak is one for each of them",
    ),
    Limit(
        "descriptors/*",
        4,
        3,
        "files",
        "connections come and go with faults and watches; a leak is one for each of them",
    ),
    Limit("threads/*", 2, 2, "threads", "pools of threads have a size"),
    Limit(
        "tasks/watcher-pool*",
        8,
        250,
        "tasks",
        "each cluster that moves takes its 46 along; five may go to a replica that has just come",
    ),
    Limit(
        "tasks/*",
        8,
        5,
        "tasks",
        "one for each watch, request and lease; a leak is one for each of those that ended",
    ),
    Limit(
        "valkey/keys",
        60,
        20,
        "keys",
        "the number of objects is steady; tombstones stay until an audit has passed them",
    ),
    Limit(
        "valkey/bytes",
        2 * MIB,
        MIB,
        "bytes",
        "likewise; last states stay for five minutes here",
    ),
    Limit("valkey/clients", 6, 4, "connections", "a pool for each process"),
    Limit("nats/consumers", 2, 2, "consumers", "one durable for each controller, and the watches"),
    Limit(
        "nats/bucket/bytes", 2 * MIB, MIB, "bytes", "one value for each resource of each cluster"
    ),
    Limit("nats/bucket/messages", 20, 10, "messages", "likewise, whatever has happened"),
    Limit(
        "nats/events/bytes",
        4 * MIB,
        MIB,
        "bytes",
        "its limit is so low here that it is reached while the run warms up",
    ),
    Limit(
        "nats/events/messages",
        3000,
        1000,
        "messages",
        "likewise; the share of small heartbeats changes with the load",
    ),
    Limit(
        "disk/nats",
        16 * MIB,
        8 * MIB,
        "bytes",
        "its streams are limited; a file is removed as a whole, 2 to 8 MiB",
    ),
    Limit(
        "disk/valkey",
        64 * MIB,
        64 * MIB,
        "bytes",
        "the append-only file grows up to 64 MiB before it is written anew",
    ),
)
"""The first whose pattern fits.

The streams of distribution events and of replaced states have no slope: they keep what there was
for seven days and one, up to byte limits of their own, and a run sees only the begin of that.
"""


def limit_of(series: str) -> Limit | None:
    """The limit of a series; None for one that is recorded only."""
    return next((limit for limit in LIMITS if fnmatchcase(series, limit.pattern)), None)
