"""One target cluster of a MultiClusterResource, and how its refusals are reported.

An API server may quote the object that it refuses. Messages go into conditions, Events and logs,
which many more people can read than Secrets, so secret values are removed (rule D14).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

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
from fleetbus.kube.discovery_documents import ApiResource
from fleetbus.owned_objects.claim import Ownership, claim
from fleetbus.owned_objects.executor import OwnedObject
from fleetbus.owned_objects.force import ForcePolicy, conflicts
from fleetbus.ownership import PAUSE_ANNOTATION, Owner
from fleetbus_distributor.health.cluster_health import NO_RULES, StatusRules
from fleetbus_distributor.health.fields import cut, items
from fleetbus_distributor.plan.intent import Key, Owned
from fleetbus_distributor.render.spec import ConflictPolicy, DriftPolicy, Policy
from fleetbus_distributor.render.template import Object, ObjectRef
from fleetbus_distributor.targets.corrections import Corrections
from fleetbus_distributor.targets.drift_report import MAX_CAUSES
from fleetbus_distributor.targets.limits import ClusterLimits
from fleetbus_distributor.targets.missing_right import missing_right
from fleetbus_distributor.targets.outcome import State
from fleetbus_distributor.targets.seen import SeenOnTargets
from fleetbus_distributor.targets.sensitive_names import SENSITIVE_NAME
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
THROTTLED: Final = "Throttled"
"""The reason of a cluster, or an object, whose API server asks us to wait."""

MAX_MESSAGE: Final = 600
UNDECLARED: Final = "field not declared in schema"
"""The API server answers an apply so with 500: the type does not have a field."""
_NO_ACCOUNT: Final = "error looking up service account"
_MANAGER = re.compile(r'conflict with "([^"]{1,100})"')
_MAX_MANAGERS = 3
_MAX_CONFLICT = 500
"""Characters of fields and managers: the remedy after them must not be cut off."""
_HIDDEN: Final = "<redacted>"
_QUOTED_VALUE: Final = re.compile(r"(Invalid|Unsupported|Duplicate|Required) value: .*", re.DOTALL)
_NOT_OF_ITS_TYPE: Final = "failed to create typed patch object"
"""So begins the 500 of an API server to an object whose fields are not those of its type."""
_QUOTED_BY_MERGE: Final = re.compile(r": expected (.+?), got &[^\n]*")
"""Server-side apply quotes a value of another type: `.data.a: expected string, got &value…`."""
_MIN_LENGTH: Final = 3
"""Shorter strings occur in every sentence."""
_MAX_READ: Final = 4096
"""Characters of a message: patterns and values are looked for in every place of it."""
_MARK: Final = "\0"
"""Stands for a value while others are looked for, which must not be found in `<redacted>`."""


@dataclass(slots=True)
class Target:
    """A cluster with everything that the writes to it depend on."""

    name: str
    client: KubeClient
    owner: Owner
    manager: str
    policy: Policy
    corrections: Corrections
    seen: SeenOnTargets
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

    def _note_apply(self, configuration: Object, made: Object) -> None:
        self.seen.note_write(self.name, made)
        self.note_answer(configuration, made)

    def note_answer(self, configuration: Object, live: Object) -> None:
        """Remember that the server has nothing to change about an object as it is now."""
        self.seen.answers.note(self.name, configuration, live, self.manager)


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
    message = f"{what}: {redact_secrets(error.message, obj)}"
    if isinstance(error, NotFound):
        is_namespace = error.details.get("kind") == "namespaces" or '"namespaces"' in error.message
        is_namespace = is_namespace or error.message.startswith("namespaces ")
        reason = "NamespaceMissing" if is_namespace else "NoMatch"
        return Finding(State.WAITING, reason, message, LATER)
    if isinstance(error, Conflict):
        return _conflict(error, message, obj, what)
    if isinstance(error, Forbidden):
        right = missing_right(error.message)
        return _forbidden(error, f"{what}: {right}" if right else message)
    if isinstance(error, TooManyRequests):
        return Finding(State.WAITING, THROTTLED, message, error.retry_after)
    is_of_other_type = UNDECLARED in error.message or error.message.startswith(_NOT_OF_ITS_TYPE)
    is_invalid = isinstance(error, Invalid) or is_of_other_type
    if isinstance(error, ServerError) and not is_invalid:
        return Finding(State.FAILED, "ServerError", message, LATER)
    reason = "Invalid" if is_invalid else (error.reason or "Refused")
    return Finding(State.FAILED, reason, message, RARELY)


def _conflict(error: Conflict, message: str, obj: Object, what: str) -> Finding:
    """A field of another manager is a conflict; a lost race is only repeated."""
    fields = conflicts(error)
    if not fields:
        return Finding(State.WAITING, "Changed", message, SOON)
    named = [f"{one.get('field', '')}: {one.get('message', '')}" for one in fields[:MAX_CAUSES]]
    shown = cut(redact_secrets("; ".join(named), obj), _MAX_CONFLICT)
    return Finding(State.CONFLICT, "FieldConflict", f"{what}: {shown}; {_remedy(fields)}", RARELY)


def _remedy(causes: Sequence[Mapping[str, Any]]) -> str:
    """The two ways out of a conflict, of which the author has to choose one."""
    found = {
        name
        for cause in causes[:MAX_CAUSES]
        for name in _MANAGER.findall(str(cause.get("message"))[:_MAX_READ])
    }
    managers = ", ".join(sorted(found)[:_MAX_MANAGERS]) or "the other manager"
    fields, them = ("the field", "it") if len(causes) == 1 else ("these fields", "them")
    return (
        f"drop {fields} from the template to leave {them} to {managers}, or set"
        " spec.policy.conflict: Overwrite to take over"
    )


def _forbidden(error: Forbidden, message: str) -> Finding:
    causes = items(error.details.get("causes"))
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return Finding(State.WAITING, "NamespaceTerminating", message, LATER)
    if _NO_ACCOUNT in error.message:
        # A namespace gets its ServiceAccount a moment after it was created.
        return Finding(State.WAITING, "ServiceAccountMissing", message, LATER)
    return Finding(State.FAILED, "Forbidden", message, RARELY)


def redact_secrets(message: str, obj: Mapping[str, Any]) -> str:
    """Remove the secret values of an object from a message about it, and truncate it.

    For a Secret whose values are unknown the whole message is hidden: any word may be one.
    """
    if obj.get("kind") == "Secret" and not (obj.get("data") or obj.get("stringData")):
        return _HIDDEN
    cleaned = _QUOTED_BY_MERGE.sub(r": expected \1", message[:_MAX_READ])
    for value in sorted(_secrets_of(obj), key=len, reverse=True):
        cleaned = cleaned.replace(value, _MARK)
    if obj.get("kind") == "Secret":
        cleaned = _QUOTED_VALUE.sub(rf"\1 value: {_MARK}", cleaned)
    if len(message) > _MAX_READ and len(cleaned) <= MAX_MESSAGE:
        return _HIDDEN  # its end may be the beginning of a value
    cleaned = cleaned.replace(_MARK, _HIDDEN)
    return cut(cleaned, MAX_MESSAGE)


def _secrets_of(obj: Mapping[str, Any]) -> set[str]:
    found = set(_secret_data(obj)) if obj.get("kind") == "Secret" else set[str]()
    found |= set(_sensitive_members(dict(obj)))
    pieces = {line for text in found for line in text.splitlines()}
    return {text for text in found | pieces if len(text) >= _MIN_LENGTH}


def _secret_data(obj: Mapping[str, Any]) -> Iterator[str]:
    for part in ("data", "stringData"):
        for text in _strings(obj.get(part)):
            yield text
            try:
                yield base64.b64decode(text, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError):
                continue


def _sensitive_members(value: Any, name: str = "") -> Iterator[str]:
    """Values of members named like `password`, and of environment variables with such names."""
    if isinstance(value, str):
        if SENSITIVE_NAME.search(name):
            yield value
    elif isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        called = str(members.get("name", ""))
        for key, member in members.items():
            yield from _sensitive_members(member, called if key == "value" else key)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _sensitive_members(item, name)


def _strings(value: Any) -> Iterator[str]:
    """Every string below a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in cast("dict[str, Any]", value).values():
            yield from _strings(member)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)
