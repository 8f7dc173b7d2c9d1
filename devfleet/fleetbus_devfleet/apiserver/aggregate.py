"""The controller that fills in ClusterRoles with an aggregationRule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_devfleet.apiserver import write
from fleetbus_devfleet.apiserver.roles import GROUP
from fleetbus_devfleet.apiserver.rules import selector_matches
from fleetbus_devfleet.apiserver.tree import listing, mapping
from fleetbus_devfleet.apiserver.write import Target, WriteOptions

if TYPE_CHECKING:
    from fleetbus_devfleet.apiserver.served import Served
    from fleetbus_devfleet.apiserver.state import Change, State

JsonObject = dict[str, Any]
MANAGER = "clusterrole-aggregation-controller"
CLUSTER_ROLES = "clusterroles"
RULE = "aggregationRule"


class RoleAggregation:
    """Keeps the rules of aggregated ClusterRoles equal to those of the roles they select.

    Args:
        state: The cluster's memory.
        served: The type ClusterRole.
    """

    def __init__(self, state: State, served: Served) -> None:
        self._state = state
        self._served = served
        state.subscribers.append(self._changed)

    def _changed(self, change: Change) -> None:
        if change.group == GROUP and change.resource == CLUSTER_ROLES:
            self.run()

    def run(self) -> None:
        """Bring every aggregated role up to date; each write of one calls for the next."""
        store = self._state.store(self._served.rtype)
        for name in [role["metadata"]["name"] for role in self._roles() if RULE in role]:
            stored = store.get(("", name))  # afresh, for the writes before this one are heard of
            if stored is not None:
                rules = _aggregated(stored.obj, self._roles())
                if rules != listing(stored.obj, "rules"):
                    self._write(name, rules)

    def _roles(self) -> list[JsonObject]:
        found = self._state.store(self._served.rtype).snapshot().select(None)
        return [stored.obj for stored in found]

    def _write(self, name: str, rules: list[JsonObject]) -> None:
        options = WriteOptions(manager=MANAGER)
        target = Target(self._served, None, name)
        write.update(self._state, target, lambda role: {**role, "rules": rules}, options)


def _aggregated(role: JsonObject, roles: list[JsonObject]) -> list[JsonObject]:
    selectors = listing(role, RULE, "clusterRoleSelectors")
    own = role["metadata"]["name"]
    rules: list[JsonObject] = []
    for other in roles:
        labels: JsonObject = mapping(other, "metadata", "labels")
        if other["metadata"]["name"] != own and any(selector_matches(s, labels) for s in selectors):
            rules += [rule for rule in listing(other, "rules") if rule not in rules]
    return rules
