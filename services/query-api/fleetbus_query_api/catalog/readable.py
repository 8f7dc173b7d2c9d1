"""Resolves the resource of a request, and the clusters in which the user may read it (rule A2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleetbus.snapshot import Freshness, ResourceState
from fleetbus_proto.resources import CORE, parse_resource_name
from fleetbus_query_api.access.authorise import Access, Right
from fleetbus_query_api.catalog.catalog import Catalog, KnownFleet, KnownResource
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem

UNREADABLE: Final = Freshness(
    ResourceState.UNKNOWN,
    None,
    is_complete=False,
    reason="not in the fleet, or you may not read it there",
)
"""Reason for a cluster that the user has named, or may know of."""
UNDECIDED: Final = Freshness(
    ResourceState.UNKNOWN,
    None,
    is_complete=False,
    reason="its API server does not answer an access review: what you may read there is unknown",
)
"""Reason for a cluster that the user may get, and that does not decide."""


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable part of a resource.

    Attributes:
        clusters: by name; those that were named need not be in the fleet.
        left_out: further ones that the answer names, because the user did, or may know of them.
        undecided: those of them that did not decide.
    """

    fleet: KnownFleet
    resource: KnownResource
    clusters: Sequence[str]
    left_out: Sequence[str]
    undecided: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The objects that a user asks for; an empty field selects all.

    Attributes:
        resource: as the user wrote it; a resource key, if `is_key`.
        clusters: their names.
    """

    verb: str
    resource: str
    clusters: Collection[str] = field(default=())
    namespace: str = ""
    name: str = ""
    is_key: bool = False

    def right_to(self, group: str, plural: str) -> Right:
        """The right that it takes."""
        return Right(self.verb, group, plural, self.namespace, self.name)


class ReadableResources:
    """Finds what a user may read.

    Args:
        catalog: resolves resource names.
        access: decides.
    """

    def __init__(self, *, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    async def find(self, user: User, selection: Selection) -> Readable:
        """Find the resource, and the clusters in which the user may read it.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no cluster has the resource, or the user may read it in none.
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        fleet = await self._catalog.fleet()
        candidates = sorted(set(selection.clusters)) or sorted(fleet.clusters)
        try:
            resource = (
                fleet.get(selection.resource)
                if selection.is_key
                else fleet.find(selection.resource)
            )
        except NotFoundProblem:
            if self._access.is_open:
                raise
            await self._review_unknown(user, selection, fleet, candidates)
            raise no_resource(selection) from None
        right = selection.right_to(resource.group, resource.plural)
        allowed = await self._access.authorise(user, right, candidates)
        if not self._access.is_open:
            resource = await self._as_seen(user, selection, fleet, resource, allowed)
        left_out = [name for name in candidates if name not in allowed]
        if left_out and not selection.clusters:
            visible = set(await self._access.authorise(user, Right("list"), left_out))
            visible |= allowed.undecided
            left_out = [name for name in left_out if name in visible]
        clusters = [name for name in candidates if name in allowed]
        return Readable(fleet, resource, clusters, left_out, allowed.undecided)

    async def _as_seen(
        self,
        user: User,
        selection: Selection,
        fleet: KnownFleet,
        resource: KnownResource,
        allowed: Collection[str],
    ) -> KnownResource:
        """The resource as those clusters have it in which the user may read it (rule A2).

        Raises:
            NotFoundProblem: they may read it in none, or it has not that name there.
        """
        if not allowed:
            raise no_resource(selection)
        view = fleet.within(resource, allowed)
        if view is None:  # other clusters have it, of which the user may not know
            right = selection.right_to(resource.group, resource.plural)
            view = fleet.within(
                resource, await self._access.authorise(user, right, sorted(fleet.clusters))
            )
        if view is None or not (selection.is_key or view.is_named(selection.resource)):
            raise no_resource(selection)
        return view

    async def _review_unknown(
        self, user: User, selection: Selection, fleet: KnownFleet, candidates: Sequence[str]
    ) -> None:
        """Ask what would be asked if there were such a resource: the time must not tell (A2)."""
        if selection.is_key:
            group, _, plural = selection.resource.rpartition("/")
        else:
            readings = parse_resource_name(selection.resource.lower())
            plain = (name for name in readings if name.version is None)
            group, _, plural = next(plain, readings[-1])
        right = selection.right_to(group or CORE, plural)
        if await self._access.authorise(user, right, candidates):
            await self._access.authorise(user, right, sorted(fleet.clusters))


def no_resource(selection: Selection) -> NotFoundProblem:
    """One answer for an unknown resource and for one that the user may not read."""
    where = "" if selection.namespace else "; if you have rights in one namespace only, name it"
    return NotFoundProblem(
        f"{selection.resource[:200]}: no such resource is in the fleet, or you may not"
        f" {selection.verb} it there{where}"
    )
