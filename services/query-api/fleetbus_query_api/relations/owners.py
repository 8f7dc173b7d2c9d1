"""Answers who owns an object, and what an object owns, also in other clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec

from fleetbus.errors import MalformedOwner
from fleetbus.ownership import owner_of
from fleetbus.snapshot import Entry, Freshness, SnapshotReader
from fleetbus_proto.keys import split_object_key
from fleetbus_proto.resources import CORE
from fleetbus_query_api.access.authorise import Access, Right, authorise_where_decided
from fleetbus_query_api.catalog.catalog import Catalog, KnownFleet, KnownResource
from fleetbus_query_api.catalog.readable import UNDECIDED, Selection
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
    members_of,
)
from fleetbus_query_api.relations.readable_types import ReadableTypes, TypeReader
from fleetbus_query_api.relations.where import render_found
from fleetbus_query_api.requests.parameters import ChildrenParameters
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import body_of, render_freshness

_MAX_DEPTH: Final = 10
_MAX_OWNERS: Final = 100
_MAX_READ: Final = 10_000
"""Children of one object that are read from a shard."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """Which object a request is about; the namespace is empty for objects without one."""

    cluster: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class _Reference:
    """An owner, as the object names it."""

    cluster: str
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    controller: bool
    depth: int

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0] or CORE


class Relations:
    """Answers requests for owners and children, as JSON.

    Args:
        reader: the snapshot.
        catalog: resolves kinds.
        access: decides what a user may read.
        listing: finds the object.
        types: finds what a user may list.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        catalog: Catalog,
        access: Access,
        listing: ObjectListing,
        types: TypeReader,
    ) -> None:
        self._reader = reader
        self._catalog = catalog
        self._access = access
        self._listing = listing
        self._types = types

    # --- owners -----------------------------------------------------------------------------------

    async def owners(self, user: User, path: ObjectPath) -> bytes:
        """Follow the owners of an object upwards, the nearest ones first.

        An owner that the user may not get is answered like one that is gone (rule A2). A cluster
        that does not decide whether they may is incomplete.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such object, or the user may not get it.
        """
        entry, resource, freshness = await self._find(user, path)
        fleet = await self._catalog.fleet()
        items: list[dict[str, Any]] = []
        queue = list(references_of(entry, resource, 1))
        visited: set[tuple[str, str]] = set()
        states = dict(freshness)
        while queue and len(items) < _MAX_OWNERS:
            reference = queue.pop(0)
            if (reference.cluster, reference.uid) in visited:
                continue
            visited.add((reference.cluster, reference.uid))
            of, owner, is_undecided = await self._read(user, fleet, reference)
            if is_undecided:
                states[reference.cluster] = UNDECIDED
            items.append(_render_owner(reference, of if owner else None))
            if owner is not None and of is not None and reference.depth < _MAX_DEPTH:
                queue += references_of(owner, of, reference.depth + 1)
        return msgspec.json.encode(
            {"items": items, "hasMore": bool(queue), **render_freshness(states)}
        )

    async def _find(
        self, user: User, path: ObjectPath
    ) -> tuple[Entry, KnownResource, Mapping[str, Freshness]]:
        selection = Selection(
            verb="get",
            resource=path.resource,
            clusters=[path.cluster],
            namespace=path.namespace,
            name=path.name,
        )
        readable = await self._listing.find(user, selection)
        freshness = await self._listing.freshness(readable, path.namespace)
        entry = None
        if members_of(readable):
            entry = await self._reader.get(
                path.cluster, readable.resource.key, path.namespace, path.name
            )
        if entry is None:
            raise NotFoundProblem("the snapshot has no such object", **render_freshness(freshness))
        return entry, readable.resource, freshness

    async def _read(
        self, user: User, fleet: KnownFleet, reference: _Reference
    ) -> tuple[KnownResource | None, Entry | None, bool]:
        """The owner that a reference means, if it exists and the user may get it.

        The last part of the answer says whether its cluster does not decide.
        """
        resource, right = right_to_get(
            fleet, reference.group, reference.kind, reference.namespace, reference.name
        )
        at = [reference.cluster]
        allowed = await authorise_where_decided(self._access, user, right, at)
        if resource is None or not allowed or reference.cluster not in fleet.clusters:
            return resource, None, bool(allowed.undecided)
        entry = await self._reader.get(
            reference.cluster, resource.key, right.namespace, reference.name
        )
        resource = (
            fleet.within(resource, allowed) or resource
        )  # not as other clusters have it (rule A2)
        is_it = entry is not None and entry.uid == reference.uid
        return resource, entry if is_it else None, False

    # --- children ---------------------------------------------------------------------------------

    async def children(self, user: User, path: ObjectPath, parameters: ChildrenParameters) -> bytes:
        """List what an object owns, by ownerReference or by the mark of fleetbus.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such object, or the user may not get it.
            TooManyRequestsProblem: it takes too many reviews.
        """
        entry, _, _ = await self._find(user, path)
        anywhere = await self._types.find(user, "")
        inside = await self._types.find(user, path.namespace) if path.namespace else anywhere
        freshness = await self._types.freshness(user, inside, named=())
        items: list[dict[str, Any]] = []
        visited, level, has_more = {entry.uid}, [entry.uid], False
        for depth in range(1, parameters.depth + 1):
            following: list[str] = []
            for uid in level:
                for item in await self._owned(uid, path.namespace, anywhere, inside):
                    if item["uid"] in visited:
                        continue
                    if len(items) >= parameters.limit:
                        has_more = True
                        break
                    visited.add(item["uid"])
                    following.append(item["uid"])
                    items.append({**item, "ownerUid": uid, "depth": depth})
            level = following
        return msgspec.json.encode(
            {"items": items, "hasMore": has_more, **render_freshness(freshness)}
        )

    async def _owned(
        self, uid: str, namespace: str, anywhere: ReadableTypes, inside: ReadableTypes
    ) -> list[dict[str, Any]]:
        """The children of one object that the user may list: first filtered, then read (A2)."""
        members = await self._reader.lookups.owned(uid, most=_MAX_READ)
        readable = [
            member
            for member in members
            if member[0] in anywhere.clusters.get(member[1], ())
            or (
                member[0] in inside.clusters.get(member[1], ())
                and split_object_key(member[2].decode())[0] == namespace
            )
        ]
        children = await self._reader.lookups.describe(readable)
        return [render_found(child, inside) for child in children]


def references_of(entry: Entry, resource: KnownResource, depth: int) -> Iterator[_Reference]:
    """The owners that an object names: in its own cluster, and by the mark in any."""
    try:
        tree = _map_of(decode(body_of(entry)))
    except UnreadableBody:
        return
    metadata = _map_of(tree.get("metadata"))
    listed: Any = metadata.get("ownerReferences")
    for raw in cast("Sequence[Any]", listed if isinstance(listed, list) else ()):
        if reference := _map_of(raw):
            yield _Reference(
                cluster=entry.cluster,
                api_version=str(reference.get("apiVersion", "")),
                kind=str(reference.get("kind", "")),
                namespace=entry.namespace if resource.namespaced else "",
                name=str(reference.get("name", "")),
                uid=str(reference.get("uid", "")),
                controller=reference.get("controller") is True,
                depth=depth,
            )
    try:
        mark = owner_of(tree) if metadata else None
    except MalformedOwner:
        return
    if mark is not None:
        yield _Reference(
            cluster=mark.cluster_name,
            api_version=mark.api_version,
            kind=mark.kind,
            namespace=mark.namespace,
            name=mark.name,
            uid=mark.uid,
            controller=mark.controller,
            depth=depth,
        )


def _map_of(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _render_owner(reference: _Reference, resource: KnownResource | None) -> dict[str, Any]:
    namespace = reference.namespace
    if resource is not None and not resource.namespaced:
        reference = replace(reference, namespace="")
        namespace = ""
    return {
        "cluster": reference.cluster,
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "namespace": namespace,
        "name": reference.name,
        "uid": reference.uid,
        "controller": reference.controller,
        "depth": reference.depth,
        "found": resource is not None,
        "resource": None if resource is None else describe_resource(resource),
    }


def right_to_get(
    fleet: KnownFleet, group: str, kind: str, namespace: str, name: str
) -> tuple[KnownResource | None, Right]:
    """The resource of a kind, if the fleet has it, and the right to get an object of it.

    Of an unknown kind the right is a likely one: a review must be made all the same, because the
    time of an answer must not tell what there is (rule A2).
    """
    group = group or CORE
    resource = fleet.resources.of_kind(group, kind)
    if resource is None:
        return None, Right("get", group, f"{kind.lower()}s", namespace, name)
    return resource, Right(
        "get", group, resource.plural, namespace if resource.namespaced else "", name
    )
