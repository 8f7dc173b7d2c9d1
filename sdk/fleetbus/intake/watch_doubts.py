"""What a controller watches that is not there: most likely it is misspelt."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import ClusterChoice, choose_clusters
from fleetbus.process.cancellation import is_stop
from fleetbus_proto.resources import Resource


def unwatched_resources(controller: Controller, known: Collection[str]) -> list[Resource]:
    """The resources that no cluster has, of those that watches name.

    Args:
        controller: whose watches.
        known: the keys of all that is watched somewhere, like `apps/deployments`.
    """
    wanted = {watch.resource for watch in controller.watches if watch.resource}
    return sorted(resource for resource in wanted if resource.key not in known)


def absent_clusters(controller: Controller, fleet: Sequence[ClusterInfo]) -> list[str]:
    """The names, patterns and selectors of watches that no cluster of the fleet matches."""
    parts = [part for watch in controller.watches for part in _parts(watch.clusters)]
    texts = [_told(part, fleet) for part in parts if not any(_matches(part, i) for i in fleet)]
    return sorted(set(texts))


def _told(part: ClusterChoice, fleet: Sequence[ClusterInfo]) -> str:
    """The choice; of one text that is a cluster's name, how a name is written."""
    _, _, label = part.text.partition("with ")
    if part.asks_info and any(info.name == label for info in fleet):
        return f"with the label {label}; for the cluster of that name write clusters=[{label!r}]"
    return part.text


def _parts(choice: ClusterChoice) -> list[ClusterChoice]:
    """One for each name: of several one may be misspelt."""
    if choice.asks_info or choice.text == "*":
        return [choice]
    return [choose_clusters([name]) for name in choice.text.split(",") if name]


def _matches(part: ClusterChoice, info: ClusterInfo) -> bool:
    try:
        return bool(part.decide(info.name, info))
    except BaseException as e:  # user code, and who routes by it tells what it raises
        if is_stop(e):
            raise
        return True
