"""Serving a type while its definition exists.

A definition is accepted if nobody else in its group has its names; it is then served, after the
delay that real servers take. One that goes takes its instances along, and stays until the last of
them has gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.definitions.served_type import resource_type
from fleetbus_emulator.apiserver.definitions.validation import is_established
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.builtin import CRDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fleetbus_emulator.apiserver.storage.state import Change, State
    from fleetbus_emulator.apiserver.storage.store import Stored
    from fleetbus_emulator.apiserver.types.resource import ResourceType
    from fleetbus_emulator.apiserver.types.served import ServedTypes


JsonObject = dict[str, Any]
CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


class Definitions:
    """Keeps the served types in step with the CRD objects.

    Args:
        state: The cluster, subscribed to.
        served: The types to change.
        later: Runs a function after the delay with which custom resources become served.
    """

    def __init__(
        self, state: State, served: ServedTypes, later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._state = state
        self._served = served
        self._later = later
        self._terminating: dict[tuple[str, str], str] = {}  # type -> name of its definition
        state.subscribers.append(self._observe)

    def is_terminating(self, rtype: ResourceType) -> bool:
        """Whether instances can no longer be created."""
        return rtype.store in self._terminating

    def resync(self) -> None:
        """Serve what the stored definitions say, after the past was restored."""
        for rtype in self._served.custom_types():
            self._served.remove(rtype.group, rtype.plural)
        self._terminating.clear()
        definitions = [stored.obj for stored in self._state.store(CRDS).snapshot().select(None)]
        for definition in definitions:
            if is_established(definition):
                self._serve(definition)
        for definition in definitions:  # what was under way is taken up again
            self._definition_changed(definition)

    def _observe(self, change: Change) -> None:
        place = (change.group, change.resource)
        if place == CRDS.store:
            if change.type == "DELETED":
                self._gone(change.new)
            else:
                self._definition_changed(change.new)
        elif change.type == "DELETED" and place in self._terminating:
            self._finish(place)

    def _definition_changed(self, definition: JsonObject) -> None:
        meta = definition["metadata"]
        if "deletionTimestamp" in meta:
            self._terminate(definition)
            return
        name, accepted = meta["name"], mapping(definition, "status", "acceptedNames")
        if not is_established(definition) or definition["spec"]["names"] != accepted:
            self._later(lambda: self._settle(name))
        if is_established(definition):
            self._serve(definition)

    def _stored(self, name: str) -> Stored | None:
        return self._state.store(CRDS).get(("", name))

    def _settle(self, name: str) -> None:
        """Write down which names are accepted and whether the type is served."""
        stored = self._stored(name)
        if stored is None or "deletionTimestamp" in stored.obj["metadata"]:
            return
        new = stored.copy()
        naming = accept_names(new, self._others(new))
        established = is_established(new) or not naming.reason
        conditions = [_names_accepted(naming), _established(accepted=established)]
        present: list[JsonObject] = listing(new, "status", "conditions")
        new["status"] = {
            "conditions": [_since(self._state.timestamp(), c, present) for c in conditions],
            "acceptedNames": naming.accepted,
            "storedVersions": listing(new, "status", "storedVersions"),
        }
        if new["status"] != stored.obj.get("status"):
            self._state.put(CRDS, stored.key, new, stored)

    def _others(self, definition: JsonObject) -> list[JsonObject]:
        """The other definitions of the same group."""
        group, name = definition["spec"]["group"], definition["metadata"]["name"]
        every = (stored.obj for stored in self._state.store(CRDS).snapshot().select(None))
        return [o for o in every if o["spec"]["group"] == group and o["metadata"]["name"] != name]

    def _serve(self, definition: JsonObject) -> None:
        rtype = resource_type(definition)
        present = self._served.type_of(rtype.group, rtype.plural)
        if present is not None and not present.custom:
            return
        self._state.store(rtype)
        self._served.add(rtype)

    def _terminate(self, definition: JsonObject) -> None:
        """Delete the instances; each one's end is observed, the last one's finishes."""
        if CLEANUP_FINALIZER not in (listing(definition["metadata"], "finalizers")):
            return
        spec = definition["spec"]
        place = (spec["group"], spec["names"]["plural"])
        if place in self._terminating:
            return
        self._terminating[place] = definition["metadata"]["name"]
        rtype = self._served.type_of(*place)
        if rtype is not None:
            self._delete_instances(rtype)
        self._finish(place)

    def _delete_instances(self, rtype: ResourceType) -> None:
        for stored in list(self._state.store(rtype).snapshot().select(None)):
            meta = stored.obj["metadata"]
            if not meta.get("finalizers"):
                self._state.remove(rtype, stored)
            elif "deletionTimestamp" not in meta:
                obj = stored.copy()
                obj["metadata"]["deletionTimestamp"] = self._state.timestamp()
                obj["metadata"]["deletionGracePeriodSeconds"] = 0
                obj["metadata"]["generation"] = meta.get("generation", 0) + 1
                self._state.put(rtype, stored.key, obj, stored)

    def _finish(self, place: tuple[str, str]) -> None:
        rtype, name = self._served.type_of(*place), self._terminating.get(place)
        if name is None:
            return  # the last instance took it along
        if rtype is not None and len(self._state.store(rtype)):
            return
        stored = self._stored(name)
        if stored is None:
            return
        finalizers: list[str] = listing(stored.obj["metadata"], "finalizers")
        if finalizers == [CLEANUP_FINALIZER]:
            self._state.remove(CRDS, stored)
        elif CLEANUP_FINALIZER in finalizers:
            new = stored.copy()
            new["metadata"]["finalizers"] = [f for f in finalizers if f != CLEANUP_FINALIZER]
            self._state.put(CRDS, stored.key, new, stored)

    def _gone(self, definition: JsonObject) -> None:
        spec = definition["spec"]
        place = (spec["group"], spec["names"]["plural"])
        self._terminating.pop(place, None)
        rtype = self._served.type_of(*place)
        if rtype is not None and rtype.custom:
            self._served.remove(*place)
            self._state.drop_store(rtype)
        for other in self._others(definition):  # the names are free again
            name = other["metadata"]["name"]
            self._later(lambda name=name: self._settle(name))


def _names_accepted(naming: Naming) -> JsonObject:
    if naming.reason:
        return _condition("NamesAccepted", False, naming.reason, naming.message)
    return _condition("NamesAccepted", True, "NoConflicts", "no conflicts found")


def _established(*, accepted: bool) -> JsonObject:
    if not accepted:
        return _condition("Established", False, "NotAccepted", "not all names are accepted")
    message = "the initial names have been accepted"
    return _condition("Established", True, "InitialNamesAccepted", message)


def _condition(name: str, holds: bool, reason: str, message: str) -> JsonObject:
    status = "True" if holds else "False"
    return {"type": name, "status": status, "reason": reason, "message": message}


def _since(now: str, condition: JsonObject, present: list[JsonObject]) -> JsonObject:
    """A condition with the time of its last transition."""
    old = next((c for c in present if c.get("type") == condition["type"]), JsonObject())
    moment = old.get("lastTransitionTime", now) if old.get("status") == condition["status"] else now
    kind, status = condition["type"], condition["status"]
    head = {"type": kind, "status": status, "lastTransitionTime": moment}
    return {**head, "reason": condition["reason"], "message": condition["message"]}


# The names in the order in which they are checked; the last conflict is the one reported.
RESOURCES = (("plural", "PluralConflict"), ("singular", "SingularConflict"))
KINDS = (("kind", "KindConflict"), ("listKind", "ListKindConflict"))
ORDER = ("plural", "singular", "shortNames", "kind", "listKind", "categories")


@dataclass(slots=True)
class Naming:
    """The names that were accepted, and the conflict that kept others from it."""

    accepted: JsonObject
    reason: str = ""
    message: str = ""


@dataclass(slots=True)
class _Taken:
    """The names that other definitions of the group have."""

    resources: set[str] = field(default_factory=set[str])
    kinds: set[str] = field(default_factory=set[str])


def accept_names(definition: JsonObject, others: Iterable[JsonObject]) -> Naming:
    """Accept the requested names that are free; otherwise names accepted before stay."""
    names: JsonObject = mapping(definition, "spec", "names")
    naming = Naming(dict(mapping(definition, "status", "acceptedNames")))
    taken = _taken(others)
    for name, reason in RESOURCES:
        _accept(naming, names, name, taken.resources, reason)
    _accept_short_names(naming, names, taken.resources)
    for name, reason in KINDS:
        _accept(naming, names, name, taken.kinds, reason)
    naming.accepted["categories"] = listing(names, "categories")
    present = {name: naming.accepted.get(name) for name in ORDER}
    naming.accepted = {name: value for name, value in present.items() if value}
    return naming


def _taken(others: Iterable[JsonObject]) -> _Taken:
    taken = _Taken()
    for other in others:
        names: JsonObject = mapping(other, "status", "acceptedNames")
        taken.resources.update(names.get(name) or "" for name, _ in RESOURCES)
        taken.resources.update(listing(names, "shortNames"))
        taken.kinds.update(names.get(name) or "" for name, _ in KINDS)
    return taken


def _accept(naming: Naming, names: JsonObject, name: str, taken: set[str], reason: str) -> None:
    text = names.get(name)
    if text in taken and text != naming.accepted.get(name):
        naming.reason, naming.message = reason, f'"{text}" is already in use'
    else:
        naming.accepted[name] = text


def _accept_short_names(naming: Naming, names: JsonObject, taken: set[str]) -> None:
    texts: list[str] = listing(names, "shortNames")
    mine = set(listing(naming.accepted, "shortNames"))
    conflicts = [f'"{text}" is already in use' for text in texts if text in taken - mine]
    if conflicts:
        naming.reason = "ShortNamesConflict"
        naming.message = conflicts[0] if len(conflicts) == 1 else f"[{', '.join(conflicts)}]"
    else:
        naming.accepted["shortNames"] = texts
