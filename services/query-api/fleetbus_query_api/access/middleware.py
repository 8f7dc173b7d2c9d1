"""Authenticates every request before anything else sees it (rule A1)."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.access.authenticate import Authenticator, read_token
from fleetbus_query_api.limits.user_limits import UsageLimits, address_of
from fleetbus_query_api.requests.user import ANYONE, User, set_user
from fleetbus_query_api.responses.problem import Problem, UnauthorizedProblem, render_problem
from fleetbus_query_api.settings import QueryApiSettings


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
