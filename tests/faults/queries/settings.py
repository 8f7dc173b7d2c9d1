"""Settings of the campaign of the query API: its processes, and the clients that watch through it.

What is scaled is said in the report: the waits of watchers and of the projector, and how long NATS
waits for what a killed projector held. The query API runs as it is installed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from faults.rig.load import CONFIG_MAPS
from faults.rig.settings import CLUSTERS

APIS: Final = ("api-1", "api-2")
FLEET: Final = "-"
"""The place of the Kubernetes API that is the whole fleet."""
WEB: Final = "app=web"
"""The selector of half of the clients; objects come into it and leave it."""
QUERY_API: Final = {
    "FLEETBUS_QUERY_API_AUTHENTICATION": "none",
    # All clients have one address, which would be one user.
    "FLEETBUS_QUERY_API_USER_REQUESTS_PER_SECOND": "1000",
    "FLEETBUS_QUERY_API_USER_CONCURRENCY": "32",
}
WATCHES: Final = {"FLEETBUS_WATCHER_RESOURCES": json.dumps([CONFIG_MAPS])}
STORE_WIPED: Final = "valkey-wiped"
"""The fault that voids every version handed out (rules A5, P13)."""
CALM_SECONDS: Final = 18.0
"""Load without faults, after which every watch has reported something."""
SILENT_SECONDS: Final = 15.0
"""So long at most a watch may stay silent while nothing is broken and its objects change."""


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client.

    Attributes:
        name: of its records.
        kind: what it is.
        place: `-` or a cluster.
        selector: of labels; empty for all objects.
        lists: of an informer: whether it lists, as it did before WatchList.
    """

    name: str
    kind: Literal["informer", "asyncio", "kubectl", "kube", "events"]
    place: str
    selector: str = ""
    lists: bool = False

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters whose objects it has."""
        return CLUSTERS if self.place == FLEET else (self.place,)


CLIENTS: Final = (
    ClientPlan("kube-fleet", "kube", FLEET),
    ClientPlan("kube-fleet-web", "kube", FLEET, WEB),
    ClientPlan("events-fleet", "events", FLEET),
    ClientPlan("events-fleet-web", "events", FLEET, WEB),
    ClientPlan("kubectl-fleet", "kubectl", FLEET),
    ClientPlan("asyncio-beta", "asyncio", "beta"),
    ClientPlan("asyncio-gamma-web", "asyncio", "gamma", WEB),
    ClientPlan("informer-alpha", "informer", "alpha", lists=True),
    ClientPlan("informer-beta", "informer", "beta"),
    ClientPlan("informer-alpha-web", "informer", "alpha", WEB),
    ClientPlan("informer-gamma-web", "informer", "gamma", WEB, lists=True),
)
