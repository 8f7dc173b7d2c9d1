"""Refusals, as Kubernetes words them.

ApiError                a Status document with an HTTP code
└── PlainError          text/plain, no Status
    └── NotServed       `404 page not found`: the path itself is unknown
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TypeNames(Protocol):
    """The names of a resource type that a refusal quotes; types themselves stand above errors."""

    @property
    def group(self) -> str:
        """Empty for the core group."""
        ...

    @property
    def plural(self) -> str:
        """Like `deployments`."""
        ...

    @property
    def qualified(self) -> str:
        """Like `deployments.apps`."""
        ...

    @property
    def kind(self) -> str:
        """Like `Deployment`."""
        ...

    @property
    def qualified_kind(self) -> str:
        """Like `Deployment.apps`."""
        ...


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason in a 422 or 409 answer."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def to_dict(self) -> dict[str, str]:
        """The form it has in `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A request that is refused with a Status document.

    Attributes:
        code: The HTTP status.
        reason: The machine-readable reason, `None` where Kubernetes gives none.
        details: Name, group, kind and causes; None where Kubernetes gives none at all.
        headers: Extra HTTP headers, for example Retry-After.
        list_metadata: Put into the Status' metadata (the fresh continue token of a 410).
    """

    def __init__(
        self,
        code: int,
        reason: str | None,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        list_metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = None if details is None else dict(details)
        self.headers = dict(headers or {})
        self.list_metadata = dict(list_metadata or {})

    def to_status(self) -> dict[str, Any]:
        """The Status document of the answer."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.list_metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason is not None:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


class PlainError(ApiError):
    """A request that is refused in text/plain, without a Status document."""

    def __init__(self, code: int, message: str, reason: str | None = None) -> None:
        super().__init__(code, reason, message)


class NotServed(PlainError):
    """The path, or for callers from within the process the type, is not served."""

    def __init__(self, message: str = "404 page not found\n") -> None:
        super().__init__(HTTPStatus.NOT_FOUND, message, "NotFound")


def _details(rtype: TypeNames, name: str, kind: str | None = None) -> dict[str, Any]:
    details = {"name": name, "group": rtype.group, "kind": kind or rtype.plural}
    return {key: value for key, value in details.items() if value}


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequest", message)


class StrictError(ApiError):
    """400 of fieldValidation=Strict: unknown or duplicate fields.

    Attributes:
        why: What the decoder says of them.
    """

    def __init__(self, kind: str, version: str, texts: Sequence[str]) -> None:
        self.why = f"strict decoding error: {', '.join(texts)}"
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {self.why}'
        super().__init__(HTTPStatus.BAD_REQUEST, "BadRequest", message)

    def of_patch(self, patch: bytes) -> ApiError:
        """The refusal, 422, if the fields came by a patch."""
        why = f'Invalid value: "{patch.decode(errors="replace")}": {self.why}'
        return invalid("", "", [Cause("patch", why)])


def not_found(rtype: TypeNames, name: str) -> ApiError:
    """404 for an object."""
    message = f'{rtype.qualified} "{name}" not found'
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, details=_details(rtype, name))


def not_routed() -> ApiError:
    """404 for a path below an API group of the server's own that names nothing it serves."""
    message = "the server could not find the requested resource"
    return ApiError(HTTPStatus.NOT_FOUND, "NotFound", message, details={})


def forbidden_object(rtype: TypeNames, name: str, why: str) -> ApiError:
    """403 for what admission refuses."""
    message = f'{rtype.qualified} "{name}" is forbidden: {why}'
    return ApiError(HTTPStatus.FORBIDDEN, "Forbidden", message, details=_details(rtype, name))


def namespace_not_found(name: str) -> ApiError:
    """404 for the namespace that an object should be created in."""
    details = {"name": name, "kind": "namespaces"}
    return ApiError(404, "NotFound", f'namespaces "{name}" not found', details=details)


def already_exists(rtype: TypeNames, name: str, *, deleting: bool) -> ApiError:
    """409 on create."""
    prefix = "object is being deleted: " if deleting else ""
    message = f'{prefix}{rtype.qualified} "{name}" already exists'
    return ApiError(HTTPStatus.CONFLICT, "AlreadyExists", message, details=_details(rtype, name))


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def conflict(
    rtype: TypeNames, name: str, why: str = MODIFIED, *, by_kind: bool = False
) -> ApiError:
    """409 on a write; delete preconditions name the kind instead of the plural."""
    qualified = rtype.qualified_kind if by_kind else rtype.qualified
    return ApiError(
        HTTPStatus.CONFLICT,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified} "{name}": {why}',
        details=_details(rtype, name, rtype.kind if by_kind else None),
    )


def apply_conflict(causes: Sequence[Cause]) -> ApiError:
    """409 of a server-side apply that would change what others own."""
    plural = "conflict" if len(causes) == 1 else "conflicts"
    if len(causes) == 1:
        listed = f"{causes[0].message}: {causes[0].field}"
    else:
        listed = _grouped_by_manager(causes)
    return ApiError(
        HTTPStatus.CONFLICT,
        "Conflict",
        f"Apply failed with {len(causes)} {plural}: {listed}",
        details={"causes": [cause.to_dict() for cause in causes]},
    )


def _grouped_by_manager(causes: Sequence[Cause]) -> str:
    fields: dict[str, list[str]] = {}
    for cause in causes:
        fields.setdefault(cause.message, []).append(cause.field)
    listed: list[str] = []
    for message, owned in sorted(fields.items()):
        listed.append(f"{message.replace('conflict', 'conflicts', 1)}:")
        listed += [f"- {field}" for field in owned]
    return "\n".join(listed)


def invalid(kind: str, name: str, causes: Sequence[Cause], *, group: str = "") -> ApiError:
    """422 with its causes; `kind` without group."""
    qualified = f"{kind}.{group}" if group else kind
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = {"name": name, "group": group, "kind": kind}
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "Invalid",
        f'{qualified} "{name}" is invalid: {listed}',
        details={key: value for key, value in details.items() if value}
        | {"causes": [cause.to_dict() for cause in causes]},
    )


def invalid_object(rtype: TypeNames, name: str, causes: Sequence[Cause]) -> ApiError:
    """422 for an object of a served type."""
    return invalid(rtype.kind, name, causes, group=rtype.group)


def invalid_option(options: str, cause: Cause) -> ApiError:
    """422 for a query parameter; `options` is CreateOptions, ListOptions, ..."""
    return invalid(options, "", [cause], group="meta.k8s.io")


def expired(message: str, fresh_token: str | None = None) -> ApiError:
    """410: the revision asked for is compacted."""
    metadata = {"continue": fresh_token} if fresh_token else {}
    return ApiError(HTTPStatus.GONE, "Expired", message, list_metadata=metadata)


def method_not_allowed(verb: str) -> ApiError:
    """405: the path exists, the method does not."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, details={"kind": verb})


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """415: the body's type."""
    return ApiError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted),
    )
