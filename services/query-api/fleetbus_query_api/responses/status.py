"""Errors as Kubernetes words them: a Status document.

This module imports nothing of ours: every error below /kube is rendered here, also those of the
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

KUBE_PREFIX: Final = "/kube/"
"""Paths that are a Kubernetes API, whose clients expect a Status."""

_REASONS: Final[Mapping[int, str]] = {
    400: "BadRequest",
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

WHERE_TO_WRITE: Final = (
    "the fleet is read-only here: write to the API server of the cluster itself, or to many"
    " clusters at once by a MultiClusterResource on the hub"
)


def render_status(
    code: int,
    message: str,
    headers: Mapping[str, str],
    details: Mapping[str, Any] | None = None,
) -> bytes:
    """Render an error.

    Args:
        code: the HTTP status.
        message: what kubectl prints.
        headers: of the answer; a `Retry-After` is also a detail, where clients look for it.
        details: name, group and kind of what the error is about.
    """
    fields = dict(details or {})
    if wait := headers.get("Retry-After"):
        fields["retryAfterSeconds"] = int(wait)
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": _REASONS.get(code, "Unknown"),
            "details": fields,
            "code": code,
        }
    )
