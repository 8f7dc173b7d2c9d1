"""One target cluster of a MultiClusterResource, and how its refusals are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from fleetbus.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotAccepted,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from fleetbus.kube.client import KubeClient
from fleetbus.kube.discovery import ApiResource
from fleetbus.ownership import Owner
from fleetbus_distributor.plan.intent import Key, Owned
from fleetbus_distributor.render.spec import Policy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.drift import Corrections
from fleetbus_distributor.targets.outcome import State
from fleetbus_distributor.targets.redact import redact

SOON: Final = timedelta(seconds=1)
LATER: Final = timedelta(seconds=5)
"""Something else must happen first; checking again costs reads only."""
RARELY: Final = timedelta(minutes=1)
"""A retry does not help; the next change of the MultiClusterResource triggers one at once."""


@dataclass(slots=True)
class Target:
    """A cluster with everything that the writes to it depend on."""

    name: str
    client: KubeClient
    owner: Owner
    manager: str
    policy: Policy
    corrections: Corrections
    known: Mapping[Key, Owned] = field(default_factory=dict[Key, Owned])
    aliases: Sequence[str] = ()
    """Other names of the same cluster: what is pruned here may be wanted there (rule D5)."""
    only_compare: bool = False
    """This revision was applied before, and drift is only reported."""
    may_create: bool = True
    """Whether missing objects are created; only by the round for all clusters (rule D2)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an error means for the status of the cluster."""

    state: State
    reason: str
    message: str
    retry: timedelta


class ClusterUnreachable(Exception):
    """The cluster does not answer, or refuses us: nothing more is tried this round."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def namespaced_name(api: ApiResource, ref: ObjectRef) -> tuple[str, str]:
    """Namespace and name as the API takes them; cluster-scoped kinds have no namespace."""
    return (ref.namespace if api.namespaced else "", ref.name)


def to_finding(error: KubeError, obj: Object, what: str) -> Finding:
    """Translate a refusal (rules D6, D9, D10, D14).

    Raises:
        ClusterUnreachable: it concerns the whole cluster.
    """
    if isinstance(error, Unreachable):
        # Also if another cluster answers than the accepted one (rule W13).
        reason = "NotAccepted" if isinstance(error, NotAccepted) else "Unreachable"
        raise ClusterUnreachable(reason, error.message) from error
    if isinstance(error, Unauthorized):
        raise ClusterUnreachable("Unauthorized", error.message) from error
    message = f"{what}: {redact(error.message, obj)}"
    if isinstance(error, NotFound):
        is_namespace = error.details.get("kind") == "namespaces" or '"namespaces"' in error.message
        is_namespace = is_namespace or error.message.startswith("namespaces ")
        reason = "NamespaceMissing" if is_namespace else "NoMatch"
        return Finding(State.WAITING, reason, message, LATER)
    if isinstance(error, Conflict):
        return _conflict(error, message, obj, what)
    if isinstance(error, Forbidden):
        return _forbidden(error, message)
    if isinstance(error, TooManyRequests):
        return Finding(State.WAITING, "Throttled", message, error.retry_after)
    if isinstance(error, ServerError):
        return Finding(State.FAILED, "ServerError", message, LATER)
    reason = "Invalid" if isinstance(error, Invalid) else (error.reason or "Refused")
    return Finding(State.FAILED, reason, message, RARELY)


def _conflict(error: Conflict, message: str, obj: Object, what: str) -> Finding:
    """A field of another manager is a conflict; a lost race is only repeated."""
    causes: list[dict[str, Any]] = error.details.get("causes") or []
    fields = [cause for cause in causes if cause.get("reason") == "FieldManagerConflict"]
    if not fields:
        return Finding(State.WAITING, "Changed", message, SOON)
    named = [f"{one.get('field', '')}: {one.get('message', '')}" for one in fields]
    return Finding(
        State.CONFLICT, "FieldConflict", f"{what}: {redact('; '.join(named), obj)}", RARELY
    )


def _forbidden(error: Forbidden, message: str) -> Finding:
    causes: list[dict[str, Any]] = error.details.get("causes") or []
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Finding(State.WAITING, "NamespaceTerminating", message, LATER)
    return Finding(State.FAILED, "Forbidden", message, RARELY)
