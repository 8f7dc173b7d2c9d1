"""Limits the requests of one user: per second, and at a time (rule A8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.answers.problem import TooManyRequestsProblem, render_problem
from fleetbus_query_api.settings import QueryApiSettings

MAX_USERS: Final = 10_000
"""Users that are tracked; beyond that the one that was idle the longest is forgotten."""
_CONCURRENCY_RETRY_SECONDS: Final = 1.0

REFUSED: Final = Counter(
    "fleetbus_query_api_refused_requests_total",
    "Requests answered 429, by the limit that the user has reached: rate, concurrency.",
    ["limit"],
)
for _limit in ("rate", "concurrency"):
    REFUSED.labels(_limit)


@dataclass(slots=True)
class _Usage:
    """A token bucket, and the number of requests in flight."""

    tokens: float
    refilled_at: float
    in_flight: int = 0


class UserLimits:
    """An ASGI middleware that gives each user a share of the process.

    Args:
        app: the application behind it.
        settings: the limits.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: QueryApiSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._rate = settings.user_requests_per_second
        self._burst = settings.user_request_burst
        self._concurrency = settings.user_concurrency
        self._clock = clock
        self._users: dict[str, _Usage] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer 429."""
        usage = self._find(identify_user(scope))
        refusal = self._take(usage)
        if refusal is not None:
            await render_problem(str(scope["path"]), refusal)(scope, receive, send)
            return
        usage.in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            usage.in_flight -= 1

    def _find(self, user: str) -> _Usage:
        """Find the usage of a user, and move it to the end: the first was idle the longest."""
        usage = self._users.pop(user, None) or _Usage(self._burst, self._clock())
        self._users[user] = usage
        if len(self._users) > MAX_USERS:
            del self._users[next(iter(self._users))]
        return usage

    def _take(self, usage: _Usage) -> TooManyRequestsProblem | None:
        """Take a token, or answer why there is none."""
        if usage.in_flight >= self._concurrency:
            REFUSED.labels("concurrency").inc()
            reason = f"{usage.in_flight} of your requests are in progress"
            return TooManyRequestsProblem(reason, wait_seconds=_CONCURRENCY_RETRY_SECONDS)
        now = self._clock()
        gained = (now - usage.refilled_at) * self._rate
        usage.tokens = min(self._burst, usage.tokens + gained)
        usage.refilled_at = now
        if usage.tokens < 1:
            REFUSED.labels("rate").inc()
            reason = f"more than {self._rate:g} requests per second"
            return TooManyRequestsProblem(reason, wait_seconds=(1 - usage.tokens) / self._rate)
        usage.tokens -= 1
        return None


def identify_user(scope: Scope) -> str:
    """Identify the user by the client address: on loopback nobody authenticates.

    An unverified token is not an identity: whoever makes up new ones would have no limit.
    """
    client = scope.get("client")
    return str(client[0]) if client else ""
