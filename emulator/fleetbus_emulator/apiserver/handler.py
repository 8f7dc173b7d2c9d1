"""Handling of requests: route, check, call the operation, encode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver import discovery, errors, openapi
from fleetbus_emulator.apiserver.access_control import AccessControl, requested_access
from fleetbus_emulator.apiserver.auth.access import Access, User
from fleetbus_emulator.apiserver.auth.reviews import is_review
from fleetbus_emulator.apiserver.errors import ApiError, NotServed, PlainError
from fleetbus_emulator.apiserver.faults import Fail, GroupDown, Rule
from fleetbus_emulator.apiserver.http.exchange import (
    Request,
    Response,
    Route,
    parse_route,
    refusal,
    text_response,
)
from fleetbus_emulator.apiserver.operations import Operations
from fleetbus_emulator.apiserver.request_info import RequestInfo, verb_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_emulator.apiserver.read.watch import Watch
    from fleetbus_emulator.apiserver.types.served import ServedTypes


class Handler:
    """Answers the requests to one cluster.

    Args:
        served: The types it serves.
        operations: The verbs.
        access_control: Authenticates and authorizes requests.
    """

    def __init__(
        self, *, served: ServedTypes, operations: Operations, access_control: AccessControl
    ) -> None:
        self._served = served
        self._operations = operations
        self._access_control = access_control

    def handle(self, request: Request, rules: Sequence[Rule]) -> Response | Watch:
        """Answer a request; refusals are answers too."""
        try:
            user = self._access_control.user_of(request)
            for rule in rules:
                if isinstance(rule.action, Fail):
                    raise rule.action.to_error()
            route = parse_route(request.path)
            if any(isinstance(rule.action, GroupDown) for rule in rules):
                return self._answer_down(request, user, rules)
            if route is None:
                return self._answer_plain(request, user)
            return self._answer_resource(request, route, user, rules)
        except PlainError as error:
            return text_response(error.code, error.message)
        except ApiError as error:
            return refusal(error)
        except RecursionError:  # writes commit last, so nothing is half done
            return refusal(errors.bad_request("exceeded max depth"))

    def _answer_plain(self, request: Request, user: User) -> Response:
        self._access_control.check(Access(user, request.method.lower(), path=request.path))
        if openapi.handles(request.path):
            return openapi.answer(request, self._served)
        return discovery.answer(request, self._served)

    def _answer_down(self, request: Request, user: User, rules: Sequence[Rule]) -> Response:
        if request.path.strip("/") != "apis":
            return text_response(503, "service unavailable\n")
        down = {rule.match.group for rule in rules if isinstance(rule.action, GroupDown)}
        response = self._answer_plain(discovery.unconditional(request), user)
        return discovery.with_stale(request, response, down)

    def _answer_resource(
        self, request: Request, route: Route, user: User, rules: Sequence[Rule]
    ) -> Response | Watch:
        verb = verb_of(request, route)
        self._access_control.check(requested_access(request, route, verb, user))
        if is_review(route):
            return self._access_control.reviews.answer(request, route, user)
        served = self._served.find(route.group, route.version, route.plural)
        if served is None:
            raise discovery.unknown_path(request.path)
        info = RequestInfo(request, user, route, served, verb, rules)
        self._check_place(info)
        return self._operations.perform(info)

    def _check_place(self, info: RequestInfo) -> None:
        rtype, route = info.served.rtype, info.route
        if not rtype.namespaced and route.namespace is not None:
            raise NotServed
        lacks_namespace = rtype.namespaced and route.namespace is None
        if lacks_namespace and (route.name or info.verb == "create"):
            raise NotServed
        if info.verb in ("update", "patch") and not route.name:
            raise errors.bad_request("name must be provided")
