"""The routes of names, owners and children."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.catalog.catalog import Catalog
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.objects.listing import ObjectListing
from fleetbus_query_api.relations.owners import ObjectPath, Relations
from fleetbus_query_api.relations.readable_types import TypeReader
from fleetbus_query_api.relations.where import Where
from fleetbus_query_api.requests.parameters import (
    ChildrenParameters,
    NoParameters,
    ResourcePath,
    WhereParameters,
    refuse_repeats,
)
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import (
    ChildrenModel,
    OwnersModel,
    WhereModel,
    describe_answers,
)

_Namespace = Annotated[str, Path(description="`-` for an object without a namespace.")]


def relations_router(
    *, reader: SnapshotReader, catalog: Catalog, access: Access, listing: ObjectListing
) -> APIRouter:
    """Build the routes."""
    types = TypeReader(reader=reader, catalog=catalog, access=access)
    where = Where(reader=reader, types=types)
    relations = Relations(
        reader=reader, catalog=catalog, access=access, listing=listing, types=types
    )
    router = APIRouter(
        prefix="/fleet/v1", tags=["relations"], dependencies=[Depends(refuse_repeats)]
    )

    @router.get("/where", responses=describe_answers(WhereModel))
    async def find_name(
        request: Request, user: RequestUser, parameters: Annotated[WhereParameters, Query()]
    ) -> Response:
        """Find the objects of a name, of all kinds and in all clusters."""
        return await while_connected(request, where.find(user, parameters))

    @router.get(
        "/owners/{cluster}/{resource:path}/{namespace}/{name}",
        responses=describe_answers(OwnersModel, 404),
    )
    async def get_owners(
        request: Request,
        cluster: str,
        resource: ResourcePath,
        namespace: _Namespace,
        name: str,
        user: RequestUser,
        _: Annotated[NoParameters, Query()],
    ) -> Response:
        """Show who owns an object, up to the top, also in other clusters."""
        path = _path(cluster, resource, namespace, name)
        return await while_connected(request, relations.owners(user, path))

    @router.get(
        "/children/{cluster}/{resource:path}/{namespace}/{name}",
        responses=describe_answers(ChildrenModel, 404),
    )
    async def list_children(
        request: Request,
        cluster: str,
        resource: ResourcePath,
        namespace: _Namespace,
        name: str,
        user: RequestUser,
        parameters: Annotated[ChildrenParameters, Query()],
    ) -> Response:
        """List what an object owns, also in other clusters."""
        path = _path(cluster, resource, namespace, name)
        return await while_connected(request, relations.children(user, path, parameters))

    return router


def _path(cluster: str, resource: str, namespace: str, name: str) -> ObjectPath:
    return ObjectPath(cluster, resource, "" if namespace == "-" else namespace, name)
