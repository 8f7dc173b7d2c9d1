"""The lines of a capture: a header, objects, events, and an end mark.

The file is gzip of JSON lines. Objects come in the order in which a cluster can take them: custom
resource definitions, namespaces, all others. Events are lines of `fleetbus events -o json`. The end
mark has the digest of all lines before it, so that a truncated file is noticed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fleetbus_proto.resources import Resource

FORMAT: Final = "fleetbus-capture"
VERSION: Final = 1
"""A reader refuses a higher one; fields that it does not know are ignored."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Bytes of a line. An object of etcd has at most 1.5 MiB; a longer line is no line of ours."""


class CapturedResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One resource of one cluster, as it was watched."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    incomplete: str = ""
    """Why objects may be missing, or out of date; empty if they are not."""

    @property
    def resource(self) -> Resource:
        """The resource."""
        return Resource(self.group, self.version, self.plural)


class CapturedCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One cluster of a capture."""

    name: str
    labels: dict[str, str]
    hub: bool
    server_version: str
    uid: str
    """UID of its namespace kube-system; empty if it is not known."""
    silent: str = ""
    """Why its state may be out of date; empty while its API server answers."""
    resources: list[CapturedResource]


class Gap(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of the window of which events are missing."""

    cluster: str | None
    """None for all clusters."""
    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    reason: str


class Window(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The time whose events are in a capture."""

    start: str = msgspec.field(name="from")
    end: str = msgspec.field(name="to")
    gaps: list[Gap]


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line."""

    format: str = FORMAT
    version: int = VERSION
    captured_at: str
    since_seconds: float
    """Period that the events should cover; the window says how far they do."""
    only: list[str] = []
    """The resource keys that were chosen; empty for all that are watched."""
    redacted: list[str]
    """The values hidden beside those of Secrets, for people."""
    window: Window
    clusters: list[CapturedCluster]

    def cluster(self, name: str) -> CapturedCluster | None:
        """The cluster of this name."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)

    @property
    def hub(self) -> str:
        """The name of the hub; empty if the capture does not have it."""
        return next((cluster.name for cluster in self.clusters if cluster.hub), "")


class CapturedObject(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    tag="object.v1",
):
    """One object of the snapshot."""

    cluster: str
    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str
    uid: str
    resource_version: str
    incarnation: int
    degraded: str = ""
    """Why the object is missing or incomplete, as in an event."""
    object: msgspec.Raw
    """JSON as it is stored; null if unknown."""

    @property
    def body(self) -> bytes | None:
        """The object; None if unknown."""
        content = bytes(self.object)
        return None if content == b"null" else content

    @property
    def type(self) -> Resource:
        """The resource of the object."""
        return Resource(self.group, self.version, self.resource)


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="end.v1"):
    """The last line."""

    objects: int
    events: int
    sha256: str
    """Digest of all lines before this one, with their newlines."""
