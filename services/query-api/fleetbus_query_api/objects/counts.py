"""Counts the objects that a user may list, by the values of their fields."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from fleetbus_query_api.fields.groups import MAX_KEYS, FieldGroups, render_value
from fleetbus_query_api.fields.order import parse_paths
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
    with_undecided,
)
from fleetbus_query_api.requests.parameters import CountParameters, ResourcePath
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.openapi import CountModel, describe_answers
from fleetbus_query_api.responses.render import render_freshness


class ObjectCounts:
    """Answers requests for counts, as JSON.

    Args:
        listing: finds what a user may list.
        groups: counts.
    """

    def __init__(self, *, listing: ObjectListing, groups: FieldGroups) -> None:
        self._listing = listing
        self._groups = groups

    async def count(self, user: User, resource: str, parameters: CountParameters) -> bytes:
        """Count the objects of a resource, over the clusters in which the user may list it.

        Raises:
            BadRequestProblem: a selector has too many requirements, or `by` is wrong.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        by = parse_paths("by", parameters.by, MAX_KEYS)
        names = [field.strip() for field in parameters.by.split(",")] if by else []
        scope = await self._listing.select(user, resource, parameters)
        result = await self._groups.count(scope.query, scope.fields, by, parameters.limit)
        groups = [
            {
                "values": dict(zip(names, map(render_value, values), strict=True)),
                "count": count,
            }
            for values, count in result.counts
        ]
        return msgspec.json.encode(
            {
                "total": result.total,
                "groups": groups,
                "groupCount": result.group_count,
                "others": result.others,
                "resourceVersion": str(result.version),
                "resource": describe_resource(scope.readable.resource),
                **render_freshness(with_undecided(scope.freshness, result.undecided)),
            }
        )


router = fleet_router("objects")


@router.get("/counts/{resource:path}", responses=describe_answers(CountModel, 404))
async def count_objects(
    request: Request,
    resource: ResourcePath,
    user: RequestUser,
    parameters: Annotated[CountParameters, Query()],
) -> Response:
    """Count the objects of a resource in all clusters, or in some, by any of their fields."""
    return await while_connected(
        request, component(request, ObjectCounts).count(user, resource, parameters)
    )
