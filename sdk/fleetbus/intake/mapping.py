"""Calls mapping functions, checks what they return, and reports user code that fails.

A broken function fails for every object, of which there may be thousands: the log has one line
while that lasts, and the metric counts the objects.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any, cast

import structlog

from fleetbus.controller.controller import Controller
from fleetbus.controller.filters import name_of
from fleetbus.controller.watch import Watch
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.owners import check_place
from fleetbus.kube.client import Object
from fleetbus.process.error_text import describe, name_type, render
from fleetbus.process.log_once import LogOnce
from fleetbus.process.metrics import MAP_FAILURES
from fleetbus.reconcile import Request
from fleetbus.run.user_code import calling_user_code
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event

log = structlog.get_logger()


class InvalidMapResult(Exception):
    """A mapping function returned something else than requests; the text says what."""


async def call_map(
    watch: Watch, obj: Object | None, own_request: Request, fleet: Fleet, controller: Controller
) -> list[Request]:
    """Call the mapping function of a watch.

    Raises:
        InvalidMapResult: it returned something else than requests.
        TimeoutError: it takes longer than a reconcile may.
        BaseException: whatever the function raises.
    """
    if watch.map is None:
        return []
    with calling_user_code():
        async with asyncio.timeout(controller.timeout.total_seconds()):
            result = watch.map(obj, own_request, fleet)
            if inspect.isawaitable(result):
                result = await result
            return read_requests(result, controller)


def read_requests(result: object, controller: Controller) -> list[Request]:
    """Check what a mapping function returned, and make the requests this controller's.

    Raises:
        InvalidMapResult: it is something else, or no queue could hold it.
        Exception: whatever iterating over it raises.
    """
    if not isinstance(result, Iterable):
        raise InvalidMapResult(name_type(result))
    results = cast("Iterable[object]", result)
    return [_read_request(each, results, controller) for each in results]


def _read_request(each: object, result: object, controller: Controller) -> Request:
    if not isinstance(each, Request):
        raise InvalidMapResult(f"{name_type(result)} of {name_type(each)}")
    parts: dict[str, Any] = {
        "cluster": each.cluster,
        "namespace": each.namespace,
        "name": each.name,
    }
    for field, value in parts.items():
        if not isinstance(value, str):
            raise InvalidMapResult(f"Request with the {field} {name_type(value)}")
    try:
        check_place(each.cluster, each.namespace)
    except InvalidName as e:
        reason = describe(e, is_quiet=controller.handles_secrets)
        raise InvalidMapResult(f"Request that no queue can hold: {reason}") from e
    return Request(controller.name, each.cluster, each.namespace, each.name, each.left)


class UserCodeFailures:
    """Reports functions of one controller's watches that raise, or return something invalid.

    Args:
        controller: whose.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._log_once = LogOnce()

    def note(self, event_name: str, watch: Watch, event: Event, error: BaseException) -> None:
        """Count an object for which a function failed, and log it unless it was just logged.

        Args:
            event_name: the log event, if a function raised.
            watch: whose functions were called.
            event: the object.
            error: what was raised, by the function or by `read_requests`.
        """
        name = self._controller.name
        MAP_FAILURES.labels(name, event.cluster).inc()
        is_invalid = isinstance(error, InvalidMapResult)
        event_name = "invalid_map_result" if is_invalid else event_name
        if not self._log_once.should_log(key=(watch.id, event_name)):
            return
        fields: dict[str, str] = {}
        if watch.map is not None:
            fields["function"] = name_of(watch.map)
        if is_invalid:
            fields |= {"result": str(error), "expected": "Requests"}
        else:
            fields["exception"] = render(error, is_quiet=self._controller.handles_secrets)
        log.error(
            event_name,
            controller=name,
            watch=str(watch.resource or "*"),
            **fields,
            cluster=event.cluster,
            namespace=event.namespace,
            name=event.name,
        )
