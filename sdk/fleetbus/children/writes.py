"""One child onto one cluster, or off it: look live, decide whose it is, write what differs.

Nothing here raises for what one cluster or one object refuses: each call answers an outcome, so
that one bad cluster does not stop the children of the others (promise 4).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fleetbus.children.marks import ChildMark, Ownership, is_in_sync, is_protected, marked_uid
from fleetbus.children.policy import DesiredChild, Policy
from fleetbus.errors import (
    ClusterNotFound,
    Conflict,
    Forbidden,
    IncompleteObject,
    Invalid,
    KubeError,
    NotEngaged,
    NotFound,
    Unauthorized,
    Unreachable,
)
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.impersonation import ActingClient
from fleetbus.process.redact import without_secret_words
from fleetbus_proto.resources import Resource

_ONLY_CREATE: Final = "1"
"""No object can have this resourceVersion: an apply that carries it creates, and fails where
somebody else created the object since we looked."""
_LETTERS: Final = 1000
"""Of what a server says; it is shown in Events and logs."""


class ChildState(StrEnum):
    """What came of one child; the values are what metrics and events show."""

    IN_SYNC = "InSync"
    GONE = "Gone"
    WAITING = "Waiting"
    """It is being deleted, or was changed while we looked."""
    UNREACHABLE = "Unreachable"
    MISSING = "Missing"
    """The cluster has no such kind, or no such namespace."""
    REFUSED = "Refused"
    CONFLICT = "Conflict"
    """An object of that name is there, and it is not ours: it stays as it is."""
    EXTRA = "Extra"
    """Somebody's copy of a child: it stays as it is."""
    PROTECTED = "Protected"
    LEFT_BEHIND = "LeftBehind"


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """What came of one child, why, and the object if it is there."""

    state: ChildState
    message: str = ""
    object: Object | None = None


_GONE: Final = ChildOutcome(ChildState.GONE)
_PROTECTED: Final = ChildOutcome(ChildState.PROTECTED, "it is protected, so it stays")


class ChildWriter:
    """Writes the children of one parent.

    Args:
        policy: how they are kept.
        fleet: where they are.
        mark: whose they are.
    """

    def __init__(self, policy: Policy, fleet: Fleet, mark: ChildMark) -> None:
        self._policy = policy
        self._fleet = fleet
        self._mark = mark

    async def ensure(self, desired: DesiredChild) -> ChildOutcome:
        """Make it, or bring it in line."""
        return await _outcome_of(self._ensure(desired), desired.resource)

    async def remove(self, cluster: str, resource: Resource, found: Object) -> ChildOutcome:
        """Delete an object, if it is live a child of this parent (rules R6, D5)."""
        return await _outcome_of(self._remove(cluster, resource, found), resource)

    async def survivors(self, cluster: str, resource: Resource) -> list[Object]:
        """The children that a cluster has, live; none where it has no such kind.

        Raises:
            FleetbusError: nothing is known.
        """
        live = self._fleet.cluster(cluster).live
        try:
            return await live.list(resource, label_selector=self._mark.selector)
        except NotFound as e:
            await _require_unserved(live, resource, e)
            return []

    async def _ensure(self, desired: DesiredChild) -> ChildOutcome:
        cluster = self._fleet.cluster(desired.child.cluster)
        if not self._policy.is_child_cluster(cluster.name, cluster.info):
            return ChildOutcome(ChildState.UNREACHABLE, "this is none of the clusters for children")
        if cluster.info.suspended:
            return ChildOutcome(ChildState.UNREACHABLE, "the cluster is suspended")
        return await self._ensure_on(cluster, desired)

    async def _ensure_on(self, cluster: Cluster, desired: DesiredChild) -> ChildOutcome:
        live = await self._look(cluster, desired.resource, desired.child.object)
        uid = await _uid_of(cluster)
        if live is None:
            return await self._create(cluster, desired, uid)
        return await self._take_over(cluster, desired, live, uid)

    async def _take_over(
        self, cluster: Cluster, desired: DesiredChild, live: Object, uid: str
    ) -> ChildOutcome:
        """Bring in line what has the child's name."""
        ownership, why = self._mark.ownership(live, cluster.name, uid)
        if ownership in (Ownership.FOREIGN, Ownership.COPY):
            return ChildOutcome(ChildState.CONFLICT, why)
        if live["metadata"].get("deletionTimestamp"):
            return ChildOutcome(ChildState.WAITING, "it is being deleted, and made anew then")
        if ownership is Ownership.OURS:
            return await self._update(cluster, desired, live, uid)
        if is_protected(live):
            return _PROTECTED
        # Its parent is another object than ours, and gone: ours has been read live.
        removed = await self._delete(cluster, desired.resource, live)
        if removed.state is not ChildState.GONE:
            return removed
        return await self._create(cluster, desired, uid)

    async def _create(self, cluster: Cluster, desired: DesiredChild, uid: str) -> ChildOutcome:
        marked = self._mark.put_on(desired.child.object, cluster.name, uid)
        return await self._apply(cluster, desired, marked, {"resourceVersion": _ONLY_CREATE})

    async def _update(
        self, cluster: Cluster, desired: DesiredChild, live: Object, uid: str
    ) -> ChildOutcome:
        known = uid or marked_uid(live, cluster.name)
        marked = self._mark.put_on(desired.child.object, cluster.name, known)
        if desired.child.create_only or is_in_sync(live, marked):
            return ChildOutcome(ChildState.IN_SYNC, object=live)
        return await self._apply(cluster, desired, marked, {"uid": live["metadata"]["uid"]})

    async def _apply(
        self, cluster: Cluster, desired: DesiredChild, marked: Object, precondition: dict[str, str]
    ) -> ChildOutcome:
        """Forced: what a child's author names is theirs, whoever wrote it by hand."""
        marked["metadata"] |= precondition
        made = await self._acting(cluster).apply(
            desired.resource, marked, field_manager=self._policy.field_manager, force=True
        )
        return ChildOutcome(ChildState.IN_SYNC, object=made)

    async def _remove(self, cluster_name: str, resource: Resource, found: Object) -> ChildOutcome:
        cluster = self._fleet.cluster(cluster_name)
        live = await self._look_to_remove(cluster, resource, found)
        if live is None:
            return _GONE
        uid = await _uid_of(cluster)
        ownership, why = self._mark.ownership(live, cluster_name, uid)
        if ownership is Ownership.FOREIGN:
            return _GONE  # no child of ours is there
        if ownership is Ownership.COPY:
            return ChildOutcome(ChildState.EXTRA, why)
        if is_protected(live):
            return _PROTECTED
        if live["metadata"].get("deletionTimestamp"):
            return ChildOutcome(ChildState.WAITING, "it is being deleted")
        return await self._delete(cluster, resource, live)

    async def _delete(self, cluster: Cluster, resource: Resource, live: Object) -> ChildOutcome:
        """Exactly the object that was looked at; and another look, for finalizers may hold it."""
        metadata = live["metadata"]
        await self._acting(cluster).delete(
            resource,
            metadata.get("namespace") or "",
            metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )
        after = await self._look(cluster, resource, live)
        if after is None or after["metadata"]["uid"] != metadata["uid"]:
            return _GONE
        return ChildOutcome(ChildState.WAITING, "it is being deleted")

    async def _look(self, cluster: Cluster, resource: Resource, obj: Object) -> Object | None:
        metadata = obj["metadata"]
        return await cluster.live.get(resource, metadata.get("namespace") or "", metadata["name"])

    async def _look_to_remove(
        self, cluster: Cluster, resource: Resource, obj: Object
    ) -> Object | None:
        try:
            return await self._look(cluster, resource, obj)
        except NotFound as e:
            await _require_unserved(cluster.live, resource, e)
            raise

    def _acting(self, cluster: Cluster) -> Cluster:
        if self._policy.impersonate is None:
            return cluster
        user = self._policy.impersonate(self._mark.place.cluster)
        return Cluster(cluster.info, self._fleet.reader, ActingClient(cluster.live, user))


async def _uid_of(cluster: Cluster) -> str:
    """The UID of the accepted cluster, which answers now; empty where nobody compares it."""
    identity = cluster.live.identity_check
    return await identity.trusted_uid() if identity is not None else ""


async def _require_unserved(live: KubeClient, resource: Resource, error: NotFound) -> None:
    """Make sure that a kind is missing, by discovery: a proxy says 404 as easily.

    Raises:
        Unreachable: it is served, so nothing is known of its objects.
    """
    if await live.discovery.serves(resource):
        raise Unreachable(0, "Unreachable", str(error)) from error


async def _outcome_of(call: Awaitable[ChildOutcome], resource: Resource) -> ChildOutcome:
    try:
        return await call
    except (ClusterNotFound, NotEngaged) as e:
        return ChildOutcome(ChildState.UNREACHABLE, str(e))
    except NotFound as e:
        return ChildOutcome(ChildState.MISSING, str(e))
    except (Invalid, Forbidden, Unauthorized, IncompleteObject) as e:
        return ChildOutcome(ChildState.REFUSED, describe_error(e, resource))
    except Conflict:
        return ChildOutcome(ChildState.WAITING, "it was changed meanwhile")
    except KubeError as e:
        return ChildOutcome(ChildState.UNREACHABLE, describe_error(e, resource))


def describe_error(error: KubeError | IncompleteObject, resource: Resource) -> str:
    """A refusal for people; servers quote values, which no log may show of a Secret (D14)."""
    if isinstance(error, KubeError) and resource.key == "core/secrets":
        return f"{error.status} {error.reason}"
    return without_secret_words(str(error), limit=_LETTERS)
