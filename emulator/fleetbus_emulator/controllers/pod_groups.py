"""The pods that an owner manages, sorted by what counts of their state.

A workload of thousands of pods is looked at each time one of them changes. Its controller counts
groups of pods of equal state, of which there are few, instead of reading every pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import find_condition
from fleetbus_emulator.controllers.reading import texts_at
from fleetbus_emulator.controllers.runtime.index import Ref

JsonObject = dict[str, Any]
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
TRACKING = "batch.kubernetes.io/job-tracking"
ENDED = ("Succeeded", "Failed")
PHASE_ORDER = {"Pending": 0, "Unknown": 1, "Running": 2}


class PodState(NamedTuple):
    """The part of a pod's state that its owner counts by.

    Attributes:
        ready_since: The condition's lastTransitionTime; empty if the pod is not ready.
        cost: The pod-deletion-cost annotation.
        restarts: How often its containers were started again, all together.
        tracked: A Job's finalizer holds it until it is counted.
    """

    phase: str
    deleting: bool
    placed: bool
    ready: bool
    ready_since: str
    cost: int
    restarts: int
    tracked: bool
    labels: tuple[tuple[str, str], ...]

    @property
    def ended(self) -> bool:
        """Whether its containers ended for good."""
        return self.phase in ENDED

    @property
    def active(self) -> bool:
        """Whether it counts as one that exists: it has not ended and is not being deleted."""
        return not self.deleting and self.phase not in ENDED


def state_of(pod: JsonObject) -> PodState:
    """The state of a pod."""
    meta, status = pod["metadata"], mapping(pod, "status")
    condition = find_condition(pod, "Ready")
    ready = condition.get("status") == "True"
    cost = str(mapping(meta, "annotations").get(DELETION_COST) or "0")
    return PodState(
        phase=str(status.get("phase") or "Pending"),
        deleting="deletionTimestamp" in meta,
        placed=bool(mapping(pod, "spec").get("nodeName")),
        ready=ready,
        ready_since=str(condition.get("lastTransitionTime") or "") if ready else "",
        cost=int(cost) if cost.lstrip("-").isdecimal() else 0,
        restarts=_restarts(status),
        tracked=TRACKING in listing(meta, "finalizers"),
        labels=tuple(sorted(texts_at(meta, "labels").items())),
    )


def _restarts(status: JsonObject) -> int:
    statuses = listing(status, "initContainerStatuses") + listing(status, "containerStatuses")
    counts = (mapping(container).get("restartCount") for container in statuses)
    return sum(count for count in counts if isinstance(count, int))


def deletion_rank(state: PodState) -> tuple[bool, int, bool, int]:
    """Sorts pods so that those come first whose loss hurts least."""
    return state.placed, PHASE_ORDER.get(state.phase, 1), state.ready, state.cost


class PodGroups:
    """The pods of one owner."""

    def __init__(self) -> None:
        self._groups: dict[PodState, dict[Ref, None]] = {}

    def count(self, holds: Callable[[PodState], bool]) -> int:
        """The number of pods in states that a predicate holds for."""
        return sum(len(refs) for state, refs in self._groups.items() if holds(state))

    def refs(self, holds: Callable[[PodState], bool]) -> list[Ref]:
        """The pods in states that a predicate holds for."""
        return [ref for state, refs in self._groups.items() if holds(state) for ref in refs]

    def sizes(self) -> Iterator[tuple[PodState, int]]:
        """The states, and how many pods are in each."""
        return ((state, len(refs)) for state, refs in self._groups.items())

    def victims(self, number: int) -> list[Ref]:
        """Active pods whose loss hurts least; of equals, the newest."""
        states = [state for state in self._groups if state.active]
        states.sort(key=lambda state: state.ready_since, reverse=True)
        states.sort(key=deletion_rank)
        chosen: list[Ref] = []
        for state in states:
            refs = self._groups[state]
            chosen += [ref for ref, _ in zip(reversed(refs), range(number), strict=False)]
            if len(chosen) >= number:
                break
        return chosen[:number]

    def put(self, ref: Ref, state: PodState) -> None:
        """Take a pod in."""
        self._groups.setdefault(state, {})[ref] = None

    def drop(self, ref: Ref, state: PodState) -> bool:
        """Let a pod go that is in a state; whether it was the last of all."""
        refs = self._groups.get(state, {})
        refs.pop(ref, None)
        if not refs:
            self._groups.pop(state, None)
        return not self._groups


class PodGroupsByOwner:
    """The pods of all owners, by the uid of the owner that manages them."""

    def __init__(self, manager_of: Callable[[JsonObject], str | None]) -> None:
        self._manager_of = manager_of
        self._by_owner: dict[str, PodGroups] = {}
        self._places: dict[Ref, tuple[str, PodState]] = {}

    def of(self, uid: str) -> PodGroups:
        """The pods that the owner manages."""
        return self._by_owner.get(uid) or PodGroups()

    def move(self, ref: Ref, old: JsonObject | None, new: JsonObject | None) -> None:
        """Take an object in, out, or to where it belongs now; what is no pod is let pass."""
        del old
        if (ref.group, ref.resource) != ("", "pods"):
            return
        manager = None if new is None else self._manager_of(new)
        place = None if new is None or manager is None else (manager, state_of(new))
        before = self._places.get(ref)
        if place == before:
            return
        if before is not None:
            self._leave(ref, *before)
        if place is not None:
            self._places[ref] = place
            self._by_owner.setdefault(place[0], PodGroups()).put(ref, place[1])

    def _leave(self, ref: Ref, uid: str, state: PodState) -> None:
        del self._places[ref]
        if self._by_owner[uid].drop(ref, state):
            del self._by_owner[uid]
