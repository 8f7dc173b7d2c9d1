"""What a watcher of the pool counts; zero in a watcher of one cluster."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

MOVES: Final = ("claimed", "replaced", "taken_over", "given_away")
"""A cluster that nobody had, of a member that died, of one that lives; and the other side."""

clusters: Final = Gauge("fleetbus_watcher_pool_clusters", "Clusters whose lease names us.")
members: Final = Gauge("fleetbus_watcher_pool_members", "Members of the pool that live, with us.")
_moves: Final = Counter("fleetbus_watcher_pool_moves", "Leases that changed hands.", ["how"])
crashes: Final = Counter(
    "fleetbus_watcher_pool_crashes", "Errors of one cluster's work that nothing expected."
)
for _how in MOVES:
    _moves.labels(_how)


def moved(how: str) -> None:
    """A lease came to us, or went; `how` is one of `MOVES`."""
    _moves.labels(how).inc()
