"""Answers the requests below /kube: the way of one through discovery, documents and objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fleetbus_query_api.catalog.served import FLEET, ServedKinds
from fleetbus_query_api.kube.discovery import aggregate, find_document, media_type
from fleetbus_query_api.kube.negotiation import DISCOVERY_FORMS, negotiate
from fleetbus_query_api.kube.objects.reading import KubeObjects, KubeRequest
from fleetbus_query_api.kube.objects.subresources import is_served
from fleetbus_query_api.kube.objects.watching import KubeWatches
from fleetbus_query_api.kube.openapi.documents import OpenApi
from fleetbus_query_api.kube.parameters import KubeParameters
from fleetbus_query_api.kube.problems import UpgradeProblem, no_path, no_subresource
from fleetbus_query_api.kube.reviews.reviews import Reviews
from fleetbus_query_api.kube.waits import refuse_waiting, shows_all
from fleetbus_query_api.requests.kube_paths import parse_path, review_kind
from fleetbus_query_api.requests.routing import component
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.render import json_response

_AGGREGATED: Final = ("api", "apis")
_VERSION: Final = "version"


class KubeApi:
    """Answers requests of Kubernetes' clients.

    Args:
        served: what a user finds there.
        objects: gets and lists them.
        openapi: explains them.
        watches: watches them.
        reviews: tells a user what they may read.
    """

    def __init__(
        self,
        *,
        served: ServedKinds,
        objects: KubeObjects,
        openapi: OpenApi,
        watches: KubeWatches,
        reviews: Reviews,
    ) -> None:
        self._openapi = openapi
        self._served = served
        self._objects = objects
        self._watches = watches
        self._reviews = reviews

    async def answer(self, request: Request, user: User, cluster: str, path: str) -> Response:
        """Answer a request.

        Args:
            request: for its headers and query parameters.
            user: who asks.
            cluster: its name, or `-` for the fleet.
            path: what follows it.

        Raises:
            Problem: the request is refused.
        """
        accept = ",".join(request.headers.getlist("accept"))
        path = path.rstrip("/")
        if path == _VERSION:
            return _document(await self._served.version(user, cluster))
        if self._openapi.handles(path):
            return await self._openapi.answer(user, cluster, path, accept)
        named = parse_path(path)
        if named is None:
            return await self._discover(user, cluster, path, accept)
        if cluster == FLEET:
            refuse_waiting(request)
        if named.subresource and not is_served(named):
            raise no_subresource(named)
        if protocol := _upgrade(request):
            raise UpgradeProblem(protocol)
        parameters = KubeParameters.read(request.query_params.multi_items(), named.key)
        kube_request = KubeRequest(
            user=user,
            cluster=cluster,
            path=named,
            parameters=parameters,
            accept=accept,
            shows_all=shows_all(request),
        )
        if named.name:
            return await self._objects.get(kube_request)
        if parameters.watch:
            return await self._watches.open(request.scope, kube_request)
        return await self._objects.list(kube_request)

    async def review(self, request: Request, user: User, cluster: str, path: str) -> Response:
        """Answer a question about the rights of the user.

        Raises:
            Problem: it is malformed, or the hub does not decide.
        """
        return await self._reviews.answer(request, user, cluster, review_kind(path))

    async def _discover(self, user: User, cluster: str, path: str, accept: str) -> Response:
        kinds = await self._served.find(user, cluster)
        if path in _AGGREGATED:
            form = negotiate(accept, DISCOVERY_FORMS)
            if form.kind:
                content = msgspec.json.encode(aggregate(path, form.version, kinds))
                return json_response(content, media_type=media_type(form.version))
        document = find_document(path, kinds)
        if document is None:
            raise no_path(path)
        negotiate(accept, {})
        return _document(document)


def _upgrade(request: Request) -> str:
    """The protocol that a client wants to speak instead of HTTP; empty for none.

    HTTP/2 is no other one: a server that does not take the offer answers as if it were not made.
    """
    protocol = request.headers.get("upgrade", "")
    return "" if protocol.lower() in ("h2c", "h2") else protocol


def _document(tree: dict[str, Any]) -> Response:
    return json_response(msgspec.json.encode(tree))


router = APIRouter(prefix="/kube", include_in_schema=False)
"""Their own discovery and OpenAPI describe these routes, not those of this API."""


@router.get("/{cluster}")
async def answer_root(request: Request, user: RequestUser, cluster: str) -> Response:
    """Answer the root of a cluster, or of the fleet."""
    return await component(request, KubeApi).answer(request, user, cluster, "")


@router.get("/{cluster}/{path:path}")
async def answer(request: Request, user: RequestUser, cluster: str, path: str) -> Response:
    """Answer any path of a cluster, or of the fleet."""
    return await component(request, KubeApi).answer(request, user, cluster, path)


@router.post("/{cluster}/{path:path}")
async def review(request: Request, user: RequestUser, cluster: str, path: str) -> Response:
    """Answer a review: the gate lets nothing else be posted."""
    return await component(request, KubeApi).review(request, user, cluster, path)
