"""The audit log of a seed, read again: what was wanted when, and what distributors did."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from faults.distributors.desired import Labels, Place, desired
from faults.distributors.settings import AGENT, HUB
from faults.rig.records import read_lines
from fleetbus.ownership import CONFIRM_PRUNE_ANNOTATION, OWNER_UID_LABEL, owner_of

Json = dict[str, Any]
_KIND = {"configmaps": "ConfigMap", "serviceaccounts": "ServiceAccount"}


@dataclass(frozen=True, slots=True)
class Write:
    """A change of an object on a target."""

    t: float
    server: str
    type: str
    kind: str
    name: str
    before: Json | None
    after: Json | None
    by_distributor: bool

    @property
    def marked(self) -> Json | None:
        """The object as it was marked: before a deletion, else after it."""
        return self.before if self.type == "DELETED" else self.after

    @property
    def owner(self) -> str:
        """The UID of the MultiClusterResource that it is marked with; "" for a stranger."""
        return owner_uid(self.marked)

    @property
    def place(self) -> Place:
        """By the name that its cluster had when it was marked."""
        owner = owner_of({**(self.marked or {})})
        return Place(owner.target if owner else self.server, self.kind, self.name)


def owner_uid(obj: Json | None) -> str:
    """The UID of the owner in the mark of an object; "" for none."""
    return str((obj or {}).get("metadata", {}).get("labels", {}).get(OWNER_UID_LABEL, ""))


@dataclass(frozen=True, slots=True)
class Version:
    """The state of the hub from a moment on, for one MultiClusterResource."""

    t: float
    resource: Json | None
    """As people have written it; None while it does not exist."""
    labels: Mapping[str, Labels]
    """Labels of every cluster; for one that has left, its last labels."""
    is_edit: bool
    """Whether a person, or a restored backup, changed the resource, and not the labels."""

    @property
    def is_deleted(self) -> bool:
        """Whether its deletion was asked for."""
        return self.resource is None or "deletionTimestamp" in self.resource["metadata"]

    def wants(self, place: Place) -> bool:
        """Whether an object is to be there, or may not be pruned."""
        if self.resource is None:
            return False
        state = desired(self.resource["spec"], self.labels)
        return place in state.objects or bool(state.unrendered)


@dataclass
class History:
    """All of it.

    Attributes:
        writes: the changes of objects on the targets.
        versions: UID of a MultiClusterResource → its versions, the oldest first.
        names: UID → name.
        restores: when the hub was restored.
        leaves: when a cluster left the fleet, and its name.
        confirmed: UID → when a person confirmed a held deletion.
    """

    writes: list[Write] = field(default_factory=list[Write])
    versions: dict[str, list[Version]] = field(
        default_factory=lambda: defaultdict[str, list[Version]](list)
    )
    names: dict[str, str] = field(default_factory=dict[str, str])
    restores: list[float] = field(default_factory=list[float])
    leaves: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    confirmed: dict[str, list[float]] = field(
        default_factory=lambda: defaultdict[str, list[float]](list)
    )

    def during(self, uid: str, since: float, until: float) -> list[Version]:
        """The versions of a MultiClusterResource that were there in a time."""
        versions = self.versions[uid]
        first = max(0, bisect_right([version.t for version in versions], since) - 1)
        return [version for version in versions[first:] if version.t <= until]


class _Reader:
    """Follows the lines of the log."""

    def __init__(self) -> None:
        self.history = History()
        self._resources: dict[str, Json] = {}
        self._labels: dict[str, Labels] = {}
        self._objects: dict[tuple[str, str, str], Json] = {}
        self._restored: float | None = None

    def read(self, line: Json) -> None:
        if line["type"] == "RESTORED":
            self._restore(line)
        elif line["resource"] == "multiclusterresources":
            self._read_resource(line)
        elif line["resource"] == "clusters":
            self._read_cluster(line)
        else:
            self._read_object(line)

    def _restore(self, line: Json) -> None:
        if line["cluster"] != HUB:
            return
        self.history.restores.append(line["t"])
        for uid in list(self._resources):
            self._resources.pop(uid)
            self._note(uid, line["t"], is_edit=True)

    def _read_resource(self, line: Json) -> None:
        obj, uid = line["object"], line["object"]["metadata"]["uid"]
        self.history.names[uid] = obj["metadata"]["name"]
        before = self._resources.get(uid)
        if line["type"] == "DELETED":
            self._resources.pop(uid, None)
        else:
            self._resources[uid] = obj
        annotations = obj["metadata"].get("annotations", {})
        if annotations.get(CONFIRM_PRUNE_ANNOTATION):
            self.history.confirmed[uid].append(line["t"])
        if line["type"] == "DELETED" or before is None or _requested(before) != _requested(obj):
            self._note(uid, line["t"], is_edit=True)

    def _read_cluster(self, line: Json) -> None:
        name = line["object"]["metadata"]["name"]
        if line["type"] == "DELETED":
            self.history.leaves.append((line["t"], name))
            return
        self._labels[name] = line["object"]["metadata"].get("labels", {})
        for uid in self._resources:
            self._note(uid, line["t"], is_edit=False)

    def _note(self, uid: str, t: float, *, is_edit: bool) -> None:
        version = Version(t, self._resources.get(uid), {**self._labels}, is_edit)
        self.history.versions[uid].append(version)

    def _read_object(self, line: Json) -> None:
        obj, kind = line["object"], _KIND[line["resource"]]
        name = obj["metadata"]["name"]
        key = (line["cluster"], kind, name)
        before = self._objects.get(key)
        gone = line["type"] == "DELETED"
        if gone:
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        write = Write(
            t=line["t"],
            server=line["cluster"],
            type=line["type"],
            kind=kind,
            name=name,
            before=before or (obj if gone else None),
            after=None if gone else obj,
            by_distributor=line["agent"].startswith(AGENT),
        )
        if line["cluster"] != HUB:
            self.history.writes.append(write)


def _requested(resource: Json) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return resource["spec"], metadata.get("deletionTimestamp")


def read_history(path: Path, until: float = inf) -> History:
    """Read the log of a seed, up to the end of a phase."""
    reader = _Reader()
    for line in read_lines(path):
        if line["t"] <= until:
            reader.read(line)
    return reader.history
