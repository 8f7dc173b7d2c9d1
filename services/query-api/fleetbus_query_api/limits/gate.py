"""Refuses requests other than GET (rule A7), and Host headers of other machines.

Host headers matter only where nobody authenticates: a token is never sent by itself, so a web page
that points its own name at us has none.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus.process.loopback import is_loopback
from fleetbus_query_api.answers.problem import (
    MethodNotAllowedProblem,
    MisdirectedProblem,
    Problem,
    render_problem,
)


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
        if scope["method"] != "GET":
            return MethodNotAllowedProblem("the query API is read-only: use GET")
        host = _host_of(scope) if self._only_loopback else ""
        if host and not is_loopback(host):
            # DNS rebinding: a web page may point its own name at 127.0.0.1 and read through a
            # visitor.
            return MisdirectedProblem(
                "this API answers only under localhost and loopback addresses"
            )
        return None


def _host_of(scope: Scope) -> str:
    """The Host header without its port; empty if there is none (HTTP/1.0)."""
    for name, value in scope["headers"]:
        if name == b"host":
            text = value.decode("latin-1")
            return text if text.endswith("]") else text.rpartition(":")[0] or text
    return ""
