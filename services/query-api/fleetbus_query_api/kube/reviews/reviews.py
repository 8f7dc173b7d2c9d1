"""Answers what kubectl and its like ask about their own rights, by POST (rules A1, A2, A7).

`kubectl auth can-i`, k9s and Lens look before they list. A decision is that of the request itself:
`authorise` makes it, and nothing is written. Whether a cluster or a type exists plays no part.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fleetbus_proto.resources import CORE
from fleetbus_query_api.access.authorise import Access, Right
from fleetbus_query_api.catalog.catalog import Catalog
from fleetbus_query_api.catalog.kinds import VERBS
from fleetbus_query_api.catalog.served import FLEET
from fleetbus_query_api.kube.negotiation import negotiate
from fleetbus_query_api.kube.reviews.bodies import ReviewSpec, read_spec
from fleetbus_query_api.limits.request_body import read_body
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import BadRequestProblem
from fleetbus_query_api.responses.render import json_response

_MAX_BODY: Final = 16 * 1024
_MAX_NAME: Final = 253
_CREATED: Final = 201
_ANY: Final = "*"
_OPEN_PATHS: Final = ("/api", "/apis", "/openapi", "/version")
_READ_ONLY: Final = "the fleet is read-only here, and has no subresources"
_ONE_BY_ONE: Final = "ask for one verb and one resource, not for all at once"
_NOT_LISTED: Final = (
    "rights are not listed here: ask for one, as with `kubectl auth can-i list pods`"
)


class Reviews:
    """Answers reviews.

    Args:
        catalog: knows the clusters of the fleet.
        access: decides.
    """

    def __init__(self, *, catalog: Catalog, access: Access) -> None:
        self._catalog = catalog
        self._access = access

    async def answer(self, request: Request, user: User, cluster: str, kind: str) -> Response:
        """Answer a review.

        Args:
            request: has the review as its body.
            user: who asks, for themselves.
            cluster: its name, or `-` for the fleet: any cluster of it.
            kind: of review.

        Raises:
            Problem: it is malformed, or the hub does not decide.
        """
        negotiate(",".join(request.headers.getlist("accept")), {})
        body = await read_body(request, "a review", _MAX_BODY)
        spec = read_spec(body, request.headers.get("content-type", ""), kind)
        match kind:
            case "SelfSubjectAccessReview":
                content = {"spec": spec, "status": await self._decide(user, cluster, spec)}
            case "SelfSubjectRulesReview":
                content = {"spec": spec, "status": _RULES}
            case _:
                content = {"status": {"userInfo": _describe(user)}}
        group = "authentication" if kind == "SelfSubjectReview" else "authorization"
        head: dict[str, Any] = {"kind": kind, "apiVersion": f"{group}.k8s.io/v1", "metadata": {}}
        return json_response(msgspec.json.encode({**head, **content}), status=_CREATED)

    async def _decide(self, user: User, cluster: str, spec: ReviewSpec) -> dict[str, Any]:
        attributes, path = spec.resource_attributes, spec.non_resource_attributes
        if path is not None:
            first = "/" + path.path.removeprefix("/").partition("/")[0]
            return {"allowed": path.verb == "get" and first in _OPEN_PATHS}
        if attributes is None:
            raise BadRequestProblem("spec has neither resourceAttributes nor nonResourceAttributes")
        if len(max(msgspec.structs.astuple(attributes), key=len)) > _MAX_NAME:
            raise BadRequestProblem(f"a name has more than {_MAX_NAME} characters")
        if (
            _ANY in (attributes.verb, attributes.group, attributes.resource)
            or not attributes.resource
        ):
            return {"allowed": False, "reason": _ONE_BY_ONE}
        if attributes.verb not in VERBS or attributes.subresource:
            return {"allowed": False, "reason": _READ_ONLY}
        right = Right(
            attributes.verb,
            attributes.group or CORE,
            attributes.resource,
            attributes.namespace,
            attributes.name,
        )
        asks_fleet = cluster == FLEET
        clusters = sorted((await self._catalog.fleet()).clusters) if asks_fleet else [cluster]
        return {"allowed": bool(await self._access.authorise(user, right, clusters))}


_RULES: Final = {
    "resourceRules": [],
    "nonResourceRules": [
        {"verbs": ["get"], "nonResourceURLs": [path, f"{path}/*"]} for path in _OPEN_PATHS
    ],
    "incomplete": True,
    "evaluationError": _NOT_LISTED,
}


def _describe(user: User) -> dict[str, Any]:
    fields = user.to_review()
    return {"username": fields.pop("user", "system:anonymous"), **fields}
