"""Logs who asked for what, and what was decided: one line for each request (rule A3).

A line never has a token: of a request it names the method, the path and what `authorise` was asked.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleetbus_query_api.access.authorise import Access, Granted, Right
from fleetbus_query_api.limits.user_limits import address_of, release_with
from fleetbus_query_api.requests.user import User, find_user

log = structlog.get_logger()

_SHOWN: Final = 10
"""Number of denied clusters that a line names."""
_LONGEST: Final = 500
_CLUSTERS: Final = "clusters"
_HUB: Final = "the hub"
_UNAUTHENTICATED: Final = "unauthenticated"
_ALLOWED: Final = "allowed"
_DENIED: Final = "denied"
_PARTLY: Final = "partly denied"
_LIMITED: Final = "limited"
_FAILED: Final = "failed"


@dataclass(slots=True)
class _Asked:
    """The decisions that one request has caused."""

    rights: list[Right] = field(default_factory=list[Right])
    allowed: int = 0
    denied: set[str] = field(default_factory=set[str])
    is_logged: bool = False
    """Whether its line is written: what a watch asks again and again is not noted."""


_ASKED: Final[ContextVar[_Asked | None]] = ContextVar("asked", default=None)


class AuditedAccess:
    """Notes each decision for the line of its request.

    Args:
        access: decides.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_open = access.is_open

    async def authorise(self, user: User, right: Right, clusters: Collection[str]) -> Granted:
        """Those of the clusters in which the user has a right; see `Access`."""
        allowed = await self._access.authorise(user, right, clusters)
        decisions = _ASKED.get()
        if decisions is not None and not decisions.is_logged:
            decisions.rights.append(right)
            decisions.allowed += len(allowed)
            decisions.denied |= set(clusters) - set(allowed)
        return allowed

    async def is_allowed_on_hub(self, user: User, right: Right) -> bool:
        """Whether the user has a right on the hub itself; see `Access`."""
        is_allowed = await self._access.is_allowed_on_hub(user, right)
        note_on_hub(right, is_allowed=is_allowed)
        return is_allowed


def note_on_hub(right: Right, *, is_allowed: bool) -> None:
    """Note a decision about the hub itself: about a join or an unjoin, or what it holds."""
    if decisions := _ASKED.get():
        decisions.rights.append(right)
        decisions.allowed += is_allowed
        decisions.denied |= set() if is_allowed else {right.name or _HUB}


class Audit:
    """An ASGI middleware that logs each request; what is refused, as a warning.

    Args:
        app: the application behind it, which authenticates.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, and log it once it is answered, or its answer begins to last."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = 0, time.perf_counter()

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        decisions = _Asked()

        def write(status: int = HTTPStatus.OK) -> None:
            if not decisions.is_logged:
                decisions.is_logged = True
                _log(scope, status, decisions, time.perf_counter() - started)

        release_with(scope, write)
        token = _ASKED.set(decisions)
        try:
            await self._app(scope, receive, note)
        finally:
            _ASKED.reset(token)
            write(status)


def _log(scope: Scope, status: int, decisions: _Asked, seconds: float) -> None:
    decision = _decision(status, decisions)
    user = find_user(scope)
    # A list of all clusters leaves out those that a user may not read: that is no attempt.
    write = log.info if decision in (_ALLOWED, _PARTLY, _FAILED) else log.warning
    write(
        "api_request",
        decision=decision,
        user=user.name if user is not None else "",
        client=address_of(scope).removeprefix("address "),
        method=str(scope["method"])[:_SHOWN],
        path=_path(scope),
        status=status,
        rights=_shown(decisions.rights),
        denied=sorted(decisions.denied)[:_SHOWN],
        denied_clusters=len(decisions.denied),
        seconds=round(seconds, 3),
    )


def _decision(status: int, decisions: _Asked) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return _UNAUTHENTICATED
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return _LIMITED
    if status == 0 or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _FAILED
    if decisions.denied:
        return _PARTLY if decisions.allowed else _DENIED
    return _ALLOWED


def _path(scope: Scope) -> str:
    """The path as it was sent, so that nobody can write a second line; without the query."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("ascii", "backslashreplace")[:_LONGEST]


def _shown(rights: Sequence[Right]) -> list[str]:
    """Each right once, such as `list deployments.apps prod`."""
    texts: dict[str, None] = {}
    for each in rights:
        parts = (each.verb, each.resource if each.plural else _CLUSTERS, each.namespace, each.name)
        texts[" ".join(filter(None, parts))] = None
    return list(texts)[:_SHOWN]
