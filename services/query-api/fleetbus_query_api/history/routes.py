"""The routes of the past."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from fleetbus_query_api.history.changes import FleetChanges
from fleetbus_query_api.history.deleted import DeletedObjects
from fleetbus_query_api.history.models import (
    ChangesModel,
    DeletedListModel,
    HistoryModel,
    TimelineModel,
)
from fleetbus_query_api.history.parameters import (
    ChangesParameters,
    DeletedParameters,
    TimelineParameters,
)
from fleetbus_query_api.history.timeline import Timelines
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.past.window import Windows, render_window
from fleetbus_query_api.relations.owners import ObjectPath
from fleetbus_query_api.requests.parameters import NamespacePath, NoParameters, ResourcePath
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import describe_answers
from fleetbus_query_api.responses.render import json_response

router = fleet_router("history")


@router.get("/history", responses=describe_answers(HistoryModel))
async def get_window(
    request: Request, user: RequestUser, _: Annotated[NoParameters, Query()]
) -> Response:
    """Show how far back the past of the fleet is known."""
    del user
    return json_response(
        msgspec.json.encode({"window": render_window(await component(request, Windows).read())})
    )


@router.get("/deleted/{resource:path}", responses=describe_answers(DeletedListModel, 404))
async def list_deleted(
    request: Request,
    resource: ResourcePath,
    user: RequestUser,
    parameters: Annotated[DeletedParameters, Query()],
) -> Response:
    """List what was deleted, with the last state of each object."""
    return await while_connected(
        request, component(request, DeletedObjects).list(user, resource, parameters)
    )


@router.get(
    "/timeline/{cluster}/{resource:path}/{namespace}/{name}",
    responses=describe_answers(TimelineModel, 404),
)
async def get_timeline(
    request: Request,
    cluster: str,
    resource: ResourcePath,
    namespace: NamespacePath,
    name: str,
    user: RequestUser,
    parameters: Annotated[TimelineParameters, Query()],
) -> Response:
    """Show what happened to one object: changes, runs of controllers, distribution."""
    path = ObjectPath(cluster, resource, namespace, name)
    return await while_connected(
        request, component(request, Timelines).show(user, path, parameters)
    )


@router.get("/changes", responses=describe_answers(ChangesModel, 404, 410))
async def list_changes(
    request: Request, user: RequestUser, parameters: Annotated[ChangesParameters, Query()]
) -> Response:
    """List what changed in the fleet between two points in time, grouped by change."""
    return await while_connected(request, component(request, FleetChanges).list(user, parameters))
