"""Authenticates every request before anything else sees it (rule A1).

The user of a bearer token is found by a TokenReview of the hub (rule A3).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus.errors import ConfigError, KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.process.access.tokens import is_bearer_token, read_expiry
from fleetbus.process.log_once import LogOnce
from fleetbus_query_api.access.cache import ExpiringCache
from fleetbus_query_api.access.metrics import KNOWN, TOKEN, measured
from fleetbus_query_api.access.reviews import TokenOwner, review_token
from fleetbus_query_api.limits.user_limits import UsageLimits, address_of
from fleetbus_query_api.requests.user import ANYONE, User, set_user
from fleetbus_query_api.responses.problem import (
    Problem,
    UnauthorizedProblem,
    UnavailableProblem,
    render_problem,
)
from fleetbus_query_api.settings import QueryApiSettings

log = structlog.get_logger()

_CAPACITY: Final = 10_000
_INVALID_FOR: Final = timedelta(seconds=10)
_MAX_TOKEN: Final = 16 * 1024
_ANONYMOUS: Final = "system:anonymous"
_UNAUTHENTICATED: Final = "system:unauthenticated"
_HOW: Final = "send `Authorization: Bearer <token>`"


class _Outcome(NamedTuple):
    """The user of a token, or why it is not accepted."""

    user: User | None
    refusal: str = ""


class Authenticator:
    """Knows the users of tokens for a while, by a keyed hash: no token is kept.

    Args:
        hub: the client of the hub.
        audience: that tokens must be issued for.
        keep: how long a valid token is not reviewed again.
    """

    def __init__(
        self,
        *,
        hub: KubeClient,
        audience: str,
        keep: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._audience = audience
        self._keep = keep
        self._key = secrets.token_bytes(32)  # hashes of two processes cannot be compared
        self._known: ExpiringCache[bytes, _Outcome] = ExpiringCache(_CAPACITY, clock)
        self._failing = LogOnce()

    def find_known(self, token: str) -> User | None:
        """The user of a token that was reviewed a while ago, without asking the hub.

        Raises:
            UnauthorizedProblem: the hub has just refused the token.
        """
        outcome = self._known.get(self._hash(token))
        if outcome is None:
            return None
        KNOWN.labels(TOKEN).inc()
        return _user_of(outcome)

    async def authenticate(self, token: str) -> User:
        """The user of a token.

        Raises:
            UnauthorizedProblem: the hub does not accept the token, or not for this audience.
            UnavailableProblem: the hub did not review it.
        """
        try:
            with measured(TOKEN) as review:
                owner = await review_token(self._hub, token, self._audience)
                outcome = self._evaluate(owner)
                review.is_allowed = outcome.user is not None
        except (KubeError, ConfigError) as e:
            if self._failing.should_log(text := str(e).replace(token, "…")):
                log.warning("token_review_failed", error=text)
            raise UnavailableProblem(
                "your token cannot be verified: the hub's API server does not answer the query API"
                " or refuses it; the log of the query API has the reason. Try again"
            ) from None
        keep = _INVALID_FOR if outcome.user is None else min(self._keep, _remaining(token))
        if keep > timedelta():
            self._known.put(self._hash(token), outcome, keep)
        return _user_of(outcome)

    def _evaluate(self, owner: TokenOwner) -> _Outcome:
        user = owner.user
        if user is None:
            return _Outcome(None, self._refusal(owner.error))
        if user.name == _ANONYMOUS or _UNAUTHENTICATED in user.groups:
            return _Outcome(None, self._refusal(""))
        if self._audience not in owner.audiences:
            # Also from an authenticator that knows no audiences: any token would pass (rule A3).
            return _Outcome(None, self._refusal("audience"))
        return _Outcome(user)

    def _refusal(self, error: str) -> str:
        renew = f"`kubectl create token <serviceaccount> --audience={self._audience}` issues one"
        if "expired" in error:
            return f"the token has expired; get a new one: {renew}"
        if "audience" in error:
            return f"the token is not issued for the audience {self._audience!r}; {renew}"
        return (
            "the hub does not accept the token: it is invalid, has expired, was revoked, or is not"
            f" issued for the audience {self._audience!r}; {renew}"
        )

    def _hash(self, token: str) -> bytes:
        return hashlib.blake2b(token.encode(), key=self._key, digest_size=32).digest()


def read_token(scope: Scope) -> str:
    """The bearer token of a request.

    Raises:
        UnauthorizedProblem: it has none, two, or one that no server issues.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        raise UnauthorizedProblem(f"a token is required: {_HOW}")
    if len(values) > 1:
        raise UnauthorizedProblem(f"there are {len(values)} Authorization headers: {_HOW} once")
    scheme, _, token = values[0].decode("latin-1").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or len(token) > _MAX_TOKEN or not is_bearer_token(token):
        raise UnauthorizedProblem(f"the Authorization header is not a bearer token: {_HOW}")
    return token


def _user_of(outcome: _Outcome) -> User:
    if outcome.user is None:
        raise UnauthorizedProblem(outcome.refusal, is_token_invalid=True)
    return outcome.user


def _remaining(token: str) -> timedelta:
    """Return the remaining validity of a JWT, which bounds its caching; other tokens have none."""
    expires = read_expiry(token)
    if expires is None:
        return timedelta.max
    return timedelta(seconds=max(0.0, min(expires - time.time(), 1e6)))


class Authentication:
    """An ASGI middleware that finds the user of a request, or refuses it.

    What one address sends without a known token is limited, because each new token costs the hub a
    review (rule A8).

    Args:
        app: the application behind it.
        authenticator: knows the tokens; None lets everybody in.
        settings: the limits of one address.
    """

    def __init__(
        self, app: ASGIApp, authenticator: Authenticator | None, settings: QueryApiSettings
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._addresses = UsageLimits(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass with its user, or answer 401, 429 or 503."""
        try:
            user = await self._find_user(scope)
        except Problem as e:
            await render_problem(str(scope["path"]), e)(scope, receive, send)
            return
        set_user(scope, user)
        await self._app(scope, receive, send)

    async def _find_user(self, scope: Scope) -> User:
        if self._authenticator is None:
            return ANYONE
        try:
            token = read_token(scope)
            user = self._authenticator.find_known(token)
        except UnauthorizedProblem:
            with self._addresses.use(address_of(scope)):
                raise
        if user is not None:
            return user
        with self._addresses.use(address_of(scope)):
            return await self._authenticator.authenticate(token)
