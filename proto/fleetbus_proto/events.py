"""The messages of the bus, with their msgpack encoding.

Field names on the wire are camelCase; `type` names message and format version in one word.
Optional fields are left out when they hold their default.
Readers in other languages: proto/README.md.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key

FORMAT = 1
"""The version of this contract, in the header `fleetbus-format` of every message."""
OVERSIZED: Final = "oversized"
"""`Event.degraded` of an object that is too large for the bus (rule B11)."""
UNREADABLE: Final = "unreadable"
"""`Event.degraded` of an object that could not be parsed (rule W16)."""


class Incarnation(msgspec.Struct, frozen=True, rename="camel"):
    """One continuous history of a cluster's etcd; a larger number replaces a smaller one (P2)."""

    number: int
    uid: str
    """UID of the namespace kube-system."""


class Rank(msgspec.Struct, frozen=True, rename="camel"):
    """The order of epochs: by the list's resourceVersion, then by the claimed id (rule W7)."""

    resource_version: str
    id: int

    @property
    def key(self) -> tuple[tuple[int, str], int]:
        """A sort key."""
        return (version_key(self.resource_version), self.id)


class _OfResource:
    """A message about one resource, identified by group and plural."""

    __slots__ = ()
    group: str
    resource: str

    @property
    def resource_key(self) -> str:
        """The identity of the resource, `<group>/<plural>`."""
        return f"{self.group}/{self.resource}"


class Event(
    _OfResource,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="event.v1",
):
    """One change of one object, as a watcher observed it."""

    cluster: str
    incarnation: Incarnation
    group: str
    version: str
    resource: str
    kind: str
    namespace: str
    """Empty for a cluster-scoped object."""
    name: str
    uid: str
    resource_version: str
    verb: Verb
    epoch: Rank
    """The list that this event belongs to, or that its watch descends from."""
    scope: str = ""
    """Hash of the watched namespaces and selectors; empty if everything is watched."""
    observed_at: str
    """RFC 3339 with microseconds, UTC, by the watcher's clock."""
    object: bytes | None
    """JSON from the API server without the fields that the transform removes; None if left out."""
    final_state_unknown: bool = False
    """A deletion found by a relist: `object` is the last known state (rule P6)."""
    left_selection: bool = False
    """A deletion seen through a selector: the object may still exist (rule W6)."""
    degraded: str = ""
    """Why `object` is incomplete: `oversized` or `unreadable` (rules B11, W16)."""


class EpochEnd(
    _OfResource,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="epochEnd.v1",
):
    """The end of a complete list: all of its objects are on the stream (rule W7)."""

    cluster: str
    incarnation: Incarnation
    group: str
    version: str
    resource: str
    kind: str
    epoch: Rank
    scope: str = ""
    count: int
    """The number of distinct objects in the list."""
    removed: bool = False
    """The type itself was provably removed (rule W17)."""
    observed_at: str


class AuditPage(
    _OfResource,
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="auditPage.v1",
):
    """One page of a metadata-only list, to compare with the snapshot (rule W18)."""

    cluster: str
    incarnation: Incarnation
    group: str
    version: str
    resource: str
    epoch: Rank
    """The resourceVersion of the list and the id of the audit, which is never that of an epoch."""
    scope: str = ""
    page: int
    last: bool
    """The last page; an audit without one was abandoned, and proves nothing (rule W8)."""
    after: tuple[str, str] | None = None
    """Namespace and name of the last item before this page; None for the first page. `items` is
    complete from there to the last item, or to the end on the last page."""
    items: list[tuple[str, str, str, str]]
    """namespace, name, uid, resourceVersion; sorted by the bytes of `<namespace>/<name>`."""
    observed_at: str


class ResourceStatus(
    _OfResource, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """State of the watch of one resource of a cluster, as reported in a heartbeat."""

    group: str
    version: str
    resource: str
    kind: str = ""
    namespaced: bool = True
    scope: str = ""
    namespace: str = ""
    """The only namespace of the scope; empty for all."""
    state: str
    """`listing`, `watching` or `failing`."""
    reason: str = ""
    message: str = ""
    watch_open: bool = True
    """Whether a watch is open that the API server has accepted, whatever `state` is."""
    last_received: str = ""
    """When the last byte of list or watch was received, bookmarks included."""
    resource_version: str = ""
    """The low-water mark: every event up to it is acknowledged (rule W4)."""
    lag_seconds: float = 0.0
    """Age of the oldest event not yet acknowledged."""


class WatchSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The resources that a watcher is configured to watch, beside its `resources` (rule P6)."""

    all: bool = False
    """Every resource in all namespaces, except `deny`."""
    deny: list[str] = []
    """Resources that `all` excludes, as `<group>/<plural>`."""
    served: list[str] | None = None
    """Set while some name in the watch spec matches nothing that the server serves: only these
    resources are known not to be meant by such a name."""

    def may_hold(self, resource: str, scope: str) -> bool:
        """Whether a scope of a resource is, or may be, watched although nothing else names it."""
        if self.all and not scope and resource not in self.deny:
            return True
        return self.served is not None and resource not in self.served


class PrinterColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A column of a custom resource, as its definition has it for the watched version."""

    name: str
    type: str
    """string, integer, number, boolean or date."""
    json_path: str
    format: str = ""
    priority: int = 0
    """0 is always shown, more only with `-o wide`."""


class ServedType(
    _OfResource, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The names and columns of a watched resource that is not built into Kubernetes."""

    group: str
    resource: str
    singular: str = ""
    short_names: list[str] = []
    categories: list[str] = []
    list_kind: str = ""
    """As in its definition; empty for the kind with `List` behind it."""
    columns: list[PrinterColumn] = []
    """Empty too if it has no CustomResourceDefinition, or the watcher may not list them."""


class Heartbeat(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename="camel",
    tag_field="type",
    tag="heartbeat.v1",
):
    """The liveness and progress of one watcher replica (rule W9)."""

    cluster: str
    replica: str
    boot: str
    """A random id of this process."""
    incarnation: Incarnation
    server_version: str = ""
    platform: str = ""
    """Platform of the API server, like `linux/amd64`."""
    connected: bool
    reason: str = ""
    message: str = ""
    last_answer: str = ""
    """When the API server last sent anything: data of a watch, or a response (rule W11)."""
    resources: list[ResourceStatus]
    watch_set: WatchSet | None = None
    """None while it is unknown or incomplete."""
    types: list[ServedType] | None = None
    """Types of the resources that are not built in; None if they are as in an earlier heartbeat."""
    invalid: list[str] = []
    """Invalid entries of the watch spec, each with the reason; the others are in effect."""
    overridden: list[str] = []
    """Settings of the watcher that the watch spec replaces, each with both values, for people."""
    observed_at: str


Message = Event | EpochEnd | AuditPage | Heartbeat
