"""Settings of the campaign of workers: names, and waits short enough that minutes hold many faults.

What is scaled is said in the report: leases, quarantine, and how long NATS waits for a killed
process. Orders, limits and sizes are not.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final

from faults.rig.load import CONFIG_MAPS, names_of
from fleetbus.workqueue import QueuePolicy
from fleetbus.workqueue.queue import Backoff

CONTROLLER: Final = "campaign"
SOURCES: Final = ("alpha", "beta")
TARGET: Final = "target"
NAMESPACE: Final = "default"
SOURCE_WATCHERS: Final = {"alpha-1": "alpha", "beta-1": "beta"}
WORKERS: Final = ("worker-1", "worker-2", "worker-3")
CONCURRENCY: Final = 8
POISON: Final = f"alpha/{NAMESPACE}/n398"
"""Whoever works on it dies, the first few times (rule Q7)."""
POISON_DEATHS: Final = 4
LINGERING: Final = frozenset(
    f"{cluster}/{NAMESPACE}/{name}" for cluster in SOURCES for name in names_of(CONFIG_MAPS)[8:14]
)
"""Keys that are changed often and whose every run takes long: whoever is stopped has some of them,
and whoever has them next still works on them when it goes on."""
SLOW_STORE: Final = "slow-store"
"""Valkey answered late without a fault of the campaign's."""
TARGET_SHARE: Final = 3
"""One of so many keys is also written to the target."""

POLICY: Final = QueuePolicy(
    lease=timedelta(seconds=2),
    backoff=Backoff(timedelta(milliseconds=20), 2, timedelta(seconds=2)),
    quarantine=Backoff(timedelta(seconds=2), 2, timedelta(seconds=4)),
)
LEASE_SECONDS: Final = POLICY.lease.total_seconds()
ACTING_RUNS: Final = 20
"""After so many runs of its life a worker may be killed: who never works shows little."""
LONGEST_RUN: Final = 4.5
"""In leases; it is one of a busy key."""
PAUSE_SECONDS: Final = (1.2 * LEASE_SECONDS, 2.4 * LEASE_SECONDS)
BLOCK_LEASES: Final = 2.5
"""So long a run blocks its event loop now and then."""
ACK_WAIT: Final = timedelta(seconds=3)

SOURCE_WATCHER: Final = {"FLEETBUS_WATCHER_RESOURCES": json.dumps([CONFIG_MAPS])}
WORKER: Final = {"FLEETBUS_RECONCILER_PROJECTOR": "false"}


def writes_target(key: str) -> bool:
    """Whether a run for this key, `<cluster>/<namespace>/<name>`, writes to the target too."""
    cluster, _, tail = key.partition("/")
    name = tail.rpartition("/")[2]
    return not name.startswith("large-") and sum(f"{cluster}{name}".encode()) % TARGET_SHARE == 0


def quarantine_seconds(times: int) -> float:
    """Return how long a key is kept back the first, second … time."""
    return POLICY.quarantine.delay(times).total_seconds()
