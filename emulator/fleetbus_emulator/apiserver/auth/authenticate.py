"""Authentication of requests: client certificate, bearer token, anonymous, impersonation."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from fleetbus_emulator.apiserver.auth.access import (
    ANONYMOUS,
    AUTHENTICATED,
    MASTERS,
    UNAUTHENTICATED,
    Access,
    Policy,
    User,
    account_groups,
    forbidden,
    split_account,
)
from fleetbus_emulator.apiserver.auth.credentials import Credentials, InvalidCertificateError
from fleetbus_emulator.apiserver.auth.static_tokens import API_AUDIENCE, InvalidTokenError
from fleetbus_emulator.apiserver.errors import ApiError, PlainError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetbus_emulator.apiserver.http.exchange import Request

ADMIN = User("system:admin", (MASTERS, AUTHENTICATED))
NOBODY = User(ANONYMOUS, (UNAUTHENTICATED,))
AS_USER, AS_GROUP = "impersonate-user", "impersonate-group"
AS_UID, AS_EXTRA = "impersonate-uid", "impersonate-extra-"
AUTHENTICATION = "authentication.k8s.io"


class Authenticator:
    """Finds out who makes a request.

    Args:
        credentials: The accepted credentials; None admits everybody as system:admin.
        policy: Authorizes impersonation.
    """

    def __init__(self, credentials: Credentials | None, policy: Policy) -> None:
        self._credentials = credentials
        self._policy = policy

    def user_of(self, request: Request) -> User:
        """Authenticate a request, and resolve impersonation.

        Raises:
            ApiError: 401, invalid credentials; 403, the user may not impersonate that one.
        """
        user = ADMIN if self._credentials is None else _identified(request, self._credentials)
        if any(name.startswith("impersonate-") for name in request.headers):
            return _impersonated(request, user, self._policy)
        return user


def _identified(request: Request, credentials: Credentials) -> User:
    """A certificate counts before a token, and a bad proof only if there is no good one."""
    refused = False
    if request.certificate:
        try:
            user = credentials.user_of(request.certificate)
        except InvalidCertificateError:
            refused = True
        else:
            if user is not None:
                return user
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and token:
        try:
            return credentials.identify(token, (API_AUDIENCE,)).user
        except InvalidTokenError:
            refused = True
    if refused:
        raise ApiError(401, "Unauthorized", "Unauthorized")
    return NOBODY


def _impersonated(request: Request, user: User, policy: Policy) -> User:
    name = request.headers.get(AS_USER, "")
    groups = request.every(AS_GROUP)
    uid = request.headers.get(AS_UID, "")
    extra = _extra(request)
    if not name:
        if groups or uid or extra:
            raise PlainError(500, _without_user(request, groups, uid, extra))
        return user
    for access in _wanted(user, name, groups, uid, extra):
        decision = policy.decide(access)
        if not decision.allowed:
            raise forbidden(access, decision.reason)
    account = split_account(name)
    if not groups and account is not None:
        groups = account_groups(account[0])
    if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups = (*groups, UNAUTHENTICATED if name == ANONYMOUS else AUTHENTICATED)
    return User(name, groups, uid, extra)


def _extra(request: Request) -> dict[str, tuple[str, ...]]:
    return {
        unquote(name.removeprefix(AS_EXTRA)): request.every(name)
        for name in request.headers
        if name.startswith(AS_EXTRA)
    }


def _wanted(
    user: User, name: str, groups: tuple[str, ...], uid: str, extra: Mapping[str, tuple[str, ...]]
) -> list[Access]:
    """The access requests that impersonating a user needs."""
    account = split_account(name)
    if account is not None:
        namespace, short = account
        first = Access(user, "impersonate", "", "serviceaccounts", namespace, short)
    else:
        first = Access(user, "impersonate", "", "users", name=name)
    requests = [first]
    requests += [Access(user, "impersonate", "", "groups", name=group) for group in groups]
    requests += [
        Access(user, "impersonate", AUTHENTICATION, "userextras", name=value, subresource=key)
        for key, values in extra.items()
        for value in values
    ]
    if uid:
        requests.append(Access(user, "impersonate", AUTHENTICATION, "uids", name=uid))
    return requests


def _without_user(
    request: Request, groups: tuple[str, ...], uid: str, extra: Mapping[str, tuple[str, ...]]
) -> str:
    """The complaint, with the references as Go prints them."""
    references = [f"{{Group  {group}    }}" for group in groups]
    references += [
        f"{{UserExtra  {value}  {AUTHENTICATION}/v1  {key}}}"
        for key, values in extra.items()
        for value in values
    ]
    if uid:
        references.append(f"{{UID  {uid}  {AUTHENTICATION}/v1  }}")
    why = f"requested [{' '.join(references)}] without impersonating a user"
    return f'Internal Server Error: "{request.path}": {why}\n'
