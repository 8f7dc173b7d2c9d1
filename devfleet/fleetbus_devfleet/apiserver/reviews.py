"""Review types: posted, answered, stored nowhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetbus_devfleet.apiserver.errors import ApiError
from fleetbus_devfleet.apiserver.tree import mapping

JsonObject = dict[str, Any]
AUTHORIZATION = "authorization.k8s.io"
AUTHENTICATION = "authentication.k8s.io"
ANONYMOUS = "system:anonymous"
# group, version, plural, kind, namespaced
VIRTUAL_TYPES: tuple[tuple[str, str, str, str, bool], ...] = (
    (AUTHENTICATION, "v1", "selfsubjectreviews", "SelfSubjectReview", False),
    (AUTHENTICATION, "v1", "tokenreviews", "TokenReview", False),
    (AUTHORIZATION, "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", True),
    (AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
    (AUTHORIZATION, "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview", False),
    (AUTHORIZATION, "v1", "subjectaccessreviews", "SubjectAccessReview", False),
)


@dataclass(frozen=True, slots=True)
class User:
    """Who makes a request."""

    name: str
    groups: tuple[str, ...] = ("system:authenticated",)


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody wants to do."""

    user: User
    verb: str
    group: str
    resource: str
    namespace: str | None = None
    name: str = ""
    subresource: str = ""


Authorize = Callable[[Access], bool]


def allow_all(access: Access) -> bool:
    """Everybody who is known may do everything; the anonymous user nothing."""
    return access.user.name != ANONYMOUS


def forbidden(access: Access) -> ApiError:
    """403 for a request."""
    where = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    qualified = f"{access.resource}.{access.group}" if access.group else access.resource
    named = f' "{access.name}"' if access.name else ""
    message = (
        f'{qualified}{named} is forbidden: User "{access.user.name}" cannot {access.verb} resource '
        f'"{access.resource}" in API group "{access.group}" {where}'
    )
    details = {"name": access.name, "group": access.group, "kind": access.resource}
    details = {key: value for key, value in details.items() if value}
    return ApiError(403, "Forbidden", message, details=details)


class Reviews:
    """Answers reviews from the same tokens and rules that requests are checked with.

    Args:
        users: Users by bearer token; None where everybody is let in.
        authorize: Decides who may do what.
    """

    def __init__(self, users: dict[str, User] | None, authorize: Authorize) -> None:
        self._users = users
        self._authorize = authorize

    def handles(self, group: str, version: str, plural: str) -> bool:
        """Whether a path is that of a review."""
        return any((group, version, plural) == entry[:3] for entry in VIRTUAL_TYPES)

    def review(self, plural: str, body: JsonObject, user: User) -> JsonObject:
        """The review with its status filled in."""
        spec: JsonObject = mapping(body, "spec")
        if plural == "selfsubjectreviews":
            status: JsonObject = {"userInfo": _user_info(user)}
        elif plural == "tokenreviews":
            status = self._token(str(spec.get("token", "")))
        elif plural == "selfsubjectrulesreviews":
            every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            status = {"resourceRules": [every], "nonResourceRules": [urls], "incomplete": False}
        else:
            if "user" in spec:
                user = User(spec["user"], tuple(spec.get("groups") or ()))
            status = {"allowed": self._allows(spec, user)}
        api_group = next(entry[0] for entry in VIRTUAL_TYPES if entry[2] == plural)
        kind = next(entry[3] for entry in VIRTUAL_TYPES if entry[2] == plural)
        head: JsonObject = {"kind": kind, "apiVersion": f"{api_group}/v1", "metadata": {}}
        return {**head, "spec": spec, "status": status} if spec else {**head, "status": status}

    def _token(self, token: str) -> JsonObject:
        user = (self._users or {}).get(token)
        if user is None:
            return {"authenticated": False, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _user_info(user)}

    def _allows(self, spec: JsonObject, user: User) -> bool:
        wanted: JsonObject = mapping(spec, "resourceAttributes")
        return self._authorize(
            Access(
                user=user,
                verb=wanted.get("verb", "get"),
                group=wanted.get("group", ""),
                resource=wanted.get("resource", ""),
                namespace=wanted.get("namespace"),
                name=wanted.get("name", ""),
                subresource=wanted.get("subresource", ""),
            )
        )


def _user_info(user: User) -> JsonObject:
    return {"username": user.name, "groups": list(user.groups)}
