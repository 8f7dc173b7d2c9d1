"""The routes of names, owners and children."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.relations.owners import ObjectPath, Relations
from fleetbus_query_api.relations.where import Where
from fleetbus_query_api.requests.parameters import (
    ChildrenParameters,
    NamespacePath,
    NoParameters,
    ResourcePath,
    WhereParameters,
)
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import (
    ChildrenModel,
    OwnersModel,
    WhereModel,
    describe_answers,
)

router = fleet_router("relations")


@router.get("/where", responses=describe_answers(WhereModel))
async def find_name(
    request: Request, user: RequestUser, parameters: Annotated[WhereParameters, Query()]
) -> Response:
    """Find the objects of a name, of all kinds and in all clusters."""
    return await while_connected(request, component(request, Where).find(user, parameters))


@router.get(
    "/owners/{cluster}/{resource:path}/{namespace}/{name}",
    responses=describe_answers(OwnersModel, 404),
)
async def get_owners(
    request: Request,
    cluster: str,
    resource: ResourcePath,
    namespace: NamespacePath,
    name: str,
    user: RequestUser,
    _: Annotated[NoParameters, Query()],
) -> Response:
    """Show who owns an object, up to the top, also in other clusters."""
    path = ObjectPath(cluster, resource, namespace, name)
    return await while_connected(request, component(request, Relations).owners(user, path))


@router.get(
    "/children/{cluster}/{resource:path}/{namespace}/{name}",
    responses=describe_answers(ChildrenModel, 404),
)
async def list_children(
    request: Request,
    cluster: str,
    resource: ResourcePath,
    namespace: NamespacePath,
    name: str,
    user: RequestUser,
    parameters: Annotated[ChildrenParameters, Query()],
) -> Response:
    """List what an object owns, also in other clusters."""
    path = ObjectPath(cluster, resource, namespace, name)
    return await while_connected(
        request, component(request, Relations).children(user, path, parameters)
    )
