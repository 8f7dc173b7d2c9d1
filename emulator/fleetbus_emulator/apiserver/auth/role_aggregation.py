"""The controller that fills in ClusterRoles with an aggregationRule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.auth.roles import GROUP
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.validation import selector_matches
from fleetbus_emulator.apiserver.write import write
from fleetbus_emulator.apiserver.write.target import Target
from fleetbus_emulator.apiserver.write.write import WriteOptions

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.storage.state import Change, State
    from fleetbus_emulator.apiserver.types.served import Served

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
        """Bring every aggregated role up to date."""
        roles = self._roles()
        for role in roles:
            if RULE in role and (rules := _aggregated(role, roles)) != listing(role, "rules"):
                self._write(role["metadata"]["name"], rules)

    def _roles(self) -> list[JsonObject]:
        entries = self._state.store(self._served.rtype).snapshot().select(None)
        return [stored.obj for stored in entries]

    def _write(self, name: str, rules: list[JsonObject]) -> None:
        options = WriteOptions(manager=MANAGER)
        target = Target(self._served, None, name)
        write.update(self._state, target, lambda role: {**role, "rules": rules}, options)


def _aggregated(role: JsonObject, roles: list[JsonObject]) -> list[JsonObject]:
    """The rules of all that a role selects, and of what aggregated roles among these select.

    Their own rules do not count: roles that select each other would never lose any.
    """
    rules: list[JsonObject] = []
    names: set[str] = set()
    waiting = [role]
    while waiting:
        current = waiting.pop()
        if current["metadata"]["name"] in names:
            continue
        names.add(current["metadata"]["name"])
        if RULE in current:
            waiting += reversed(_selected(current, roles))
        else:
            rules += [rule for rule in listing(current, "rules") if rule not in rules]
    return rules


def _selected(role: JsonObject, roles: list[JsonObject]) -> list[JsonObject]:
    selectors = listing(role, RULE, "clusterRoleSelectors")
    labels = ((other, mapping(other, "metadata", "labels")) for other in roles)
    return [other for other, of in labels if any(selector_matches(s, of) for s in selectors)]
