"""Limits the requests of one user: per second, and at a time (rule A8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.access.user import find_user
from fleetbus_query_api.answers.problem import TooManyRequestsProblem, render_problem
from fleetbus_query_api.settings import QueryApiSettings

MAX_USERS: Final = 10_000
"""Users that are tracked; beyond that the one that was idle the longest is forgotten."""
_CONCURRENCY_RETRY_SECONDS: Final = 1.0

REFUSED: Final = Counter(
    "fleetbus_query_api_refused_requests_total",
    "Requests answered 429, by the limit that the user or address has reached: rate, concurrency.",
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


class UsageLimits:
    """Gives each of many, by name, so many requests per second and at a time.

    Args:
        settings: the limits.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, settings: QueryApiSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = settings.user_requests_per_second
        self._burst = settings.user_request_burst
        self._concurrency = settings.user_concurrency
        self._clock = clock
        self._usages: dict[str, _Usage] = {}

    @contextmanager
    def use(self, name: str) -> Generator[None]:
        """Count one request while it is in progress.

        Raises:
            TooManyRequestsProblem: a limit is reached.
        """
        usage = self._find(name)
        self._take(usage)
        usage.in_flight += 1
        try:
            yield
        finally:
            usage.in_flight -= 1

    def __len__(self) -> int:
        """How many are tracked."""
        return len(self._usages)

    def _find(self, name: str) -> _Usage:
        """Find a usage, and move it to the end: the first was idle the longest."""
        usage = self._usages.pop(name, None) or _Usage(self._burst, self._clock())
        self._usages[name] = usage
        if len(self._usages) > MAX_USERS:
            del self._usages[next(iter(self._usages))]
        return usage

    def _take(self, usage: _Usage) -> None:
        if usage.in_flight >= self._concurrency:
            REFUSED.labels("concurrency").inc()
            reason = f"{usage.in_flight} of your requests are in progress"
            raise TooManyRequestsProblem(reason, wait_seconds=_CONCURRENCY_RETRY_SECONDS)
        now = self._clock()
        gained = (now - usage.refilled_at) * self._rate
        usage.tokens = min(self._burst, usage.tokens + gained)
        usage.refilled_at = now
        if usage.tokens < 1:
            REFUSED.labels("rate").inc()
            reason = f"more than {self._rate:g} requests per second"
            raise TooManyRequestsProblem(reason, wait_seconds=(1 - usage.tokens) / self._rate)
        usage.tokens -= 1


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
        self.users = UsageLimits(settings, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer 429."""
        try:
            with self.users.use(identify_user(scope)):
                await self._app(scope, receive, send)
        except TooManyRequestsProblem as e:  # the application answers its own errors
            await render_problem(str(scope["path"]), e)(scope, receive, send)


def identify_user(scope: Scope) -> str:
    """Identify the user: by name, and by the client address where nobody authenticates.

    An unverified token is not an identity: whoever makes up new ones would have no limit.
    """
    user = find_user(scope)
    return f"user {user.name}" if user is not None and user.name else address_of(scope)


def address_of(scope: Scope) -> str:
    """The address of a client."""
    client = scope.get("client")
    return f"address {client[0] if client else ''}"
