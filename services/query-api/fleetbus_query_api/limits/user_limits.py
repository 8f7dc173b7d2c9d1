"""Limits the requests of one user: per second, and at a time (rule A8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final, cast

from prometheus_client import Counter
from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.limits.token_buckets import TokenBuckets
from fleetbus_query_api.requests.user import find_user
from fleetbus_query_api.responses.problem import TooManyRequestsProblem, render_problem
from fleetbus_query_api.settings import QueryApiSettings

_CONCURRENCY_RETRY_SECONDS: Final = 1.0
_RELEASE: Final = "fleetbus.release"

REFUSED: Final = Counter(
    "fleetbus_query_api_refused_requests_total",
    "Requests answered 429, by the limit that the user or address has reached: rate, concurrency.",
    ["limit"],
)

for _limit in ("rate", "concurrency"):
    REFUSED.labels(_limit)


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
        self._concurrency = settings.user_concurrency
        self._buckets = TokenBuckets(
            rate=self._rate, burst=settings.user_request_burst, clock=clock
        )
        self._in_flight: dict[str, int] = {}

    @contextmanager
    def use(self, name: str) -> Generator[None]:
        """Count one request while it is in progress.

        Raises:
            TooManyRequestsProblem: a limit is reached.
        """
        self._take(name)
        self._in_flight[name] = self._in_flight.get(name, 0) + 1
        try:
            yield
        finally:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]

    def __len__(self) -> int:
        """Number of tracked users."""
        return len(self._buckets)

    def _take(self, name: str) -> None:
        in_flight = self._in_flight.get(name, 0)
        if in_flight >= self._concurrency:
            REFUSED.labels("concurrency").inc()
            reason = f"{in_flight} of your requests are in progress"
            raise TooManyRequestsProblem(reason, wait_seconds=_CONCURRENCY_RETRY_SECONDS)
        if wait := self._buckets.take(name):
            REFUSED.labels("rate").inc()
            reason = f"more than {self._rate:g} requests per second"
            raise TooManyRequestsProblem(reason, wait_seconds=wait)


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
            with ExitStack() as stack:
                stack.enter_context(self.users.use(identify_user(scope)))
                release_with(scope, stack.close)
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


def release_with(scope: Scope, release: Callable[[], None]) -> None:
    """Let `release` be called as soon as the answer of a request is known to last.

    A watch lasts for an hour and costs little, so it counts while it is opened, not while it is
    open; the number of open watches has limits of its own.
    """
    scope.setdefault(_RELEASE, []).append(release)


def release_capacity(scope: Scope) -> None:
    """Release what a request has used up, and log it; its answer lasts."""
    for release in cast("list[Callable[[], None]]", scope.pop(_RELEASE, [])):
        release()
