"""Orphaned pods of Jobs: nobody counts them any more, so their finalizer has to go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing
from fleetbus_emulator.controllers.pod_groups import TRACKING
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import uid_of
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Kinds, World

JsonObject = dict[str, Any]


class JobOrphans:
    """Takes the Jobs' finalizer from pods that no Job manages."""

    name = "job-orphans"
    watches: Kinds = frozenset({("batch", "jobs"), ("", "pods")})
    rank = AT_ONCE

    def __init__(self, world: World) -> None:
        self._world = world
        self._view = world.view

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Pods with the finalizer, by themselves or because their Job was deleted."""
        if ref.resource == "jobs":
            gone = change.type == "DELETED"
            groups = self._view.pods_of(uid_of(change.new))
            return groups.refs(lambda state: state.tracked) if gone else []
        return [ref] if TRACKING in listing(change.new, "metadata", "finalizers") else []

    def reconcile(self, ref: Ref) -> None:
        """Let the pod go, unless a Job manages it."""
        pod = self._view[ref]
        manager = self._view.controller_of(pod)
        managed = manager is not None and manager.resource == "jobs"
        if not managed and TRACKING in listing(pod, "metadata", "finalizers"):
            self._world.remove_finalizer(ref, TRACKING)
