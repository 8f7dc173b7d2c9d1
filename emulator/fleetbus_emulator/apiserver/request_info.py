"""A request for a resource, understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.write.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_emulator.apiserver.auth.access import User
    from fleetbus_emulator.apiserver.faults import Rule
    from fleetbus_emulator.apiserver.http.exchange import Request, Route
    from fleetbus_emulator.apiserver.types.served import Served

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "HEAD": "get"}


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request for a resource: verb, user, type, and the faults that apply to it."""

    request: Request
    user: User
    route: Route
    served: Served
    verb: str
    rules: Sequence[Rule]

    def target(self) -> Target:
        """The object it is about."""
        route = self.route
        return Target(self.served, route.namespace, route.name, route.subresource)


def verb_of(request: Request, route: Route) -> str:
    """The Kubernetes verb of a request."""
    if request.method in ("GET", "HEAD"):
        if route.prefixed_watch:
            return "watch"
        if route.name:
            return "get"
        return "watch" if request.flag("watch") else "list"
    if request.method == "DELETE":
        return "delete" if route.name else "deletecollection"
    return VERBS.get(request.method, request.method.lower())
