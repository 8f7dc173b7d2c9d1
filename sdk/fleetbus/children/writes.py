"""Writes or deletes one child in one cluster: read live, check ownership, write the difference.

Errors of a cluster or an object become an outcome instead of an exception, so that one bad cluster
does not stop the children in the others (promise 4).
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
from fleetbus.kube.applied import ServerAnswers
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.impersonation import ActingClient
from fleetbus.process.redact import without_secret_words
from fleetbus_proto.resources import Resource

_ONLY_CREATE: Final = "1"
"""No object has this resourceVersion: an apply with it can only create, and fails if somebody else
has created the object since it was read."""
_MAX_MESSAGE: Final = 1000
"""Length of a server message in Events and logs."""


class ChildState(StrEnum):
    """The state of one child; the values appear in metrics and Events."""

    IN_SYNC = "InSync"
    GONE = "Gone"
    WAITING = "Waiting"
    """It is being deleted, or was changed concurrently."""
    UNREACHABLE = "Unreachable"
    MISSING = "Missing"
    """The cluster lacks the kind or the namespace."""
    REFUSED = "Refused"
    CONFLICT = "Conflict"
    """An object of that name exists and is not ours: it is not changed."""
    EXTRA = "Extra"
    """A copy of a child that somebody made: it is not changed."""
    PROTECTED = "Protected"
    LEFT_BEHIND = "LeftBehind"


@dataclass(frozen=True, slots=True)
class ChildOutcome:
    """The state of one child, the reason, and the object if it exists."""

    state: ChildState
    message: str = ""
    object: Object | None = None


_GONE: Final = ChildOutcome(ChildState.GONE)
_PROTECTED: Final = ChildOutcome(ChildState.PROTECTED, "it is protected, so it is not deleted")


class ChildWriter:
    """Writes the children of one parent.

    Args:
        policy: the settings of the controller.
        fleet: the clusters.
        mark: the marks of the parent's children.
        answers: the children that their servers take for what was applied.
    """

    def __init__(
        self, policy: Policy, fleet: Fleet, mark: ChildMark, answers: ServerAnswers
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._mark = mark
        self._answers = answers

    async def ensure(self, desired: DesiredChild) -> ChildOutcome:
        """Create or update a child."""
        return await _outcome_of(self._ensure(desired), desired.resource)

    async def remove(self, cluster: str, resource: Resource, found: Object) -> ChildOutcome:
        """Delete an object if a live read shows it is a child of this parent (rules R6, D5)."""
        return await _outcome_of(self._remove(cluster, resource, found), resource)

    async def list_children(self, cluster: str, resource: Resource) -> list[Object]:
        """List the children in a cluster live; none if it lacks the kind.

        Raises:
            FleetbusError: the list failed.
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
            return ChildOutcome(ChildState.UNREACHABLE, "the cluster is not selected for children")
        if cluster.info.suspended:
            return ChildOutcome(ChildState.UNREACHABLE, "the cluster is suspended")
        return await self._ensure_on(cluster, desired)

    async def _ensure_on(self, cluster: Cluster, desired: DesiredChild) -> ChildOutcome:
        live = await self._read(cluster, desired.resource, desired.child.object)
        uid = await _uid_of(cluster)
        if live is None:
            return await self._create(cluster, desired, uid)
        return await self._replace_or_update(cluster, desired, live, uid)

    async def _replace_or_update(
        self, cluster: Cluster, desired: DesiredChild, live: Object, uid: str
    ) -> ChildOutcome:
        """Handle an existing object with the child's name."""
        ownership, why = self._mark.ownership(live, cluster.name, uid)
        if ownership in (Ownership.FOREIGN, Ownership.COPY):
            return ChildOutcome(ChildState.CONFLICT, why)
        if live["metadata"].get("deletionTimestamp"):
            return ChildOutcome(
                ChildState.WAITING, "it is being deleted, and will be created again"
            )
        if ownership is Ownership.OURS:
            return await self._update(cluster, desired, live, uid)
        if is_protected(live):
            return _PROTECTED
        # It belongs to an earlier object with the parent's name: the present parent was read live.
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
        if desired.child.create_only or is_in_sync(live, marked, cluster.name, self._answers):
            return ChildOutcome(ChildState.IN_SYNC, object=live)
        return await self._apply(cluster, desired, marked, {"uid": live["metadata"]["uid"]})

    async def _apply(
        self, cluster: Cluster, desired: DesiredChild, marked: Object, precondition: dict[str, str]
    ) -> ChildOutcome:
        """Apply with force: the fields that the author sets win over manual changes."""
        body = {**marked, "metadata": marked["metadata"] | precondition}
        made = await self._acting(cluster).apply(
            desired.resource, body, field_manager=self._policy.field_manager, force=True
        )
        self._answers.note(cluster.name, marked, made)
        return ChildOutcome(ChildState.IN_SYNC, object=made)

    async def _remove(self, cluster_name: str, resource: Resource, found: Object) -> ChildOutcome:
        cluster = self._fleet.cluster(cluster_name)
        live = await self._read_to_remove(cluster, resource, found)
        if live is None:
            return _GONE
        uid = await _uid_of(cluster)
        ownership, why = self._mark.ownership(live, cluster_name, uid)
        if ownership is Ownership.FOREIGN:
            return _GONE  # our child does not exist
        if ownership is Ownership.COPY:
            return ChildOutcome(ChildState.EXTRA, why)
        if is_protected(live):
            return _PROTECTED
        if live["metadata"].get("deletionTimestamp"):
            return ChildOutcome(ChildState.WAITING, "it is being deleted")
        return await self._delete(cluster, resource, live)

    async def _delete(self, cluster: Cluster, resource: Resource, live: Object) -> ChildOutcome:
        """Delete exactly the object that was read; read again, as finalizers may keep it."""
        metadata = live["metadata"]
        await self._acting(cluster).delete(
            resource,
            metadata.get("namespace") or "",
            metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
        )
        after = await self._read(cluster, resource, live)
        if after is None or after["metadata"]["uid"] != metadata["uid"]:
            return _GONE
        return ChildOutcome(ChildState.WAITING, "it is being deleted")

    async def _read(self, cluster: Cluster, resource: Resource, obj: Object) -> Object | None:
        metadata = obj["metadata"]
        return await cluster.live.get(resource, metadata.get("namespace") or "", metadata["name"])

    async def _read_to_remove(
        self, cluster: Cluster, resource: Resource, obj: Object
    ) -> Object | None:
        try:
            return await self._read(cluster, resource, obj)
        except NotFound as e:
            await _require_unserved(cluster.live, resource, e)
            raise

    def _acting(self, cluster: Cluster) -> Cluster:
        if self._policy.impersonate is None:
            return cluster
        user = self._policy.impersonate(self._mark.place.cluster)
        return Cluster(cluster.info, self._fleet.reader, ActingClient(cluster.live, user))


async def _uid_of(cluster: Cluster) -> str:
    """Return the verified UID of the accepted cluster; empty if it is not checked."""
    identity = cluster.live.identity_check
    return await identity.trusted_uid() if identity is not None else ""


async def _require_unserved(live: KubeClient, resource: Resource, error: NotFound) -> None:
    """Confirm by discovery that a kind is missing: a proxy may also return 404.

    Raises:
        Unreachable: it is served, so the 404 says nothing about its objects.
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
        return ChildOutcome(ChildState.WAITING, "it was changed concurrently")
    except KubeError as e:
        return ChildOutcome(ChildState.UNREACHABLE, describe_error(e, resource))


def describe_error(error: KubeError | IncompleteObject, resource: Resource) -> str:
    """Describe an error; servers quote values, which must not be logged for Secrets (rule D14)."""
    if isinstance(error, KubeError) and resource.key == "core/secrets":
        return f"{error.status} {error.reason}"
    return without_secret_words(str(error), limit=_MAX_MESSAGE)
