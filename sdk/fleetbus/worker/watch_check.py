"""Warns of resources and clusters that are watched and nowhere to be found: likely misspelt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import ClusterChoice, choose_clusters
from fleetbus.process.cancellation import is_stop
from fleetbus.worker.connections import Connections
from fleetbus_proto.resources import Resource

log = structlog.get_logger()


class WatchCheck:
    """Checks the watches of one controller once, as soon as fleet and resources are known.

    Args:
        controller: whose watches.
        connections: the fleet, and the resources that its clusters have.
    """

    def __init__(self, controller: Controller, connections: Connections) -> None:
        self._controller = controller
        self._connections = connections
        self._is_done = False

    async def run(self) -> None:
        """Check, unless that is done or not possible yet: no watcher or no provider has reported.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        watched, clusters = self._connections.reader.watched, self._connections.clusters
        if self._is_done:
            return
        keys = await watched.keys()
        if not keys or not clusters.is_known:
            return
        suggestions = {
            str(resource): await watched.suggest(resource)
            for resource in unwatched_resources(self._controller, keys)
        }
        self._is_done = True
        name, fleet = self._controller.name, clusters.all()
        for resource, suggestion in suggestions.items():
            if suggestion is not None:
                near, hint = {"did_you_mean": suggestion.did_you_mean}, {"hint": suggestion.hint}
                log.warning(
                    "resource_is_watched_in_no_cluster",
                    controller=name,
                    resource=resource,
                    **(near if suggestion.did_you_mean else hint),
                )
        for absent in absent_clusters(self._controller, fleet):
            log.warning(
                "watch_matches_no_cluster",
                controller=name,
                clusters=absent,
                fleet=[info.name for info in fleet],
            )


def unwatched_resources(controller: Controller, keys: Collection[str]) -> list[Resource]:
    """The resources that watches name and no cluster has.

    Args:
        controller: whose watches.
        keys: the keys of all resources that are watched somewhere, like `apps/deployments`.
    """
    resources = {watch.resource for watch in controller.watches if watch.resource}
    return sorted(resource for resource in resources if resource.key not in keys)


def absent_clusters(controller: Controller, fleet: Sequence[ClusterInfo]) -> list[str]:
    """The names, patterns and selectors of watches that no cluster of the fleet matches."""
    parts = [choice for watch in controller.watches for choice in _parts(watch.clusters)]
    texts = [
        _describe(choice, fleet) for choice in parts if not any(_matches(choice, i) for i in fleet)
    ]
    return sorted(set(texts))


def _describe(choice: ClusterChoice, fleet: Sequence[ClusterInfo]) -> str:
    """The choice, with a hint where a cluster's name is taken for a label selector."""
    _, _, label = choice.text.partition("with ")
    if choice.asks_info and any(info.name == label for info in fleet):
        return f"with the label {label}; for the cluster of that name write clusters=[{label!r}]"
    return choice.text


def _parts(choice: ClusterChoice) -> list[ClusterChoice]:
    """One choice for each name, as one of several may be misspelt."""
    if choice.asks_info or choice.text == "*":
        return [choice]
    return [choose_clusters([name]) for name in choice.text.split(",") if name]


def _matches(choice: ClusterChoice, info: ClusterInfo) -> bool:
    try:
        return bool(choice.decide(info.name, info))
    except BaseException as e:  # user code; the router logs what it raises
        if is_stop(e):
            raise
        return True
