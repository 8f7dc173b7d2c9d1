"""Translates the API server's bytes into events: cut, never rebuilt.

Every byte that stays is as the server sent it. Only the maps on the way to what is dropped are
decoded, one level at a time; the object is never decoded as a whole. Only the spec of a
MultiClusterResource is, to search it for Secrets; its bytes stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from fleetbus.kube.list_watch.listing import DECODE_ERRORS as UNDECODABLE
from fleetbus.kube.list_watch.listing import RawObject, WatchTarget, read_map, read_text
from fleetbus.kube.list_watch.reflect import WatchEvent, WatchType, read_deep_metadata
from fleetbus.process.clock import utc_now
from fleetbus_proto.events import UNREADABLE, Event, Incarnation, Rank
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import is_comparable
from fleetbus_watcher.errors import Unpublishable
from fleetbus_watcher.transform.secret_redaction import is_narrowed
from fleetbus_watcher.transform.transform import Transform

_VERBS: Final = {
    WatchType.ADDED: Verb.ADDED,
    WatchType.MODIFIED: Verb.MODIFIED,
    WatchType.DELETED: Verb.DELETED,
}
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Origin:
    """The parts that all events of one resource and scope have in common."""

    cluster: str
    incarnation: Incarnation
    resource: Resource
    kind: str
    scope: str
    is_selective: bool
    """Whether a selector is watched: then DELETED may mean that the object left it (W6)."""
    transform: Transform

    @classmethod
    def of(
        cls,
        target: WatchTarget,
        scope: str,
        kind: str,
        *,
        cluster: str,
        incarnation: Incarnation,
        transform: Transform,
    ) -> Origin:
        """Return the origin of a target in a cluster."""
        return cls(
            cluster=cluster,
            incarnation=incarnation,
            resource=target.resource,
            kind=kind,
            scope=scope,
            is_selective=is_narrowed(target),
            transform=transform,
        )


def from_watch(change: WatchEvent, origin: Origin, rank: Rank) -> Event:
    """Translate one event of a watch; not a BOOKMARK or UNREADABLE.

    Raises:
        Unpublishable: its key cannot be read.
    """
    verb = _VERBS[change.type]
    return _event(change.object, change.metadata, change.resource_version, origin, rank, verb)


def from_list(item: msgspec.Raw, origin: Origin, rank: Rank) -> Event:
    """Translate one item of a list into a `listed` event.

    Raises:
        Unpublishable: its key cannot be read.
    """
    try:
        obj, metadata = _read_item(item)
        version = read_text(metadata["resourceVersion"])
    except (*UNDECODABLE, KeyError) as e:
        raise Unpublishable(f"an item of the list: {e}") from e
    if not is_comparable(version):
        raise Unpublishable("the resourceVersion of an object is not a decimal number")
    if obj is not None and ("kind" not in obj or "apiVersion" not in obj):
        # Items of a built-in list have neither; without them a relist would change every body.
        obj = {
            "kind": msgspec.Raw(_encoder.encode(origin.kind)),
            "apiVersion": msgspec.Raw(_encoder.encode(origin.resource.api_version)),
            **obj,
        }
    return _event(obj, metadata, version, origin, rank, Verb.LISTED)


def _read_item(item: msgspec.Raw) -> tuple[RawObject | None, RawObject]:
    try:
        obj = read_map(item)
        return obj, read_map(obj["metadata"])
    except UNDECODABLE:
        return None, read_deep_metadata(bytes(item))


def _event(
    obj: RawObject | None,
    metadata: RawObject,
    version: str,
    origin: Origin,
    rank: Rank,
    verb: Verb,
) -> Event:
    try:
        name, namespace = read_text(metadata["name"]), _text(metadata, "namespace")
    except (*UNDECODABLE, KeyError) as e:
        raise Unpublishable(f"the metadata of an object: {e}") from e
    uid = _uid(metadata)
    if uid is None:
        obj, uid = None, ""
    body = _shrink(obj, metadata, origin.transform) if obj is not None else None
    return Event(
        cluster=origin.cluster,
        incarnation=origin.incarnation,
        group=origin.resource.group,
        version=origin.resource.version,
        resource=origin.resource.plural,
        kind=origin.kind,
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=version,
        verb=verb,
        epoch=rank,
        scope=origin.scope,
        observed_at=utc_now(),
        object=body,
        left_selection=verb is Verb.DELETED and origin.is_selective,
        degraded="" if body is not None else UNREADABLE,
    )


def _text(metadata: RawObject, field: str) -> str:
    raw = metadata.get(field)
    return read_text(raw) if raw is not None and bytes(raw) != b"null" else ""


def _uid(metadata: RawObject) -> str | None:
    """Return the uid; None if it is not printable. It is not part of the key."""
    try:
        uid = _text(metadata, "uid")
    except UNDECODABLE:
        return None
    return uid if uid.isprintable() else None


def _shrink(obj: RawObject, metadata: RawObject, transform: Transform) -> bytes | None:
    """Return the transformed object; None if it cannot be decoded: it may contain secrets (W16)."""
    try:
        return transform.apply(obj, metadata)
    except UNDECODABLE:
        return None
