"""Settings of the campaign of distributors: names, and waits short enough for many faults.

What is scaled is said in the report: leases, retries, sweeps, and the size from which the inventory
is chunked. Orders, budgets and the limits of the deletion fuse are not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from fleetbus.workqueue import QueuePolicy
from fleetbus.workqueue.queue import Backoff

HUB: Final = "hub"
TARGETS: Final = ("t1", "t2", "t3", "t4")
RENAMED: Final = "t4"
"""The target that is renamed now and then, and comes back under its own name."""
NEW_NAME: Final = "moved"
NAMESPACE: Final = "default"
DISTRIBUTORS: Final = ("d1", "d2")
AGENT: Final = "fleetbus-distributor"

MAPS: Final = "v1/configmaps"
ACCOUNTS: Final = "v1/serviceaccounts"
KINDS: Final = {"ConfigMap": MAPS, "ServiceAccount": ACCOUNTS}

POLICY: Final = QueuePolicy(
    lease=timedelta(seconds=2),
    backoff=Backoff(timedelta(milliseconds=20), 2, timedelta(seconds=1)),
    quarantine=Backoff(timedelta(milliseconds=500), 2, timedelta(seconds=1)),
)
ACK_WAIT: Final = timedelta(seconds=3)
RESYNC: Final = "90s"
"""Longer than a phase settles: what only a resync mends has not settled."""
SWEEP: Final = timedelta(seconds=2)
RARELY: Final = timedelta(seconds=3)
LATER: Final = timedelta(seconds=1.5)
CHUNKED_FROM: Final = 900
"""Bytes of an inventory: so few that the larger ones of the campaign are in chunks."""
PART_BYTES: Final = 300
SETTLE_SECONDS: Final = 75
"""A fleet that is not quiet by then is not settled."""
