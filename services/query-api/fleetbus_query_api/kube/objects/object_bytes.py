"""The bytes of objects as a Kubernetes API sends them.

The resourceVersion of an object is the snapshot's version at its last change (rule A5): one of the
cluster's own would mean nothing to a watch here. In the fleet an annotation names the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fleetbus.snapshot import Entry
from fleetbus_query_api.fields.bodies import BROKEN
from fleetbus_query_api.responses.render import body_of

CLUSTER_ANNOTATION: Final = "fleetbus.dev/cluster"
DEGRADED_ANNOTATION: Final = "fleetbus.dev/degraded"

# A body that begins so has both, whatever else it holds.
_HEAD: Final = re.compile(
    rb'\{"(?:kind":"[^"\\]*","apiVersion":"[^"\\]*"|apiVersion":"[^"\\]*","kind":"[^"\\]*"),'
)
_Members = dict[str, msgspec.Raw]
_members: Final = msgspec.json.Decoder(_Members)
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """Rewrites the bodies of one resource.

    Attributes:
        api_version: for objects that do not name theirs.
        kind: likewise.
        names_cluster: whether an annotation names the cluster of each object.
    """

    api_version: str
    kind: str
    names_cluster: bool

    def whole(self, entry: Entry) -> bytes:
        """The whole object; without a body what is known of it, with an annotation."""
        body = body_of(entry)
        if not self.names_cluster and (spliced := _splice(entry, body)):
            return spliced
        obj = _decode(body)
        if obj is None:
            return self._known_of(entry)
        fields = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
        head = {
            "kind": obj.get("kind", self.kind),
            "apiVersion": obj.get("apiVersion", self.api_version),
        }
        return _encode({**head, **fields, "metadata": self._metadata(entry, obj)})

    def metadata(self, entry: Entry, version: str = "v1") -> bytes:
        """The PartialObjectMetadata of an object."""
        obj = _decode(body_of(entry)) or _decode(self._known_of(entry)) or {}
        return _encode(
            {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{version}",
                "metadata": self._metadata(entry, obj),
            }
        )

    def tree(self, entry: Entry) -> dict[str, Any]:
        """The object as a tree; without a body that can be read, what is known of it."""
        body = body_of(entry)
        try:
            content: Any = msgspec.json.decode(body) if body else None
        except BROKEN:
            content = None
        return content or msgspec.json.decode(self._known_of(entry))

    def _metadata(self, entry: Entry, obj: _Members) -> Mapping[str, Any]:
        raw = obj.get("metadata")
        metadata: dict[str, Any] = dict(_part(raw))
        metadata["resourceVersion"] = str(entry.counter)
        if self.names_cluster:
            annotations = _part(metadata.get("annotations"))
            metadata["annotations"] = {**annotations, CLUSTER_ANNOTATION: entry.cluster}
        return metadata

    def _known_of(self, entry: Entry) -> bytes:
        """The known part of an object without a body."""
        metadata: dict[str, Any] = {
            "name": entry.name,
            **({"namespace": entry.namespace} if entry.namespace else {}),
            "uid": entry.uid,
            "resourceVersion": str(entry.counter),
            "annotations": {DEGRADED_ANNOTATION: entry.degraded or "absent"},
        }
        if self.names_cluster:
            metadata["annotations"][CLUSTER_ANNOTATION] = entry.cluster
        return _encode({"kind": self.kind, "apiVersion": self.api_version, "metadata": metadata})


def _splice(entry: Entry, body: bytes) -> bytes:
    """Exchange the version in the bytes; empty where it is not the only text that looks like it."""
    mark = b'"resourceVersion":"%b"' % entry.resource_version.encode()
    if body.count(mark) != 1 or _HEAD.match(body) is None:
        return b""
    return body.replace(mark, b'"resourceVersion":"%d"' % entry.counter)


def _part(raw: msgspec.Raw | None) -> _Members:
    """The members of a part of an object; none of null or of what is no map."""
    return _decode(bytes(raw) if raw is not None else b"") or {}


def _decode(body: bytes) -> _Members | None:
    """The members of an object; None if there is none that can be read."""
    try:
        return _members.decode(body) if body else None
    except BROKEN:
        return None  # one such object must not break the list
