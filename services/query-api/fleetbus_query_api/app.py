"""The routes of the query API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request
from redis.asyncio import Redis
from starlette.responses import Response

from fleetbus.archive import Archive
from fleetbus.snapshot import SnapshotReader
from fleetbus_query_api.access.audit import Audit, AuditedAccess
from fleetbus_query_api.access.authenticate import Authentication, Authenticator
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.catalog.catalog import Catalog
from fleetbus_query_api.catalog.cluster_listing import ClusterListing
from fleetbus_query_api.catalog.routes import router as cluster_router
from fleetbus_query_api.catalog.served import ServedKinds, TypeListing
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.fields.groups import FieldGroups
from fleetbus_query_api.fields.outliers import FieldOutliers
from fleetbus_query_api.fields.pages import FieldPages
from fleetbus_query_api.fields.source import FieldSource
from fleetbus_query_api.fields.tables import FieldTables
from fleetbus_query_api.history.actions import Actions
from fleetbus_query_api.history.changes import FleetChanges
from fleetbus_query_api.history.deleted import DeletedObjects
from fleetbus_query_api.history.routes import router as history_router
from fleetbus_query_api.history.runs import RunReads
from fleetbus_query_api.history.timeline import Timelines
from fleetbus_query_api.kube.api import KubeApi
from fleetbus_query_api.kube.api import router as kube_router
from fleetbus_query_api.kube.objects.reading import KubeObjects
from fleetbus_query_api.kube.objects.watching import KubeWatches
from fleetbus_query_api.kube.openapi.documents import OpenApi
from fleetbus_query_api.kube.reviews.reviews import Reviews
from fleetbus_query_api.limits.connected import while_connected
from fleetbus_query_api.limits.gate import RequestGate
from fleetbus_query_api.limits.large_answers import ListConcurrency
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.limits.user_limits import UserLimits
from fleetbus_query_api.membership.routes import Membership
from fleetbus_query_api.membership.routes import router as membership_router
from fleetbus_query_api.objects.counts import ObjectCounts
from fleetbus_query_api.objects.counts import router as counts_router
from fleetbus_query_api.objects.listing import ObjectListing
from fleetbus_query_api.objects.mro_v1 import NewestObjects
from fleetbus_query_api.objects.mro_v1 import router as v1_router
from fleetbus_query_api.objects.outliers import ObjectOutliers
from fleetbus_query_api.objects.outliers import router as outliers_router
from fleetbus_query_api.operations.held_deletions import HeldDeletions
from fleetbus_query_api.operations.queues import QueueListing
from fleetbus_query_api.operations.routes import router as operations_router
from fleetbus_query_api.page.files import Page, PageFiles
from fleetbus_query_api.past.connection import HistoryConnection
from fleetbus_query_api.past.pages import PastPages
from fleetbus_query_api.past.source import PastSources
from fleetbus_query_api.past.window import Windows
from fleetbus_query_api.relations.owners import Relations
from fleetbus_query_api.relations.readable_types import TypeReader
from fleetbus_query_api.relations.routes import router as relations_router
from fleetbus_query_api.relations.where import Where
from fleetbus_query_api.requests.parameters import (
    ListParameters,
    NamespacePath,
    NoParameters,
    ResourcePath,
)
from fleetbus_query_api.requests.routing import add_components, component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import (
    ListModel,
    ObjectModel,
    describe_answers,
)
from fleetbus_query_api.responses.problem import add_problem_handlers
from fleetbus_query_api.responses.render import json_response
from fleetbus_query_api.settings import QueryApiSettings
from fleetbus_query_api.tables.stream import NDJSON, TableListing
from fleetbus_query_api.watch.broadcaster import Broadcaster
from fleetbus_query_api.watch.server_sent import router as events_router
from fleetbus_query_api.watch.stream import Watches

_DESCRIPTION: Final = """\
The objects of all clusters, as the snapshot has them. Read-only: anything but GET answers 405,
except `POST /v1/join` and `DELETE /v1/unjoin`, which write to the hub with your own rights there.

Every answer says how fresh it is: `freshness` by cluster, and `incomplete` with the clusters whose
part may be missing objects or outdated.

Every request needs a bearer token, except for the files of the page at `/`, and returns only what
its user may read: objects you may not read return 404.

A resource is named as with kubectl: `pods`, `po`, `deployments.apps`, `v1/pods`,
`apps/v1/deployments`, `networking.k8s.io/v1/ingresses`.
"""

_None = Annotated[NoParameters, Query()]


def _with_table(answers: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Add the JSON lines of `view=table`; OpenAPI has no schema for lines that differ."""
    lines = {"schema": {"type": "string"}, "example": '{"columns":[…]}\n["eu1","prod","web"]\n'}
    return {**answers, 200: {**answers[200], "content": {NDJSON: lines}}}


router = fleet_router("objects")


@router.get(
    "/resources/{resource:path}",
    responses=_with_table(describe_answers(ListModel, 404, 410)),
)
async def list_objects(
    request: Request,
    resource: ResourcePath,
    user: RequestUser,
    parameters: Annotated[ListParameters, Query()],
) -> Response:
    """List the objects of a resource in all clusters, or in some."""
    if parameters.view == "table":
        return await component(request, TableListing).list(user, resource, parameters)
    return await while_connected(
        request, component(request, ObjectListing).list(user, resource, parameters)
    )


@router.get(
    "/objects/{cluster}/{resource:path}/{namespace}/{name}",
    responses=describe_answers(ObjectModel, 404),
)
async def get_object(
    request: Request,
    cluster: str,
    resource: ResourcePath,
    namespace: NamespacePath,
    name: str,
    user: RequestUser,
    _: _None,
) -> Response:
    """Show one object."""
    return json_response(
        await component(request, ObjectListing).get(user, cluster, resource, namespace, name)
    )


_ROUTERS: Final = (
    cluster_router,
    router,
    counts_router,
    outliers_router,
    relations_router,
    operations_router,
    history_router,
    v1_router,
    events_router,
    membership_router,
    kube_router,
)


@dataclass(frozen=True, slots=True)
class HistorySources:
    """The sources of answers about the past.

    Attributes:
        connection: to NATS.
        runs: the last runs of controllers.
        archive: events that left the stream; None if there is none.
    """

    connection: HistoryConnection
    runs: RunReads
    archive: Archive | None = None


def create_app(
    *,
    reader: SnapshotReader,
    redis: Redis,
    settings: QueryApiSettings,
    access: Access,
    authenticator: Authenticator | None,
    tail: FeedTail,
    membership: Membership,
    history: HistorySources,
) -> FastAPI:
    """Build the application over one snapshot.

    Args:
        reader: the snapshot.
        redis: the store, with queues and budgets.
        settings: the limits of one user.
        access: decides what a user may read.
        authenticator: knows the users of tokens; None if everybody is let in.
        tail: of the snapshot's feed; its owner runs it.
        membership: joins and unjoins clusters.
        history: the sources of answers about the past; its owner runs the connection.
    """
    if authenticator is not None:
        access = AuditedAccess(access)
    catalog = Catalog(reader)
    slices = TimeSlices()
    source = FieldSource(
        reader=reader,
        tables=FieldTables(
            reader=reader,
            tail=tail,
            slices=slices,
            most_bytes=settings.columns_bytes,
        ),
        slices=slices,
    )
    windows = Windows(connection=history.connection, reader=reader, archive=history.archive)
    listing = ObjectListing(
        reader=reader,
        catalog=catalog,
        pages=FieldPages(reader=reader, source=source, slices=slices),
        past=PastSources(pages=PastPages(reader=reader, slices=slices), windows=windows),
        slices=slices,
        access=access,
    )
    app = FastAPI(
        title="fleetbus query API",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,  # their scripts come from another server
        redoc_url=None,
        redirect_slashes=False,
        routes=[route for router in _ROUTERS for route in router.routes],
    )
    watches = Watches(Broadcaster(tail=tail, listing=listing, slices=slices, settings=settings))
    app.state.watches = watches
    served = ServedKinds(reader=reader, catalog=catalog, access=access)
    types = TypeReader(reader=reader, catalog=catalog, access=access)
    objects = KubeObjects(reader=reader, listing=listing, slices=slices)
    outliers = FieldOutliers(reader=reader, source=source, slices=slices)
    add_components(
        app,
        ClusterListing(reader=reader, access=access),
        TypeListing(served=served),
        listing,
        TableListing(listing=listing, slices=slices),
        ObjectCounts(listing=listing, groups=FieldGroups(source=source, slices=slices)),
        ObjectOutliers(listing=listing, outliers=outliers, slices=slices),
        Where(reader=reader, types=types),
        Relations(reader=reader, catalog=catalog, access=access, listing=listing, types=types),
        QueueListing(redis=redis, access=access),
        HeldDeletions(reader=reader, redis=redis, access=access),
        windows,
        DeletedObjects(
            reader=reader, listing=listing, windows=windows, access=access, slices=slices
        ),
        Timelines(
            reader=reader,
            listing=listing,
            windows=windows,
            actions=Actions(access=access, catalog=catalog, runs=history.runs),
            slices=slices,
        ),
        FleetChanges(reader=reader, types=types, windows=windows, slices=slices, access=access),
        NewestObjects(reader=reader, listing=listing),
        watches,
        membership,
        KubeApi(
            served=served,
            objects=objects,
            openapi=OpenApi(served=served, listing=listing, reader=reader),
            watches=KubeWatches(watches=watches, objects=objects),
            reviews=Reviews(catalog=catalog, access=access),
        ),
    )
    add_problem_handlers(app)
    app.add_middleware(ListConcurrency)
    app.add_middleware(UserLimits, settings=settings)
    app.add_middleware(Authentication, authenticator=authenticator, settings=settings)
    if authenticator is not None:
        app.add_middleware(Audit)
    app.add_middleware(Page, files=PageFiles.load())  # before whoever asks for a token
    app.add_middleware(RequestGate, only_loopback=authenticator is None)
    return app
