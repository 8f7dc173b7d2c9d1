"""What every request passes first: only GET (rule A7), and only under a name of this machine."""

from __future__ import annotations

import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from fleetbus_query_api.answers.errors import ApiError, MethodNotAllowed, Misdirected
from fleetbus_query_api.answers.problem import render_problem


class Gate:
    """An ASGI middleware.

    Args:
        app: what is behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        problem = _find_problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await render_problem(str(scope["path"]), problem)(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether a host, as in a URL or a setting, is this machine and nothing else."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _find_problem(scope: Scope) -> ApiError | None:
    if scope["method"] != "GET":
        return MethodNotAllowed("the query API only reads: GET")
    host = _host_of(scope)
    if host and not is_loopback(host):
        # A web page may point a name of its own at 127.0.0.1 and ask us through its visitor.
        return Misdirected("this API answers only under localhost and loopback addresses")
    return None


def _host_of(scope: Scope) -> str:
    """The host that was asked, without its port; empty when the client (HTTP/1.0) names none."""
    for name, value in scope["headers"]:
        if name == b"host":
            text = value.decode("latin-1")
            return text if text.endswith("]") else text.rpartition(":")[0] or text
    return ""
