"""Tells why a server refused a request about an object (rules D6, D9).

The reason decides whether the object, its cluster, or nothing but the moment is wrong; `Children`
and the distributor decide what follows from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

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
from fleetbus.kube.json_fields import many
from fleetbus.owned_objects.force import conflicts

UNDECLARED: Final = "field not declared in schema"
"""The API server answers an apply so with 500: the type does not have a field."""
_NOT_OF_ITS_TYPE: Final = "failed to create typed patch object"
"""So begins the 500 of an API server to an object whose fields are not those of its type."""
_NOT_CONVERTED: Final = "failed to convert new object"
_INCONVERTIBLE: Final = "unable to convert unstructured object to "
"""So it answers, after `_NOT_CONVERTED`, to values that only Go refuses: quantities, times, bytes,
fractions. The failure of a conversion webhook has other words, and is not for ever."""
_NO_ACCOUNT: Final = "error looking up service account"


class Refusal(StrEnum):
    """The reason of a refusal; the values are reasons in the status of a MultiClusterResource."""

    UNREACHABLE = "Unreachable"
    NOT_ACCEPTED = "NotAccepted"
    """Another cluster than the accepted one answers (rule W13)."""
    UNAUTHORIZED = "Unauthorized"
    NAMESPACE_MISSING = "NamespaceMissing"
    TYPE_MISSING = "NoMatch"
    FIELD_CONFLICT = "FieldConflict"
    """Other managers hold fields."""
    CHANGED = "Changed"
    """A lost race, which is only repeated."""
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    ACCOUNT_MISSING = "ServiceAccountMissing"
    """A namespace gets its ServiceAccount a moment after it was created."""
    FORBIDDEN = "Forbidden"
    THROTTLED = "Throttled"
    """The server asks us to wait."""
    INVALID = "Invalid"
    SERVER_ERROR = "ServerError"
    OTHER = "Refused"


_BY_TYPE: Final = (
    (NotAccepted, Refusal.NOT_ACCEPTED),
    (Unreachable, Refusal.UNREACHABLE),
    (Unauthorized, Refusal.UNAUTHORIZED),
    (TooManyRequests, Refusal.THROTTLED),
    (Invalid, Refusal.INVALID),
)


def refusal_of(error: KubeError) -> Refusal:
    """Tell the reason of a refusal from its status, details and message."""
    if isinstance(error, NotFound):
        return _missing(error)
    if isinstance(error, Conflict):
        return Refusal.FIELD_CONFLICT if conflicts(error) else Refusal.CHANGED
    if isinstance(error, Forbidden):
        return _forbidden(error)
    for kind, refusal in _BY_TYPE:
        if isinstance(error, kind):
            return refusal
    is_untyped = UNDECLARED in error.message or error.message.startswith(_NOT_OF_ITS_TYPE)
    if is_untyped or is_inconvertible(error):
        return Refusal.INVALID
    return Refusal.SERVER_ERROR if isinstance(error, ServerError) else Refusal.OTHER


def is_inconvertible(error: KubeError) -> bool:
    """Whether a value is none of its type, by words of the server that name no field."""
    message = error.message
    return message.startswith(_NOT_CONVERTED) and _INCONVERTIBLE in message


def _missing(error: NotFound) -> Refusal:
    message = error.message
    is_namespace = (
        error.details.get("kind") == "namespaces"
        or '"namespaces"' in message
        or message.startswith("namespaces ")
    )
    return Refusal.NAMESPACE_MISSING if is_namespace else Refusal.TYPE_MISSING


def _forbidden(error: Forbidden) -> Refusal:
    causes = many(error.details, "causes")
    if any(cause.get("reason") == Refusal.NAMESPACE_TERMINATING for cause in causes):
        return Refusal.NAMESPACE_TERMINATING
    return Refusal.ACCOUNT_MISSING if _NO_ACCOUNT in error.message else Refusal.FORBIDDEN
