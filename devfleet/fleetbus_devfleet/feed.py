"""Committed writes of an emulated cluster as bus events, without a watcher in between.

For tests that have to know when every event was delivered: nothing is in flight here, because a
write is in the feed before it is answered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from fleetbus.process.clock import utc_now
from fleetbus_emulator.apiserver.cluster import BUILTIN
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetbus_emulator.apiserver import Change, Cluster
    from fleetbus_emulator.apiserver.types.resource import ResourceType
    from fleetbus_emulator.emulated_cluster import EmulatedCluster

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_DEFINITIONS: Final = "customresourcedefinitions"
_CORE: Final = "core"


class FedType(NamedTuple):
    """A type whose objects are in the feed."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool


class _Committed(NamedTuple):
    verb: Verb
    group: str
    resource: str
    obj: Mapping[str, Any]


class Feed:
    """The committed writes of one cluster, oldest first; what was there before counts as listed.

    To be made in the loop of the cluster, and read by one thread, whichever that is.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster.name
        self._incarnation = Incarnation(1, cluster.uid)
        self._committed: deque[_Committed] = deque()  # filled by the loop, emptied by the reader
        self._types = {_place(t.group, t.plural): _fed(t) for t in BUILTIN.all()}
        for obj in cluster.shared(f"apiextensions.k8s.io/v1/{_DEFINITIONS}"):
            self._define(obj)
        for fed_type in list(self._types.values()):
            self._list(cluster, fed_type)
        self._stop = cluster.subscribe(self._note)

    def close(self) -> None:
        """Note nothing more."""
        self._stop()

    def types(self) -> Sequence[FedType]:
        """The types that the cluster has, or has had."""
        return list(self._types.values())

    def take(self) -> list[Event]:
        """The events committed since the last call."""
        events: list[Event] = []
        while self._committed:
            events.append(self._event(self._committed.popleft()))
        return events

    def _list(self, cluster: Cluster, fed_type: FedType) -> None:
        gvr = "/".join(
            segment
            for segment in (_bare(fed_type.group), fed_type.version, fed_type.plural)
            if segment
        )
        if cluster.serves(gvr):
            for obj in cluster.shared(gvr):
                listed = _Committed(Verb.LISTED, _bare(fed_type.group), fed_type.plural, obj)
                self._committed.append(listed)

    def _note(self, change: Change) -> None:
        if change.resource == _DEFINITIONS:
            self._define(change.new)
        verb = Verb(change.type.lower())
        self._committed.append(_Committed(verb, change.group, change.resource, change.new))

    def _define(self, definition: Mapping[str, Any]) -> None:
        spec = definition["spec"]
        version = next(v["name"] for v in spec["versions"] if v["storage"])
        self._types[_place(spec["group"], spec["names"]["plural"])] = FedType(
            group=spec["group"],
            version=version,
            plural=spec["names"]["plural"],
            kind=spec["names"]["kind"],
            namespaced=spec["scope"] == "Namespaced",
        )

    def _event(self, committed: _Committed) -> Event:
        verb, group, resource, obj = committed
        metadata = obj["metadata"]
        return Event(
            cluster=self._cluster,
            incarnation=self._incarnation,
            group=group or _CORE,
            version=str(obj["apiVersion"]).rpartition("/")[2],
            resource=resource,
            kind=obj["kind"],
            namespace=metadata.get("namespace", ""),
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            verb=verb,
            epoch=Rank("1", 1),
            observed_at=utc_now(),
            object=_transformed(obj),
        )


def open_feed(cluster: EmulatedCluster) -> Feed:
    """The objects of an emulated cluster, and every write from now on, as events of the bus."""
    return cluster.call(Feed)


def _place(group: str, plural: str) -> tuple[str, str]:
    return group or _CORE, plural


def _bare(group: str) -> str:
    return "" if group == _CORE else group


def _fed(rtype: ResourceType) -> FedType:
    return FedType(
        group=rtype.group or _CORE,
        version=rtype.storage_version,
        plural=rtype.plural,
        kind=rtype.kind,
        namespaced=rtype.namespaced,
    )


def _transformed(obj: Mapping[str, Any]) -> bytes:
    """Apply the watcher's default transformations to an object."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in metadata.get("annotations", {}):
        annotations = metadata["annotations"].items()
        metadata["annotations"] = {k: v for k, v in annotations if k != _LAST_APPLIED}
    return orjson.dumps({**obj, "metadata": metadata})
