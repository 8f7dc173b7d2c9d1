"""Watches of a Kubernetes API: the events that kubectl and informers expect (rule A6)."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from fleetbus.snapshot import Entry
from fleetbus_query_api.kube.objects.forms import Form
from fleetbus_query_api.kube.objects.reading import KubeObjects, KubeRequest
from fleetbus_query_api.limits.user_limits import identify_user
from fleetbus_query_api.responses.problem import Problem
from fleetbus_query_api.responses.status import render_status
from fleetbus_query_api.watch.events import ADDED
from fleetbus_query_api.watch.requests import WatchRequest
from fleetbus_query_api.watch.response import WatchResponse
from fleetbus_query_api.watch.selection import Selector
from fleetbus_query_api.watch.stream import Watches

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class WatchEvents:
    """Encodes events as lines of JSON.

    Args:
        form: of their objects.
        kube_request: the request.
    """

    def __init__(self, form: Form, kube_request: KubeRequest) -> None:
        self._form = form
        # Equal for all watches of a resource whose lines are the same. The Accept header is not in
        # it: there are any number of those, and few forms that are chosen by them.
        self.key = (
            form.key,
            kube_request.path.version,
            kube_request.path.subresource,
            kube_request.is_fleet,
        )

    def event(self, event_type: str, entry: Entry) -> bytes:
        """An event of an object."""
        line = b'{"type":"%b","object":%b}' % (event_type.encode(), self._form.answer([entry]))
        # A line break ends an event; in JSON it is only space between the parts.
        return line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"

    def listed(self, entry: Entry) -> bytes:
        """An object of a present state, as an API server sends it."""
        return self.event(ADDED, entry)

    def bookmark(self, version: int, *, ends_initial: bool) -> bytes:
        """A position."""
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if ends_initial:
            metadata["annotations"] = _INITIAL_EVENTS_END
        return b'{"type":"BOOKMARK","object":%b}\n' % self._form.bookmark(metadata)

    def error(self, problem: Problem) -> bytes:
        """The end of the watch."""
        gone = problem.status == HTTPStatus.GONE
        text = f"too old resource version: {problem}" if gone else str(problem)
        status = render_status(problem.status, text, problem.headers)
        return b'{"type":"ERROR","object":%b}\n' % status


class KubeWatches:
    """Answers watches.

    Args:
        watches: opens them.
        objects: finds what a user may watch, and its form.
    """

    def __init__(self, *, watches: Watches, objects: KubeObjects) -> None:
        self._watches = watches
        self._objects = objects

    async def open(self, scope: Scope, kube_request: KubeRequest) -> Response:
        """Open a watch.

        Raises:
            NotFoundProblem: the resource is not served there, or not to this user (rule A2).
            NotAcceptableProblem: the client accepts no form that there is.
            TooManyRequestsProblem: too many watches are open.
            SeveralClustersProblem: one name is followed, and several clusters have it.
        """
        parameters, path = kube_request.parameters, kube_request.path
        readable = await self._objects.find(kube_request, "watch")
        form = self._objects.form_of(kube_request, readable)
        await self._objects.refuse_following(kube_request, readable)
        seconds = parameters.timeout_seconds
        watch = await self._watches.open(
            WatchRequest(
                find=lambda: self._objects.find(kube_request, "watch"),
                user=identify_user(scope),
                encoder=WatchEvents(form, kube_request),
                selector=Selector.of(path.namespace, "", parameters.labels, parameters.fields),
                since=parameters.resource_version,
                sends_initial=parameters.send_initial_events,
                has_bookmarks=parameters.allow_watch_bookmarks,
                timeout=timedelta(seconds=min(seconds, 86_400)) if seconds else None,
            )
        )
        return WatchResponse(watch, "application/json")
