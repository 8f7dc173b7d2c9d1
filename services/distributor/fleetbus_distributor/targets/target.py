"""One target cluster of a MultiClusterResource, and how its refusals are reported.

No message has a secret value of the object that an API server may quote (rule D14).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from fleetbus.errors import Conflict, Forbidden, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.owned_objects.claim import Ownership, claim
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.owned_objects.force import ForcePolicy, conflicts
from fleetbus.owned_objects.refusal import Refusal, refusal_of
from fleetbus.owned_objects.secret_values import without_secret_values
from fleetbus.ownership import PAUSE_ANNOTATION, Owner
from fleetbus.process.redact import cut
from fleetbus_distributor.health.cluster_health import NO_RULES, StatusRules
from fleetbus_distributor.plan.intent import Key, Owned
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy, Policy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.corrections import Corrections
from fleetbus_distributor.targets.drift_report import MAX_CAUSES
from fleetbus_distributor.targets.limits import ClusterLimits
from fleetbus_distributor.targets.memory import TargetMemory
from fleetbus_distributor.targets.outcome import State
from fleetbus_proto.resources import Resource

DELETES: Final = frozenset({Ownership.OURS, Ownership.COPY})
"""Whose objects a removal concerns; a copy is among them, to be left alone and reported."""
AT_ONCE: Final = timedelta(milliseconds=100)
SOON: Final = timedelta(seconds=1)
LATER: Final = timedelta(seconds=5)
"""Something else must happen first; checking again costs reads only."""
RARELY: Final = timedelta(minutes=1)
"""A retry does not help; the next change of the MultiClusterResource triggers one at once."""

PAUSED: Final = "Paused"
"""The reason where a person has paused an object (rule D26)."""

MAX_MESSAGE: Final = 600
_MANAGER = re.compile(r'conflict with "([^"]{1,100})"')
_MAX_MANAGERS = 3
_MAX_CONFLICT = 500
"""Characters of fields and managers: the remedy after them must not be cut off."""
_MAX_READ: Final = 4096
"""Characters of a cause: a pattern is looked for in every place of it."""
_FORBIDDEN: Final = re.compile(
    r'[a-z0-9.]+( "[^"]*")? is forbidden: User "(?P<user>[^"]+)" cannot (?P<verb>[a-z]+) '
    r'resource "(?P<resource>[a-z0-9./-]+)" in API group "(?P<group>[a-z0-9.-]*)"'
    r'( in the namespace "(?P<namespace>[a-z0-9-]+)")?'
)
"""From its start: the words of an admission webhook come later, and may quote the object."""
_ACCOUNT: Final = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")
_QUOTED: Final = re.compile(r'"(?P<name>[^"]*)"')
_OF_CLUSTER: Final = frozenset({Refusal.UNREACHABLE, Refusal.NOT_ACCEPTED, Refusal.UNAUTHORIZED})
"""Refusals that concern the whole cluster."""
FINDINGS: Final = {
    Refusal.NAMESPACE_MISSING: (State.WAITING, LATER),
    Refusal.TYPE_MISSING: (State.WAITING, LATER),
    Refusal.FIELD_CONFLICT: (State.CONFLICT, RARELY),
    Refusal.CHANGED: (State.WAITING, SOON),
    Refusal.NAMESPACE_TERMINATING: (State.WAITING, LATER),
    Refusal.ACCOUNT_MISSING: (State.WAITING, LATER),
    Refusal.THROTTLED: (State.WAITING, SOON),
    Refusal.SERVER_ERROR: (State.FAILED, LATER),
}
"""State and retry after each of the others; a refusal that is not here needs an edit."""


@dataclass(slots=True)
class Target:
    """A cluster with everything that the writes to it depend on."""

    name: str
    client: KubeClient
    owner: Owner
    manager: str
    policy: Policy
    corrections: Corrections
    memory: TargetMemory
    limits: ClusterLimits
    """Limits of the objects that are worked on, over all rounds of the process."""
    known: Mapping[Key, Owned] = field(default_factory=dict[Key, Owned])
    aliases: Sequence[str] = ()
    """Other names of the same cluster: what is pruned here may be wanted there (rule D5)."""
    only_compare: bool = False
    """This revision was applied before, and drift is only reported."""
    is_same: bool = False
    """This revision was applied before, so what differs was changed by others."""
    service_account: str = ""
    """NAMESPACE/NAME of the ServiceAccount that `client` impersonates; "" for none (rule D16)."""
    status_rules: StatusRules = NO_RULES
    """Rules for the health of the objects, and for the fields to collect from them."""
    may_create: bool = True
    """Whether missing objects are created; only by the round for all clusters (rule D2)."""

    def owned_object(self, api: ApiResource, ref: ObjectRef) -> OwnedObject:
        """The place of an object here, whose applies are remembered."""
        return OwnedObject(
            reads=self.client,
            writes=self.client,
            resource=api.resource,
            namespace=ref.namespace if api.namespaced else "",
            name=ref.name,
            manager=self.manager,
            force=ForcePolicy(
                overwrites=self.policy.conflict is ConflictPolicy.OVERWRITE,
                adopts=self.policy.conflict is ConflictPolicy.ADOPT,
                corrects=self.policy.drift is DriftPolicy.CORRECT,
            ),
            note=self._note_apply,
        )

    def recorded_uid(self, ref: ObjectRef) -> str:
        """The UID of an object on record; "" if it was never confirmed."""
        recorded = self.known.get(ref.key)
        return recorded.uid if recorded else ""

    def uid_to_record(self, live: Object, ref: ObjectRef) -> str:
        """The UID to record: only our own mark confirms one, never that of a stranger."""
        claimed = claim(live, self.owner)
        is_ours = claimed.ownership in DELETES and claimed.is_confirmed
        return str(live["metadata"]["uid"]) if is_ours else self.recorded_uid(ref)

    def _note_apply(self, configuration: Object, applied: Object) -> None:
        self.memory.note_write(self.name, applied)
        self.note_answer(configuration, applied)

    def note_answer(self, configuration: Object, live: Object) -> None:
        """Remember that the server has nothing to change about an object as it is now."""
        self.memory.answers.note(self.name, configuration, live, self.manager)


@dataclass(frozen=True, slots=True)
class Finding:
    """The meaning of an error for the status of the cluster."""

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


def paused(ref: ObjectRef) -> Finding:
    """The finding about an object that a person has paused (rule D26)."""
    message = f"{ref} has the annotation {PAUSE_ANNOTATION}, so it is left as it is"
    return Finding(State.WAITING, PAUSED, message, RARELY)


async def patch_exactly(
    target: Target, resource: Resource, live: Object, metadata: Mapping[str, Any]
) -> Object:
    """Patch the metadata of an object if it still is as it was read.

    Raises:
        Conflict: it has changed since, or another object has its name.
        KubeError: the cluster refuses.
    """
    before = live["metadata"]
    exactly = {name: before[name] for name in ("uid", "resourceVersion")}
    return await target.client.patch(
        resource,
        before.get("namespace") or "",
        before["name"],
        {"metadata": {**exactly, **metadata}},
        field_manager=target.manager,
    )


def to_finding(error: KubeError, obj: Object, subject: str) -> Finding:
    """Translate a refusal (rules D6, D9, D10, D14).

    Args:
        error: the refusal.
        obj: the object as far as it is known.
        subject: how the message names it.

    Raises:
        ClusterUnreachable: it concerns the whole cluster.
    """
    refusal = refusal_of(error)
    if refusal in _OF_CLUSTER:
        raise ClusterUnreachable(refusal, error.message) from error
    state, retry = FINDINGS.get(refusal, (State.FAILED, RARELY))
    message, reason = redact_secrets(error.message, obj), str(refusal)
    if isinstance(error, Conflict) and refusal is Refusal.FIELD_CONFLICT:
        message = _describe_conflict(error, obj)
    elif isinstance(error, Forbidden):
        message = _missing_right(error.message) or message
    elif refusal is Refusal.THROTTLED:
        retry = error.retry_after
    elif refusal is Refusal.OTHER:
        reason = error.reason or reason
    return Finding(state, reason, f"{subject}: {message}", retry)


def redact_secrets(message: str, obj: Mapping[str, Any]) -> str:
    """A message about an object, short and without its secret values."""
    return without_secret_values(message, obj, limit=MAX_MESSAGE)


def _describe_conflict(error: Conflict, obj: Object) -> str:
    fields = conflicts(error)
    named = [
        f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in fields[:MAX_CAUSES]
    ]
    return f"{cut(redact_secrets('; '.join(named), obj), _MAX_CONFLICT)}; {_remedy(fields)}"


def _remedy(causes: Sequence[Mapping[str, Any]]) -> str:
    """The two ways out of a conflict, of which the author has to choose one."""
    managers = {
        name
        for cause in causes[:MAX_CAUSES]
        for name in _MANAGER.findall(str(cause.get("message"))[:_MAX_READ])
    }
    holder = ", ".join(sorted(managers)[:_MAX_MANAGERS]) or "the other manager"
    fields, them = ("the field", "it") if len(causes) == 1 else ("these fields", "them")
    return (
        f"drop {fields} from the template to leave {them} to {holder}, or set"
        " spec.policy.conflict: Overwrite to take over"
    )


def _missing_right(message: str) -> str:
    """Describe a refusal of the authorizer: who may not do what; "" for any other message."""
    denial = _FORBIDDEN.match(message)
    if denial is None:
        return ""
    where = f" in namespace {denial['namespace']}" if denial["namespace"] else ""
    if denial["verb"] == "impersonate" and denial["resource"] == "serviceaccounts":
        quoted = _QUOTED.search(message)
        account = f"{denial['namespace']}/{quoted['name'] if quoted else ''}"
        return (
            f"{_who(denial['user'])} may not impersonate ServiceAccount {account} on this cluster; "
            f"to allow it, repeat its `fleetbus join --bootstrap` with --impersonate {account} "
            "(for the hub itself: distributor.impersonate of the chart)"
        )
    group = f".{denial['group']}" if denial["group"] else ""
    plural, slash, subresource = denial["resource"].partition("/")
    right = f"{denial['verb']} {plural}{group}{slash}{subresource}"
    return f"{_who(denial['user'])} may not {right}{where} on this cluster"


def _who(user: str) -> str:
    account = _ACCOUNT.fullmatch(user)
    return f"ServiceAccount {account['namespace']}/{account['name']}" if account else f"user {user}"
