"""Events as a stream of server-sent events, for browsers and the command line (rules A4 to A6)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec
from fastapi import Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry, Freshness
from fleetbus_query_api.catalog.readable import Readable, Selection
from fleetbus_query_api.fields.kubernetes_names import translate_fields
from fleetbus_query_api.limits.user_limits import identify_user
from fleetbus_query_api.objects.listing import ObjectListing
from fleetbus_query_api.requests.parameters import (
    MAX_SELECTOR,
    Names,
    require_few,
)
from fleetbus_query_api.requests.routing import component, fleet_router
from fleetbus_query_api.requests.user import RequestUser
from fleetbus_query_api.responses.openapi import ItemModel, describe_answers
from fleetbus_query_api.responses.problem import BadRequestProblem, Problem
from fleetbus_query_api.responses.render import render_freshness, render_item
from fleetbus_query_api.watch.events import ADDED
from fleetbus_query_api.watch.requests import WatchRequest
from fleetbus_query_api.watch.response import WatchResponse
from fleetbus_query_api.watch.selection import Selector
from fleetbus_query_api.watch.stream import Watches

EVENT_STREAM: Final = "text/event-stream"
_NAME: Final = r"^[^/\x00-\x1f\x7f]*$"
_VERSION: Final = r"^[0-9]{0,19}$"
_LOOK_EVERY: Final = timedelta(seconds=5)
_HEARTBEAT_SECONDS: Final = 15.0
_EXAMPLE: Final = (
    'id: 1790000000000001\nevent: modified\ndata: {"cluster":"eu1","object":{…}}\n\n'
    'event: freshness\ndata: {"freshness":{…},"incomplete":["us1"]}\n\n'
)


class EventParameters(BaseModel):
    """Whose changes to send."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resource: str = Field(
        min_length=1, max_length=512, description="Like `pods`, `deploy` or `apps/v1/deployments`."
    )
    cluster: Names = Field(
        default=[],
        max_length=1000,
        description="Only these clusters: repeat it, or separate names by commas.",
    )
    namespace: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only this namespace."
    )
    name: str = Field(
        default="", max_length=253, pattern=_NAME, description="Only objects of this name."
    )
    label_selector: str = Field(
        default="", alias="labelSelector", max_length=MAX_SELECTOR, description="As in a list."
    )
    field_selector: str = Field(
        default="", alias="fieldSelector", max_length=MAX_SELECTOR, description="As in a list."
    )
    resource_version: str = Field(
        default="",
        alias="resourceVersion",
        pattern=_VERSION,
        description="Send what changed after this version of the snapshot, which a list or an "
        "earlier event has; 0 sends the present state first. Without it, and without the header "
        "Last-Event-ID, only changes from now on.",
    )


class _EventStream(Response):
    """The class of the answers, for OpenAPI."""

    media_type = EVENT_STREAM


class _ServerSent:
    """Encodes events as server-sent events."""

    key = EVENT_STREAM

    def event(self, event_type: str, entry: Entry) -> bytes:
        """An event of an object."""
        return _block(event_type.lower(), render_item(entry), entry.counter)

    def listed(self, entry: Entry) -> bytes:
        """An object of the present state; who is cut off within it begins with it again."""
        return _block(ADDED.lower(), render_item(entry), 0)

    def bookmark(self, version: int, *, ends_initial: bool) -> bytes:
        """A position."""
        return _block("bookmark", msgspec.json.encode({"initial": ends_initial}), version)

    def error(self, problem: Problem) -> bytes:
        """The end of the stream."""
        content = {"type": "about:blank", "status": problem.status, "detail": str(problem)}
        return _block("error", msgspec.json.encode(content))


class FreshnessReports:
    """Sends the freshness when a cluster becomes incomplete, or complete again (rule A4).

    Args:
        listing: reads it.
        namespace: the only one that is watched; empty for all.
    """

    interval = _LOOK_EVERY

    def __init__(self, listing: ObjectListing, namespace: str) -> None:
        self._listing = listing
        self._namespace = namespace
        self._last: Mapping[str, tuple[str, bool]] | None = None
        self._sent_at = time.monotonic()

    async def render(self, readable: Readable) -> bytes:
        """The freshness if it has changed; else, now and then, a comment."""
        freshness = await self._listing.freshness(readable, self._namespace)
        states = {name: _state_of(state) for name, state in freshness.items()}
        if states != self._last:
            last, self._last = self._last or {}, states
            self._sent_at = time.monotonic()
            rendered = render_freshness(freshness)
            rendered["freshness"] = {
                name: state
                for name, state in rendered["freshness"].items()
                if states[name] != last.get(name)
            }
            return _block("freshness", msgspec.json.encode(rendered))
        if time.monotonic() - self._sent_at < _HEARTBEAT_SECONDS:
            return b""
        self._sent_at = time.monotonic()
        return b": still watching\n\n"


def _read_version(text: str) -> str:
    if text.isascii() and text.isdigit() and len(text) < 20:  # noqa: PLR2004
        return text
    raise BadRequestProblem(f"header Last-Event-ID: {text[:30]!r} is not the id of an event")


def _block(name: str, data: bytes, version: int | None = None) -> bytes:
    head = b"" if version is None else b"id: %d\n" % version
    # A line break ends the data; in JSON it is only space between the parts.
    return head + b"event: %b\ndata: %b\n\n" % (
        name.encode(),
        data.replace(b"\r", b" ").replace(b"\n", b" "),
    )


def _state_of(freshness: Freshness) -> tuple[str, bool]:
    return str(freshness.state), freshness.is_complete


def _describe() -> dict[int | str, dict[str, Any]]:
    answers = describe_answers(ItemModel, 404)
    content = {EVENT_STREAM: {"schema": {"type": "string"}, "example": _EXAMPLE}}
    return {**answers, 200: {"description": "A stream of events", "content": content}}


router = fleet_router("objects")


@router.get("/events", responses=_describe(), response_class=_EventStream)
async def stream_events(
    request: Request,
    user: RequestUser,
    parameters: Annotated[EventParameters, Query()],
    last_event_id: Annotated[
        str,
        Header(
            alias="Last-Event-ID",
            max_length=64,
            description="`id` of the last event: what changed after it is sent.",
        ),
    ] = "",
) -> Response:
    """Stream the changes of a resource as server-sent events.

    `added`, `modified` and `deleted` have an object as in a list, and the version as `id`; a
    `deleted` has the last state, or what is known of it. Objects of the present state have the
    `id` 0: who is cut off among them gets all of them again. `bookmark` has an `id` only.
    `freshness` tells which clusters are incomplete, and comes again when that changes. `error`
    is the last event: after status 410 list again, and go on from the version of the list.
    """
    watches, listing = component(request, Watches), component(request, ObjectListing)
    labels = LabelSelector.parse(parameters.label_selector)
    fields = FieldSelector.parse(parameters.field_selector)
    require_few("labelSelector", len(labels.requirements))
    require_few("fieldSelector", len(fields.requirements))
    selection = Selection(
        verb="watch",
        resource=parameters.resource,
        clusters=parameters.cluster,
        namespace=parameters.namespace,
    )
    resource = (await listing.find(user, selection)).resource
    fields = translate_fields(resource.key, fields)
    version = _read_version(last_event_id) if last_event_id else parameters.resource_version
    watch = await watches.open(
        WatchRequest(
            find=lambda: listing.find(user, selection),
            user=identify_user(request.scope),
            encoder=_ServerSent(),
            selector=Selector.of(parameters.namespace, parameters.name, labels, fields),
            since=int(version or 0),
            sends_initial=version != "" and int(version) == 0,
            has_bookmarks=True,
            bookmarks_at_once=True,
            periodic=FreshnessReports(listing, parameters.namespace),
        )
    )
    # Proxies must not collect the events.
    return WatchResponse(watch, EVENT_STREAM, {"X-Accel-Buffering": "no"})
