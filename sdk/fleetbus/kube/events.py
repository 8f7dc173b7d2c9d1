"""Kubernetes Events: messages of a controller about an object, shown by `kubectl describe`.

As in client-go, a repetition raises the count of one Event instead of adding an object, and the
rate per object is limited. The name of an Event is derived from its content, so that every process
finds the same one. A failed Event never fails a reconcile: errors are logged and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

import structlog

from fleetbus.errors import Conflict, FleetbusError, NotFound
from fleetbus.kube.client import KubeClient, Object
from fleetbus.process import metrics
from fleetbus.run.current import current_run

log = structlog.get_logger()

EventType: TypeAlias = Literal["Normal", "Warning"]

_EVENTS: Final = "v1/events"
_BURST: Final = 25
_REFILL: Final = timedelta(minutes=5)
"""client-go's values: an object may have a burst of 25, then one more every five minutes."""
_WITHIN: Final = timedelta(seconds=5)
_REMEMBERED: Final = 4096
_MESSAGE_LENGTH: Final = 1024
_REASON_LENGTH: Final = 128
_NAME_LENGTH: Final = 200
_ATTEMPTS: Final = 3


@dataclass(slots=True)
class _Bucket:
    """The token bucket of one object."""

    tokens: float
    at: float

    def take(self) -> bool:
        now = time.monotonic()
        grown = (now - self.at) / _REFILL.total_seconds()
        self.tokens, self.at = min(self.tokens + grown, _BURST), now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """Writes Kubernetes Events for one process; remembers the latest few thousand."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._known: OrderedDict[tuple[str, str, str], Object] = OrderedDict()

    async def record(
        self,
        cluster: str,
        client: KubeClient,
        obj: Object,
        *,
        reason: str,
        message: str,
        type_: EventType,
    ) -> None:
        """Write an Event about an object of a cluster; see `Cluster.event`."""
        run = current_run()
        controller = run.request.controller if run else ""
        event = _event(obj, reason, message, type_, controller)
        place = (cluster, event["metadata"]["namespace"], event["metadata"]["name"])
        if not self._take_token(cluster, event["involvedObject"]):
            metrics.KUBE_EVENTS.labels(controller, "limited").inc()
            return
        try:
            async with asyncio.timeout(_WITHIN.total_seconds()):
                written = await self._write(client, place, event)
        except (FleetbusError, TimeoutError) as e:
            self._known.pop(place, None)
            metrics.KUBE_EVENTS.labels(controller, "failed").inc()
            log.warning("kube_event_failed", event_reason=reason, error=str(e) or "timed out")
            return
        metrics.KUBE_EVENTS.labels(controller, "written").inc()
        self._known[place] = written
        self._known.move_to_end(place)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def _take_token(self, cluster: str, about: Object) -> bool:
        who = (cluster, str(about.get("uid") or about))
        bucket = self._buckets.setdefault(who, _Bucket(_BURST, time.monotonic()))
        self._buckets.move_to_end(who)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket.take()

    async def _write(
        self, client: KubeClient, place: tuple[str, str, str], event: Object
    ) -> Object:
        """Create the Event or raise its count; another process may do the same concurrently."""
        _, namespace, name = place
        stored = self._known.get(place)
        for _ in range(_ATTEMPTS):
            try:
                if stored is None:
                    return await client.create(_EVENTS, event)
                return await client.patch(_EVENTS, namespace, name, _repeat(stored, event))
            except Conflict:  # it exists already, or another process raised the count first
                stored = await client.get(_EVENTS, namespace, name)
            except NotFound:
                if stored is None:
                    raise  # the namespace is missing
                stored = None  # it has expired
        raise Conflict(409, "Conflict", "the count of the Event was changed concurrently")


def _event(obj: Object, reason: str, message: str, type_: EventType, controller: str) -> Object:
    metadata = obj["metadata"]
    namespace = str(metadata.get("namespace") or "")
    about = {
        "apiVersion": obj.get("apiVersion", ""),
        "kind": obj.get("kind", ""),
        "namespace": namespace,
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    component = f"fleetbus-{controller}" if controller else "fleetbus"
    identity = (about["uid"] or (about["kind"], namespace, about["name"]), type_, reason, message)
    digest = blake2b(repr((component, *identity)).encode(), digest_size=8).hexdigest()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{str(metadata['name'])[:_NAME_LENGTH].rstrip('.-')}.{digest}",
            "namespace": namespace or "default",
        },
        "involvedObject": {field: value for field, value in about.items() if value},
        "type": type_,
        "reason": reason[:_REASON_LENGTH],
        "message": message[:_MESSAGE_LENGTH],
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
    }


def _repeat(stored: Object, event: Object) -> Object:
    return {
        "metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]},
        "count": int(stored.get("count") or 1) + 1,
        "lastTimestamp": event["lastTimestamp"],
    }
