"""The request log of a cluster, and its open watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.discovery import HEALTH
from fleetbus_emulator.apiserver.faults import RequestAttributes
from fleetbus_emulator.apiserver.http.exchange import parse_route
from fleetbus_emulator.apiserver.request_info import verb_of

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.http.exchange import Request
    from fleetbus_emulator.apiserver.read.watch import Watch

AGGREGATED = "as=APIGroupDiscoveryList"


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request, for checkers. A watch is logged when it opens; status 0 was never answered.

    Attributes:
        number: Counts the requests, from 1.
        faults: The ids of the rules that applied to it.
        accept: The forms of answer that the client takes.
    """

    number: int
    time: datetime
    verb: str
    method: str
    path: str
    query: Mapping[str, str]
    user_agent: str
    field_manager: str
    status: int
    faults: tuple[int, ...] = ()
    accept: str = ""


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch that is open, as rules saw its request."""

    watch: Watch
    seen: RequestAttributes
    opened: datetime


def seen_of(request: Request) -> RequestAttributes:
    """A request as rules see it."""
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    route = parse_route(request.path)
    if route is None:
        return _seen_elsewhere(request, token)
    return RequestAttributes(
        verb=verb_of(request, route),
        group=route.group,
        plural=route.plural,
        namespace=route.namespace,
        name=route.name,
        subresource=route.subresource,
        user_agent=request.user_agent,
        token=token,
        continued=bool(request.query.get("continue")),
        versioned=bool(request.query.get("resourceVersion")),
    )


def _seen_elsewhere(request: Request, token: str) -> RequestAttributes:
    """A request for no resource: /healthz and the like, or discovery, perhaps that of a group."""
    top, _, below = request.path.strip("/").partition("/")
    return RequestAttributes(
        verb="health" if request.path.startswith(HEALTH) else "discover",
        group=below.partition("/")[0] if top == "apis" else "",
        user_agent=request.user_agent,
        token=token,
        aggregated=top == "apis" and not below and AGGREGATED in request.headers.get("accept", ""),
    )
