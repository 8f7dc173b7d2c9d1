"""The routes of clusters and of types."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from fleetbus.process.release import release
from fleetbus_query_api.catalog.cluster_listing import ClusterListing
from fleetbus_query_api.catalog.served import TypeListing
from fleetbus_query_api.requests.parameters import NoParameters
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import (
    ClusterDetailModel,
    ClusterListModel,
    TypeListModel,
    VersionModel,
    describe_answers,
)
from fleetbus_query_api.responses.render import json_response

_None = Annotated[NoParameters, Query()]

router = fleet_router("clusters")


@router.get("/clusters", responses=describe_answers(ClusterListModel))
async def list_clusters(request: Request, user: RequestUser, _: _None) -> Response:
    """List the clusters of the fleet."""
    return json_response(await component(request, ClusterListing).list(user))


@router.get("/clusters/{name}", responses=describe_answers(ClusterDetailModel, 404))
async def get_cluster(request: Request, name: str, user: RequestUser, _: _None) -> Response:
    """Show one cluster and what is known of its resources."""
    return json_response(await component(request, ClusterListing).get(user, name))


@router.get("/resources", responses=describe_answers(TypeListModel))
async def list_types(request: Request, user: RequestUser, _: _None) -> Response:
    """List the types of resources in the fleet, with their short names and categories."""
    return json_response(await component(request, TypeListing).list(user))


@router.get("/version", responses=describe_answers(VersionModel))
async def get_version(_user: RequestUser, _: _None) -> Response:
    """Show the release that answers."""
    return json_response(msgspec.json.encode(release()._asdict()))
