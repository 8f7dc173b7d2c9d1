"""The environment of a controller, and the protocol of controllers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol

from fleetbus_emulator.apiserver import ApiError, Change, Cluster
from fleetbus_emulator.apiserver.json_tree import listing
from fleetbus_emulator.controllers.runtime.event_recorder import EventText, Recorder
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.stage_timers import StageTimers
from fleetbus_emulator.controllers.runtime.timing import Timing
from fleetbus_emulator.controllers.runtime.view import View, uid_of

JsonObject = dict[str, Any]
Kinds = frozenset[tuple[str, str]]
LONG_AGO = 1e9  # seconds; how old a time is that cannot be read
AT_ONCE, GATHERED, LAST = range(3)


def is_of_ending_namespace(error: ApiError) -> bool:
    """Whether a create was refused because its namespace is on its way out."""
    causes = listing(error.details or {}, "causes")
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


class Item(NamedTuple):
    """An object that a controller is to look at."""

    controller: str
    ref: Ref


@dataclass(frozen=True, slots=True)
class World:
    """One cluster as the controllers see and change it.

    Every change goes through the API server and is in the view when the call returns. A refusal is
    an ApiError: it ends the controller's turn, and the simulator repeats it later.

    Attributes:
        manager: Who is recorded as the owner of the fields that are written.
    """

    cluster: Cluster
    view: View
    stage_timers: StageTimers[Item]
    timing: Timing
    random: Random
    clock: Callable[[], datetime]
    recorder: Recorder
    manager: str = "kube-controller-manager"

    def now(self) -> str:
        """The time, as objects have it."""
        return self.clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def seconds_since(self, timestamp: str) -> float:
        """The age of a timestamp of an object; very large if it cannot be parsed."""
        try:
            return (self.clock() - datetime.fromisoformat(timestamp)).total_seconds()
        except (TypeError, ValueError):
            return LONG_AGO

    def is_due(self, item: Item, stage: str, delay: timedelta) -> bool:
        """Whether the object has been in this stage of its life for the delay."""
        return self.stage_timers.is_due(item, (uid_of(self.view[item.ref]), stage), delay)

    def create(self, gvr: str, obj: JsonObject) -> JsonObject:
        """Create an object in the namespace of its metadata."""
        return self.cluster.create(gvr, obj, manager=self.manager)

    def patch(self, ref: Ref, patch: JsonObject) -> None:
        """Merge-patch an object."""
        gvr = self.view.gvr(ref)
        self.cluster.patch(gvr, ref.namespace, ref.name, patch, manager=self.manager)

    def delete(self, ref: Ref, *, policy: str | None = None, grace: int | None = None) -> None:
        """Delete an object, or begin to."""
        gvr = self.view.gvr(ref)
        self.cluster.delete(gvr, ref.namespace, ref.name, policy=policy, grace=grace)

    def write_status(
        self, ref: Ref, status: JsonObject, annotations: JsonObject | None = None
    ) -> bool:
        """Replace the status, and set annotations by the way; whether anything was to do."""
        obj = self.view[ref]
        meta = obj["metadata"]
        present: JsonObject = meta.get("annotations") or {}
        merged = {**present, **(annotations or {})}
        if status == obj.get("status") and merged == present:
            return False
        if merged:
            meta = {**meta, "annotations": merged}
        new = {**obj, "metadata": meta, "status": status}
        self.cluster.update_status(self.view.gvr(ref), new, manager=self.manager)
        return True

    def warn(self, ref: Ref, reason: str, message: str, *, repeat: bool = True) -> None:
        """Record a Warning Event about an object.

        Args:
            ref: The object.
            reason: In one word.
            message: In a sentence.
            repeat: Whether to count, if that was said before.
        """
        text = EventText("Warning", reason, message, self.manager)
        if ref in self.view:
            self.recorder.record(self.view[ref], text, self.clock(), repeat=repeat)

    def note(self, ref: Ref, reason: str, message: str) -> None:
        """Record a Normal Event about an object."""
        if ref in self.view:
            text = EventText("Normal", reason, message, self.manager)
            self.recorder.record(self.view[ref], text, self.clock())

    def finalize(self, ref: Ref, obj: JsonObject) -> None:
        """Replace the finalizers in a namespace's spec."""
        gvr = self.view.gvr(ref)
        self.cluster.update(gvr, obj, subresource="finalize", manager=self.manager)

    def remove_finalizer(self, ref: Ref, finalizer: str) -> None:
        """Let go of an object that the finalizer holds."""
        meta = self.view[ref]["metadata"]
        remaining = [name for name in listing(meta, "finalizers") if name != finalizer]
        guard = {"resourceVersion": meta["resourceVersion"]}
        self.patch(ref, {"metadata": {"finalizers": remaining, **guard}})


class Controller(Protocol):
    """Brings a kind of objects to what they ask for.

    Attributes:
        name: Names the controller in the queue, in logs and where controllers are chosen.
        watches: The types whose writes it watches of, as (group, resource); empty for all.
        rank: AT_ONCE; or GATHERED, which looks at an object once for all that happened to it in a
            while (`Timing.notice`); or LAST, which does so when the others have come to rest.
    """

    name: str
    watches: Kinds
    rank: int

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """The objects to look at after a write; the view already shows it."""
        ...

    def reconcile(self, ref: Ref) -> None:
        """Compare an object, which exists, with what it asks for, and do what is to be done.

        Called again whenever something changes that `concerns` it, also by its own writes, so a
        turn may do a part and leave the rest to the next.

        Raises:
            ApiError: A write was refused; the turn is repeated later.
        """
        ...
