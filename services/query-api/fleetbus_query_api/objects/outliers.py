"""Answers which objects of the same name differ between clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from fleetbus_proto.keys import split_object_key
from fleetbus_query_api.fields.outliers import FieldOutliers, Outlier
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
    with_undecided,
)
from fleetbus_query_api.requests.parameters import (
    OutlierParameters,
    ResourcePath,
)
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.openapi import OutlierListModel, describe_answers
from fleetbus_query_api.responses.render import render_freshness

_UNDESCRIBED: Final = "objects too large for this page are missing in its differences: lower limit"


class ObjectOutliers:
    """Answers requests for outliers, as JSON.

    Args:
        listing: finds what a user may list.
        outliers: compares.
        slices: run the descriptions.
    """

    def __init__(
        self, *, listing: ObjectListing, outliers: FieldOutliers, slices: TimeSlices
    ) -> None:
        self._listing = listing
        self._outliers = outliers
        self._slices = slices

    async def list(self, user: User, resource: str, parameters: OutlierParameters) -> bytes:
        """Compare the objects of a resource, over the clusters in which the user may list it.

        Raises:
            BadRequestProblem: a selector has too many requirements, or there are too many names.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        scope = await self._listing.select(user, resource, parameters)
        query = replace(
            scope.query, limit=parameters.limit, continue_token=parameters.continue_token
        )
        result = await self._outliers.find(query, scope.fields)
        freshness = with_undecided(scope.freshness, result.undecided)
        freshness = with_undecided(freshness, result.undescribed, _UNDESCRIBED)
        items: list[dict[str, Any]] = []
        await self._slices.run(lambda outlier: items.append(_render(outlier)), result.items)
        return msgspec.json.encode(
            {
                "items": items,
                "continue": result.continue_token,
                "remaining": result.remaining,
                "resourceVersion": str(result.version),
                "resource": describe_resource(scope.readable.resource),
                **render_freshness(freshness),
            }
        )


def _render(outlier: Outlier) -> dict[str, Any]:
    namespace, name = split_object_key(outlier.key.decode())
    owner = outlier.owner
    named = {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid} if owner else {}
    variants = sorted(outlier.clusters.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        "namespace": namespace,
        "name": name,
        "variants": [{"digest": digest, "clusters": clusters} for digest, clusters in variants],
        "differences": outlier.differences(),
        "owner": owner and {"kind": owner.kind, "cluster": owner.cluster_name, **named},
    }


router = fleet_router("objects")


@router.get("/outliers/{resource:path}", responses=describe_answers(OutlierListModel, 404, 410))
async def list_outliers(
    request: Request,
    resource: ResourcePath,
    user: RequestUser,
    parameters: Annotated[OutlierParameters, Query()],
) -> Response:
    """List objects of the same namespace and name that differ between clusters, and where."""
    return await while_connected(
        request, component(request, ObjectOutliers).list(user, resource, parameters)
    )
