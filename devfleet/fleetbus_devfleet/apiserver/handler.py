"""From a request to an answer: route, check, call the right operation, encode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus_devfleet.apiserver import discovery, errors, openapi, reviews
from fleetbus_devfleet.apiserver.call import Call, unquoted, verb_of
from fleetbus_devfleet.apiserver.errors import ApiError, NotServed
from fleetbus_devfleet.apiserver.exchange import (
    Request,
    Response,
    Route,
    decode_body,
    json_response,
    parse_route,
    refusal,
    text_response,
)
from fleetbus_devfleet.apiserver.faults import Fail, Rule
from fleetbus_devfleet.apiserver.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetbus_devfleet.apiserver.served import ServedTypes
    from fleetbus_devfleet.apiserver.watch import Watch


class Handler:
    """Answers the requests to one cluster.

    Args:
        served: The types it serves.
        operations: The verbs.
        identities: Users by bearer token; None lets everybody in as admin.
        authorize: Decides who may do what.
    """

    def __init__(
        self,
        *,
        served: ServedTypes,
        operations: Operations,
        identities: dict[str, reviews.User] | None,
        authorize: reviews.Authorize,
    ) -> None:
        self._served = served
        self._operations = operations
        self._identities = identities
        self._authorize = authorize
        self._reviews = reviews.Reviews(identities, authorize)

    def handle(self, request: Request, rules: Sequence[Rule]) -> Response | Watch:
        """Answer a request; refusals are answers too."""
        try:
            user = self._authenticate(request)
            for rule in rules:
                if isinstance(rule.action, Fail):
                    raise rule.action.to_error()
            route = parse_route(request.path)
            if route is None:
                return self._answer_plain(request, user)
            return self._answer_resource(request, route, user, rules)
        except NotServed as error:
            return text_response(error.code, error.message)
        except ApiError as error:
            return refusal(error)

    # who ----------------------------------------------------------------------------------------

    def _authenticate(self, request: Request) -> reviews.User:
        if self._identities is None:
            return reviews.User("system:admin", ("system:masters", "system:authenticated"))
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return reviews.User(reviews.ANONYMOUS, ("system:unauthenticated",))
        user = self._identities.get(token.strip())
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def _check_access(self, access: reviews.Access) -> None:
        if not self._authorize(access):
            raise reviews.forbidden(access)

    # what ---------------------------------------------------------------------------------------

    def _answer_plain(self, request: Request, user: reviews.User) -> Response:
        if not request.path.startswith(discovery.HEALTH) and request.path != "/version":
            access = reviews.Access(user, request.method.lower(), "", request.path)
            if user.name == reviews.ANONYMOUS and not self._authorize(access):
                message = f'forbidden: User "{user.name}" cannot get path "{request.path}"'
                raise ApiError(403, "Forbidden", message)
        if request.path.startswith("/openapi/v3"):
            return openapi.answer(request.path, self._served)
        return discovery.answer(request, self._served)

    def _answer_resource(
        self, request: Request, route: Route, user: reviews.User, rules: Sequence[Rule]
    ) -> Response | Watch:
        verb = verb_of(request, route)
        if self._reviews.handles(route.group, route.version, route.plural):
            body = decode_body(request, "Review")
            return json_response(201, self._reviews.review(route.plural, body, user))
        served = self._served.find(route.group, route.version, route.plural)
        if served is None:
            raise NotServed
        self._check_access(
            reviews.Access(
                user=user,
                verb=verb,
                group=route.group,
                resource=route.plural,
                namespace=route.namespace,
                name=route.name,
                subresource=route.subresource,
            )
        )
        call = Call(request, unquoted(route), served, verb, rules)
        self._check_place(call)
        return self._operations.perform(call)

    def _check_place(self, call: Call) -> None:
        rtype, route = call.served.rtype, call.route
        if not rtype.namespaced and route.namespace is not None:
            raise NotServed
        lacks_namespace = rtype.namespaced and route.namespace is None
        if lacks_namespace and (route.name or call.verb == "create"):
            raise NotServed
        if call.verb in ("update", "patch") and not route.name:
            raise errors.bad_request("name must be provided")
