"""The routes of queues and held deletions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from fleetbus_query_api.operations.held_deletions import HeldDeletions
from fleetbus_query_api.operations.models import HeldDeletionsModel, QueueListModel
from fleetbus_query_api.operations.queues import QueueListing
from fleetbus_query_api.requests.parameters import NoParameters
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import describe_answers
from fleetbus_query_api.responses.render import json_response

_None = Annotated[NoParameters, Query()]


router = fleet_router("operations")


@router.get("/queues", responses=describe_answers(QueueListModel, 403))
async def list_queues(request: Request, user: RequestUser, _: _None) -> Response:
    """List the workqueue of each controller: what waits, what runs, what is in quarantine."""
    return json_response(await component(request, QueueListing).list(user))


@router.get("/held-deletions", responses=describe_answers(HeldDeletionsModel, 403, 404))
async def list_held_deletions(request: Request, user: RequestUser, _: _None) -> Response:
    """List the deletions that wait for a person, and the fleet's budget of deletions."""
    return json_response(await component(request, HeldDeletions).list(user))
