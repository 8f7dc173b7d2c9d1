"""Answers which objects of the same name differ between clusters."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from fleetbus.snapshot import ListQuery
from fleetbus_proto.keys import split_object_key
from fleetbus_query_api.catalog.readable import Selection
from fleetbus_query_api.fields.kubernetes_names import translate_fields
from fleetbus_query_api.fields.outliers import FieldOutliers, Outlier
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
    members_of,
    read_selectors,
    with_undecided,
)
from fleetbus_query_api.requests.parameters import (
    OutlierParameters,
    ResourcePath,
    refuse_repeats,
)
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.openapi import OutlierListModel, describe_answers
from fleetbus_query_api.responses.render import render_freshness


class ObjectOutliers:
    """Answers requests for outliers, as JSON.

    Args:
        listing: finds what a user may list.
        outliers: compares.
    """

    def __init__(self, *, listing: ObjectListing, outliers: FieldOutliers) -> None:
        self._listing = listing
        self._outliers = outliers

    async def list(self, user: User, resource: str, asked: OutlierParameters) -> bytes:
        """Compare the objects of a resource, over the clusters in which the user may list it.

        Raises:
            BadRequestProblem: a selector has too many requirements, or there are too many names.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed, or of another question.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        fields, labels = read_selectors(asked.field_selector, asked.label_selector)
        wanted = Selection(
            verb="list", resource=resource, clusters=asked.cluster, namespace=asked.namespace
        )
        readable = await self._listing.find(user, wanted)
        # Freshness first: what is compared after it is at least as fresh as it says (rule A4).
        freshness = await self._listing.freshness(readable, asked.namespace)
        query = ListQuery(
            clusters=members_of(readable),
            resource=readable.known.key,
            namespace=asked.namespace or None,
            name=asked.name or None,
            labels=labels or None,
            limit=asked.limit,
            continue_token=asked.continue_token,
        )
        found = await self._outliers.find(query, translate_fields(readable.known.key, fields))
        return msgspec.json.encode(
            {
                "items": list(map(_render, found.found)),
                "continue": found.continue_token,
                "remaining": found.remaining,
                "resourceVersion": str(found.version),
                "resource": describe_resource(readable.known),
                **render_freshness(with_undecided(freshness, found.undecided)),
            }
        )


def _render(outlier: Outlier) -> dict[str, Any]:
    namespace, name = split_object_key(outlier.key.decode())
    owner = outlier.owner
    named = {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid} if owner else {}
    variants = sorted(outlier.clusters.items(), key=lambda one: (-len(one[1]), one[0]))
    return {
        "namespace": namespace,
        "name": name,
        "variants": [{"digest": digest, "clusters": clusters} for digest, clusters in variants],
        "differences": outlier.differences(),
        "owner": owner and {"kind": owner.kind, "cluster": owner.cluster_name, **named},
    }


def outliers_router(outliers: ObjectOutliers) -> APIRouter:
    """Build the route of outliers."""
    router = APIRouter(prefix="/fleet/v1", tags=["objects"], dependencies=[Depends(refuse_repeats)])

    @router.get("/outliers/{resource:path}", responses=describe_answers(OutlierListModel, 404, 410))
    async def list_outliers(
        request: Request,
        resource: ResourcePath,
        user: RequestUser,
        asked: Annotated[OutlierParameters, Query()],
    ) -> Response:
        """List objects of the same namespace and name that differ between clusters, and where."""
        return await while_connected(request, outliers.list(user, resource, asked))

    return router
