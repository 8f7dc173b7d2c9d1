"""The routes below /kube. Their own discovery and OpenAPI describe them, not that of this API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from fleetbus_query_api.kube.api import KubeApi
from fleetbus_query_api.requests.user import RequestUser


def kube_router(api: KubeApi) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/kube", include_in_schema=False)

    @router.get("/{cluster}")
    async def answer_root(request: Request, user: RequestUser, cluster: str) -> Response:
        """Answer the root of a cluster, or of the fleet."""
        return await api.answer(request, user, cluster, "")

    @router.get("/{cluster}/{path:path}")
    async def answer(request: Request, user: RequestUser, cluster: str, path: str) -> Response:
        """Answer any path of a cluster, or of the fleet."""
        return await api.answer(request, user, cluster, path)

    @router.post("/{cluster}/{path:path}")
    async def review(request: Request, user: RequestUser, cluster: str, path: str) -> Response:
        """Answer a review: the gate lets nothing else be posted."""
        return await api.review(request, user, cluster, path)

    return router
