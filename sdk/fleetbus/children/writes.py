"""Writes or deletes one child in one cluster: read live, check ownership, write the difference.

Errors of a cluster or an object become an outcome instead of an exception, so that one bad cluster
does not stop the children in the others (promise 4).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from fleetbus.children.marks import ChildMark, is_in_sync, marked_uid
from fleetbus.children.policy import DesiredChild, Policy
from fleetbus.errors import (
    ClusterNotFound,
    Conflict,
    IncompleteObject,
    KubeError,
    NotEngaged,
    NotFound,
    Unreachable,
)
from fleetbus.fleet.cluster import Cluster
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.applied import ServerAnswers
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.impersonation import ActingClient
from fleetbus.owned_objects.claim import Claim, Ownership
from fleetbus.owned_objects.decision import Decision, RemovalPolicy, decide_apply, decide_removal
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.owned_objects.force import ForcePolicy
from fleetbus.owned_objects.refusal import Refusal, refusal_of
from fleetbus.owned_objects.secret_values import without_secret_values
from fleetbus.process.redact import without_secret_words
from fleetbus_proto.resources import Resource

_REMOVAL: Final = RemovalPolicy(deletes={Ownership.OURS, Ownership.FORMER, Ownership.COPY})
_FORCE: Final = ForcePolicy(overwrites=True)
"""The fields that the author sets win over manual changes."""
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
_LEAVING: Final = ChildOutcome(ChildState.WAITING, "it is being deleted")
_CHANGED: Final = ChildOutcome(ChildState.WAITING, "it was changed concurrently")
_UNWRITTEN: Final = {
    Decision.FORGET: _GONE,  # our child does not exist
    Decision.WAIT: _LEAVING,
    Decision.PROTECTED: ChildOutcome(ChildState.PROTECTED, "it is protected, so it is not deleted"),
}
_REFUSALS: Final = {
    Refusal.NAMESPACE_MISSING: ChildState.MISSING,
    Refusal.TYPE_MISSING: ChildState.MISSING,
    Refusal.INVALID: ChildState.REFUSED,
    Refusal.FORBIDDEN: ChildState.REFUSED,
    Refusal.NAMESPACE_TERMINATING: ChildState.REFUSED,
    Refusal.ACCOUNT_MISSING: ChildState.REFUSED,
    Refusal.UNAUTHORIZED: ChildState.REFUSED,
}
"""After any other the whole cluster is taken for unreachable."""
_STATES: Final = {
    Decision.NOT_OURS: ChildState.CONFLICT,
    Decision.COPY: ChildState.EXTRA,
}


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
        return await _outcome_of(self._ensure(desired), desired.resource, desired.child.object)

    async def remove(self, cluster: str, resource: Resource, child: Object) -> ChildOutcome:
        """Delete an object if a live read shows it is a child of this parent (rules R6, D5)."""
        return await _outcome_of(self._remove(cluster, resource, child), resource, child)

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
        obj = self._owned_object(cluster, desired.resource, desired.child.object)
        live = await obj.read()
        uid = await _uid_of(cluster)
        if live is not None:
            claim = self._mark.claim(live, cluster.name, uid)
            decision = decide_apply(live, claim, takes={Ownership.OURS})
            if decision is Decision.APPLY:
                return await self._update(cluster.name, obj, desired, live, uid)
            outcome = await _carry_out(decision, claim, obj, live)
            if outcome.state is not ChildState.GONE:
                return outcome
        marked = self._mark.put_on(desired.child.object, cluster.name, uid)
        return ChildOutcome(ChildState.IN_SYNC, object=await obj.create(marked))

    async def _update(
        self, cluster: str, obj: OwnedObject, desired: DesiredChild, live: Object, uid: str
    ) -> ChildOutcome:
        marked = self._mark.put_on(desired.child.object, cluster, uid or marked_uid(live, cluster))
        is_done = desired.child.create_only or is_in_sync(live, marked, cluster, self._answers)
        applied = live if is_done else await obj.apply(marked, live)
        return ChildOutcome(ChildState.IN_SYNC, object=applied)

    async def _remove(self, cluster_name: str, resource: Resource, child: Object) -> ChildOutcome:
        cluster = self._fleet.cluster(cluster_name)
        obj = self._owned_object(cluster, resource, child)
        try:
            live = await obj.read()
        except NotFound as e:
            await _require_unserved(cluster.live, resource, e)
            raise
        if live is None:
            return _GONE
        claim = self._mark.claim(live, cluster_name, await _uid_of(cluster))
        return await _carry_out(decide_removal(live, claim, _REMOVAL), claim, obj, live)

    def _owned_object(self, cluster: Cluster, resource: Resource, obj: Object) -> OwnedObject:
        writes = cluster
        if self._policy.impersonate is not None:
            user = self._policy.impersonate(self._mark.place.cluster)
            writes = Cluster(cluster.info, self._fleet.reader, ActingClient(cluster.live, user))
        metadata = obj["metadata"]
        return OwnedObject(
            reads=cluster.live,
            writes=writes,
            resource=resource,
            namespace=metadata.get("namespace") or "",
            name=metadata["name"],
            manager=self._policy.field_manager,
            force=_FORCE,
            note=partial(self._answers.note, cluster.name),
        )


async def _carry_out(
    decision: Decision, claim: Claim, obj: OwnedObject, live: Object
) -> ChildOutcome:
    """Delete the object if that was decided; the outcome of everything but an apply."""
    if state := _STATES.get(decision):
        return ChildOutcome(state, claim.message)
    if outcome := _UNWRITTEN.get(decision):
        return outcome
    return _GONE if await obj.remove(live) else _LEAVING


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


async def _outcome_of(
    call: Awaitable[ChildOutcome], resource: Resource, obj: Object
) -> ChildOutcome:
    try:
        return await call
    except (ClusterNotFound, NotEngaged) as e:
        return ChildOutcome(ChildState.UNREACHABLE, str(e))
    except IncompleteObject as e:
        return ChildOutcome(ChildState.REFUSED, _redact(e, obj))
    except Conflict:
        return _CHANGED
    except KubeError as e:
        state = _REFUSALS.get(refusal_of(e), ChildState.UNREACHABLE)
        is_hidden = resource.key == "core/secrets" and state is not ChildState.MISSING
        return ChildOutcome(state, f"{e.status} {e.reason}" if is_hidden else _redact(e, obj))


def _redact(error: Exception, obj: Object) -> str:
    """The message of an error; servers quote values, which must not be logged (rule D14)."""
    message = without_secret_values(str(error), obj, limit=_MAX_MESSAGE)
    return without_secret_words(message, limit=_MAX_MESSAGE)
