"""Settings of the processes of a campaign: waits are short, so that minutes hold many faults.

What is scaled is said in the report; what is a rule's own bound (windows, sizes, order) is not.
"""

from __future__ import annotations

import json
from typing import Final

from faults.rig.load import PAGE_SIZE, RESOURCES

CLUSTERS: Final = ("alpha", "beta", "gamma")
WATCHERS: Final = {"alpha-1": "alpha", "alpha-2": "alpha", "beta-1": "beta", "gamma-1": "gamma"}
"""Replica → cluster; alpha has two active watchers (W15)."""

STORE_LOST: Final = "store-lost"
"""The loss that leaves bus and clusters whole, so that every deletion can be asked for (W24)."""

WATCHER: Final = {
    "FLEETBUS_WATCHER_RESOURCES": json.dumps(RESOURCES),
    "FLEETBUS_WATCHER_PAGE_SIZE": str(PAGE_SIZE),
    "FLEETBUS_WATCHER_HEARTBEAT_BUSY": "1s",
    "FLEETBUS_WATCHER_HEARTBEAT_IDLE": "3s",
    "FLEETBUS_WATCHER_SILENCE": "4s",
    "FLEETBUS_WATCHER_WATCH_LASTS": "2s",  # so long at most a stalled watch is not noticed
    "FLEETBUS_WATCHER_BACKOFF_FIRST": "100ms",
    "FLEETBUS_WATCHER_BACKOFF_CAP": "2s",
    "FLEETBUS_WATCHER_GRANT_PATIENCE": "10s",
}
PROJECTOR: Final = {
    "FLEETBUS_RECONCILER_FUSE_WAIT": "3s",
    "FLEETBUS_RECONCILER_INCOMPLETE_WAIT": "8s",
    "FLEETBUS_RECONCILER_EPOCH_IDLE": "8s",
}
