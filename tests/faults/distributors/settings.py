"""Settings of the campaign of distributors: names, and waits short enough for many faults.

What is scaled is said in the report: leases, retries, sweeps, the size from which the inventory is
chunked, and by one factor the times of agents and of whoever waits for them. Orders, budgets and
the limits of the deletion fuse are not.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from fleetbus.agent_calls.pending import Times as CallerTimes
from fleetbus.workqueue import QueuePolicy
from fleetbus.workqueue.queue import Backoff
from fleetbus_agent.gateway import Times

HUB: Final = "hub"
TARGETS: Final = ("t1", "t2", "t3", "t4")
DIRECT: Final = ("t1", "t3")
"""The targets whose API servers the distributors dial."""
BEHIND_AGENTS: Final = ("t2", "t4")
"""The others: their API servers admit only agents and watchers, who have a token."""
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
_AGENT_SCALE: Final = 4
"""By so much faster than in the product."""
CALLER_TIMES: Final = CallerTimes(silence=15 / _AGENT_SCALE, still_waiting=5 / _AGENT_SCALE)
AGENT_TIMES: Final = Times(
    tick=0.1,
    working_every=5 / _AGENT_SCALE,
    silence=15 / _AGENT_SCALE,
    stale_after=3 / 4 * POLICY.lease.total_seconds(),  # less than the lease, as in the product
)
OBJECT_TIMEOUT: Final = timedelta(seconds=10 / _AGENT_SCALE)
"""Shorter than a caller waits for a silent agent: who gives up cancels its call."""
SETTLE_SECONDS: Final = 75
"""A fleet that is not quiet by then is not settled."""
