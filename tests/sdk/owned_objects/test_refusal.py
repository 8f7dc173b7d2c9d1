"""A table of why a server refused a request about an object (rules D6, D9)."""

from __future__ import annotations

from typing import Any

from fleetbus.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotAccepted,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from fleetbus.owned_objects.refusal import UNDECLARED, Refusal, refusal_of
from support.rows import each_row

FIELD: dict[str, Any] = {"causes": [{"reason": "FieldManagerConflict", "field": ".spec.x"}]}
LEAVING: dict[str, Any] = {"causes": [{"reason": "NamespaceTerminating"}]}
UNTYPED = "failed to create typed patch object (default/x): .spec.y: expected string"

UNCONVERTED = "failed to convert new object (default/x; v1, Kind=X) to proper version: {}"
UNREADABLE = "unable to convert unstructured object to /v1, Kind=X: illegal base64 data"


@each_row(
    ("error", "refusal"),
    [
        (Unreachable(0, "Unreachable", "timeout"), Refusal.UNREACHABLE),
        (NotAccepted(0, "NotAccepted", "another cluster answers"), Refusal.NOT_ACCEPTED),
        (Unauthorized(401, "Unauthorized", "no"), Refusal.UNAUTHORIZED),
        (NotFound(404, "NotFound", 'namespaces "x" not found'), Refusal.NAMESPACE_MISSING),
        (NotFound(404, "NotFound", "", {"kind": "namespaces"}), Refusal.NAMESPACE_MISSING),
        (NotFound(404, "NotFound", "the server could not find it"), Refusal.TYPE_MISSING),
        (Conflict(409, "Conflict", "x", FIELD), Refusal.FIELD_CONFLICT),
        (Conflict(409, "Conflict", "modified"), Refusal.CHANGED),
        (AlreadyExists(409, "AlreadyExists", "exists"), Refusal.CHANGED),
        (Forbidden(403, "Forbidden", "x", LEAVING), Refusal.NAMESPACE_TERMINATING),
        (Forbidden(403, "Forbidden", "error looking up service account"), Refusal.ACCOUNT_MISSING),
        (Forbidden(403, "Forbidden", "not allowed"), Refusal.FORBIDDEN),
        (TooManyRequests(429, "TooManyRequests", "wait"), Refusal.THROTTLED),
        (Invalid(422, "Invalid", "bad"), Refusal.INVALID),
        (ServerError(500, "InternalError", UNTYPED), Refusal.INVALID),
        (ServerError(500, "InternalError", f".spec.y: {UNDECLARED}"), Refusal.INVALID),
        (ServerError(500, "InternalError", UNCONVERTED.format(UNREADABLE)), Refusal.INVALID),
        (ServerError(500, "", UNCONVERTED.format("webhook: timeout")), Refusal.SERVER_ERROR),
        (ServerError(500, "InternalError", "webhook: timeout"), Refusal.SERVER_ERROR),
        (Gone(410, "Expired", "too old"), Refusal.OTHER),
        (KubeError(418, "", "teapot"), Refusal.OTHER),
    ],
)
def test_d9_the_reason_of_a_refusal(error: KubeError, refusal: Refusal):
    assert refusal_of(error) is refusal
