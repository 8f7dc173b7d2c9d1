"""Asks an API server who a token belongs to, and what a user may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.requests import Call
from fleetbus_query_api.requests.user import User

R = TypeVar("R", bound=msgspec.Struct)

WITHIN: Final = timedelta(seconds=5)
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 -- a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _UserInfo(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _UserInfo = msgspec.field(default_factory=_UserInfo)
    audiences: list[str] | None = None
    error: str = ""


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The outcome of a TokenReview: a user, or the API server's reason why there is none."""

    user: User | None
    audiences: tuple[str, ...] = ()
    error: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Attributes:
    """The subject of a SubjectAccessReview; an empty namespace or name means all."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def to_review(self) -> dict[str, str]:
        """The resourceAttributes of a SubjectAccessReview."""
        fields = {name: str(getattr(self, name)) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value}


async def review_token(client: KubeClient, token: str, audience: str) -> TokenOwner:
    """Ask whom a token belongs to.

    Raises:
        KubeError: the API server refused, or did not answer.
        ConfigError: our credentials for it cannot be loaded.
    """
    spec = {"token": token, "audiences": [audience]}
    review = await _post(client, _TOKEN_REVIEWS, "TokenReview", spec, _TokenReview)
    status = review.status
    if not status.authenticated or not status.user.username:
        return TokenOwner(None, error=status.error)
    extra = status.user.extra or {}
    user = User(
        name=status.user.username,
        uid=status.user.uid,
        groups=tuple(sorted(set(status.user.groups or ()))),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )
    return TokenOwner(user, tuple(status.audiences or ()))


async def review_access(client: KubeClient, user: User, attributes: Attributes) -> bool:
    """Ask whether a user may do something.

    Raises:
        KubeError: the API server refused, or did not answer.
        ConfigError: our credentials for it cannot be loaded.
    """
    spec = {**user.to_review(), "resourceAttributes": attributes.to_review()}
    review = await _post(client, _ACCESS_REVIEWS, "SubjectAccessReview", spec, _AccessReview)
    return review.status.allowed and not review.status.denied


async def _post(
    client: KubeClient, path: str, kind: str, spec: dict[str, Any], answer: type[R]
) -> R:
    group = path.split("/")[2]
    body = msgspec.json.encode({"apiVersion": f"{group}/v1", "kind": kind, "spec": spec})
    raw = await client.request(Call("POST", path, body=body, within=WITHIN))
    try:
        return msgspec.json.decode(raw, type=answer)
    except msgspec.DecodeError as e:
        raise Unreachable(0, "Unreachable", f"invalid {kind} in the answer") from e
