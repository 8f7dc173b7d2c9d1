"""Refuses requests other than GET, but for join and unjoin (rule A7), and those of other sites.

Reviews, by which kubectl asks what its user may do, are posted as well; they write nothing.

Host headers matter only where nobody authenticates: a token is never sent by itself, so a web page
that points its own name at us has none. What writes is refused to pages of other sites in any case:
a form of theirs needs no answer to do harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus.process.loopback import is_loopback
from fleetbus_query_api.requests.kube_paths import is_review
from fleetbus_query_api.responses.problem import (
    ForbiddenProblem,
    MethodNotAllowedProblem,
    MisdirectedProblem,
    Problem,
    render_problem,
)
from fleetbus_query_api.responses.status import KUBE_PREFIX, WHERE_TO_WRITE

WRITES: Final[Mapping[str, str]] = {"/v1/join": "POST", "/v1/unjoin": "DELETE"}
"""The only paths that write, each with its only method."""
_OF_THIS_SITE: Final = frozenset({"same-origin", "none"})


class RequestGate:
    """An ASGI middleware that every request passes first.

    Args:
        app: the application behind it.
        only_loopback: whether the Host header must be a name of this machine.
    """

    def __init__(self, app: ASGIApp, *, only_loopback: bool) -> None:
        self._app = app
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        problem = self._find_problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await render_problem(str(scope["path"]), problem)(scope, receive, send)

    def _find_problem(self, scope: Scope) -> Problem | None:
        if problem := _method_problem(scope):
            return problem
        host = _header(scope, b"host")
        name = _without_port(host)
        if self._only_loopback and name and not is_loopback(name):
            # DNS rebinding: a web page may point its own name at 127.0.0.1 and read through a
            # visitor.
            return MisdirectedProblem(
                "this API answers only under localhost and loopback addresses"
            )
        if scope["path"] in WRITES and not _is_of_this_site(scope, host):
            return ForbiddenProblem("a page of another site must not change the fleet")
        return None


def _method_problem(scope: Scope) -> Problem | None:
    method = WRITES.get(scope["path"], "GET")
    if scope["method"] == method or is_review(scope):
        return None
    if str(scope["path"]).startswith(KUBE_PREFIX):
        return MethodNotAllowedProblem(WHERE_TO_WRITE)
    if method == "GET":
        return MethodNotAllowedProblem("the query API is read-only: use GET")
    return MethodNotAllowedProblem(f"use {method}", allow=method)


def _is_of_this_site(scope: Scope, host: str) -> bool:
    """Whether no page sends a request, or one that this server has sent: browsers tell."""
    origin = _header(scope, b"origin")
    if origin and origin not in {f"http://{host}", f"https://{host}"}:
        return False
    return (_header(scope, b"sec-fetch-site") or "none") in _OF_THIS_SITE


def _header(scope: Scope, name: bytes) -> str:
    """The first header of a name; empty if there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _without_port(host: str) -> str:
    """The Host header without its port; empty if there is none (HTTP/1.0)."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
