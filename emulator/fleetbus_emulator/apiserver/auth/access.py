"""Users, access requests, authorization policies, and the messages of refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleetbus_emulator.apiserver.errors import ApiError

JsonObject = dict[str, Any]
ANONYMOUS = "system:anonymous"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
MASTERS = "system:masters"
ACCOUNT_PREFIX = "system:serviceaccount:"
ACCOUNTS = "system:serviceaccounts"
EXTRA_PREFIX = "authentication.kubernetes.io/"
CREDENTIAL_ID = f"{EXTRA_PREFIX}credential-id"
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class User:
    """The user who makes a request.

    Attributes:
        extra: Other attributes from authentication: lists of strings by lower-case key.
    """

    name: str
    groups: tuple[str, ...] = (AUTHENTICATED,)
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], hash=False
    )

    def to_info(self) -> JsonObject:
        """The UserInfo of reviews; what is empty is left out."""
        extra = {key: list(values) for key, values in self.extra.items()}
        info = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        return {key: value for key, value in {**info, "extra": extra}.items() if value}


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of a namespace's ServiceAccounts, but for system:authenticated."""
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}")


def account_user(
    namespace: str, name: str, uid: str = "", extra: Mapping[str, tuple[str, ...]] | None = None
) -> User:
    """The user that a ServiceAccount is."""
    groups = (*account_groups(namespace), AUTHENTICATED)
    return User(f"{ACCOUNT_PREFIX}{namespace}:{name}", groups, uid, extra or {})


def split_account(user_name: str) -> tuple[str, str] | None:
    """Namespace and name, if the user is a ServiceAccount."""
    if not user_name.startswith(ACCOUNT_PREFIX):
        return None
    namespace, _, name = user_name.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if namespace and name and ":" not in name else None


@dataclass(frozen=True, slots=True)
class Access:
    """A request for access: user, verb and resource or path.

    Attributes:
        path: Of a request for something that is no resource (discovery, health); group and
            resource are empty then.
    """

    user: User
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str | None = None
    name: str = ""
    subresource: str = ""
    path: str = ""


Authorize = Callable[[Access], bool]


def allow_all(access: Access) -> bool:
    """Everybody who is known may do everything; the anonymous user nothing."""
    return access.user.name != ANONYMOUS


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether something is allowed; the reason is shown in reviews and refusals."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rights:
    """The rules of a user in a namespace, as a SelfSubjectRulesReview lists them.

    Attributes:
        resources: ResourceRules.
        paths: NonResourceRules.
        error: Why the list is incomplete; empty when it is complete.
    """

    resources: list[JsonObject]
    paths: list[JsonObject]
    error: str = ""


class Policy(Protocol):
    """Decides who may do what."""

    def decide(self, access: Access) -> Decision:
        """Whether the access is allowed."""
        ...

    def rights(self, user: User, namespace: str) -> Rights:
        """The rules of a user in a namespace."""
        ...


ALLOWED, DENIED = Decision(allowed=True), Decision(allowed=False)
EVERY_RESOURCE = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
EVERY_PATH = {"verbs": ["*"], "nonResourceURLs": ["*"]}


class FunctionPolicy:
    """A Python function decides.

    Whom it would refuse everything by oversight may do what every user of a real cluster may:
    discover what is served, and ask about himself.

    Args:
        authorize: Gets every access but those to health, version and (of known users) discovery
            and questions about oneself.
    """

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    def decide(self, access: Access) -> Decision:
        """Ask the function."""
        is_authenticated = access.user.name != ANONYMOUS
        if access.path and (is_authenticated or access.path.startswith(PUBLIC)):
            return ALLOWED
        if is_authenticated and access.resource.startswith("selfsubject"):
            return ALLOWED
        return ALLOWED if self._authorize(access) else DENIED

    def rights(self, user: User, namespace: str) -> Rights:
        """All rules or none: a function cannot list the rules it implements."""
        del namespace
        if self._authorize is not allow_all:
            return Rights([], [], "the authorizer is a function, which cannot list rules")
        if user.name == ANONYMOUS:
            return Rights([], [])
        return Rights([EVERY_RESOURCE], [EVERY_PATH])


def forbidden(access: Access, reason: str = "") -> ApiError:
    """403 for a request."""
    why = _refusal(access).translate(_ESCAPED) + (f": {reason}" if reason else "")
    return forbidden_object(access.group, access.resource, access.name, why)


def forbidden_object(group: str, resource: str, name: str, why: str) -> ApiError:
    """403 for an object, in words of one's own."""
    if not resource:
        return ApiError(403, "Forbidden", f"forbidden: {why}", details={})
    qualified = f"{resource}.{group}" if group else resource
    named = f' "{name}"' if name else ""
    details = {"name": name, "group": group, "kind": resource}
    details = {key: value for key, value in details.items() if value}
    return ApiError(403, "Forbidden", f"{qualified}{named} is forbidden: {why}", details=details)


def go_list(values: Iterable[str]) -> str:
    """Texts as Go prints a slice of them with %q: `["a" "b"]`."""
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _refusal(access: Access) -> str:
    who = f'User "{access.user.name}" cannot {access.verb}'
    if access.path:
        return f'{who} path "{access.path}"'
    resource = access.resource
    if access.subresource:
        resource = f"{resource}/{access.subresource}"
    where = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    return f'{who} resource "{resource}" in API group "{access.group}" {where}'
