"""The true history of a cluster: every state of some types, by revision."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetbus_emulator.apiserver import Change, Cluster

JsonObject = dict[str, Any]
Key = tuple[str, str]


def key_of(obj: JsonObject) -> Key:
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def rv_of(obj: JsonObject) -> int:
    return int(obj["metadata"]["resourceVersion"])


def without_type(obj: JsonObject) -> JsonObject:
    """The object as all versions have it; items of built-in lists come without these."""
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}


@dataclass(frozen=True)
class Scope:
    """Which objects of a type: a namespace or all, and a predicate that mirrors a selector."""

    group: str
    resource: str
    namespace: str | None
    matches: Callable[[JsonObject], bool]

    def has(self, obj: JsonObject) -> bool:
        return self.namespace in (None, key_of(obj)[0]) and self.matches(obj)


class Truth:
    """Records every write of a cluster and the states after each."""

    def __init__(self, cluster: Cluster) -> None:
        self.beginning = cluster.resource_version
        self.changes: dict[int, Change] = {}
        self._rvs: dict[tuple[str, str], list[int]] = {}
        self._states: dict[tuple[str, str], list[dict[Key, JsonObject]]] = {}
        cluster.subscribe(self._record)

    def _record(self, change: Change) -> None:
        place, rv = (change.group, change.resource), rv_of(change.new)
        if change.type == "MODIFIED" and change.old is not None:
            revised = {**change.old["metadata"], "resourceVersion": str(rv)}
            assert change.new != {**change.old, "metadata": revised}, "a write of nothing new"
        states = self._states.setdefault(place, [])
        state = dict(states[-1]) if states else {}
        if change.type == "DELETED":
            del state[key_of(change.new)]
        else:
            state[key_of(change.new)] = change.new
        self._rvs.setdefault(place, []).append(rv)
        states.append(state)
        self.changes[rv] = change

    def at(self, scope: Scope, rv: int) -> dict[Key, JsonObject]:
        """The objects of a scope at a revision, without kind and apiVersion."""
        place = (scope.group, scope.resource)
        index = bisect_right(self._rvs.get(place, []), rv)
        state = self._states[place][index - 1] if index else {}
        return {key: without_type(obj) for key, obj in state.items() if scope.has(obj)}
