"""Events of controllers about objects, as `kubectl describe` and `kubectl get events` show them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from fleetbus_emulator.apiserver import ApiError, Cluster
from fleetbus_emulator.apiserver.json_tree import mapping

JsonObject = dict[str, Any]
EVENTS = "v1/events"
LIFETIME = timedelta(hours=1)
LONGEST_MESSAGE = 1024
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class EventText:
    """The content of an Event."""

    type: str
    reason: str
    message: str
    component: str


class Recorder:
    """Writes Events; a repeated one only counts up.

    Events expire after an hour, as on a real server; that happens when the next is written, so that
    an idle cluster needs no timer for it.

    Args:
        cluster: Where to write.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written: dict[tuple[str, str], datetime] = {}  # least recently written first

    def record(
        self, obj: JsonObject, event: EventText, now: datetime, *, repeat: bool = True
    ) -> None:
        """Write it, or drop it where Events are refused, as in a terminating namespace."""
        self._expire(now)
        meta = obj["metadata"]
        place = (obj["kind"], meta.get("namespace") or "", meta["name"])
        message = event.message.replace(meta["uid"], "")  # so that a seed repeats the names
        text = "\n".join((*place, event.type, event.reason, message, event.component))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        name = f"{meta['name'][:LONGEST_NAME]}.{digest}"
        namespace = meta.get("namespace") or "default"
        moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            present = self._cluster.get(EVENTS, namespace, name)
            if present is not None and mapping(present, "involvedObject").get("uid") != meta["uid"]:
                self._cluster.delete(
                    EVENTS, namespace, name
                )  # of a deleted object of the same name
                present = None
            if present is None:
                body = _body(obj, event, moment)
                body["metadata"] = {"name": name, "namespace": namespace}
                self._cluster.create(EVENTS, body, manager=event.component)
            elif repeat:
                again = {"count": present.get("count", 1) + 1, "lastTimestamp": moment}
                self._cluster.patch(EVENTS, namespace, name, again, manager=event.component)
        except ApiError:
            return
        self._written.pop((namespace, name), None)
        self._written[namespace, name] = now

    def _expire(self, now: datetime) -> None:
        while self._written:
            place, last = next(iter(self._written.items()))
            if last + LIFETIME >= now:
                return
            del self._written[place]
            if self._cluster.get(EVENTS, *place) is not None:
                self._cluster.delete(EVENTS, *place)


def _body(obj: JsonObject, event: EventText, moment: str) -> JsonObject:
    meta = mapping(obj, "metadata")
    named = {n: meta[n] for n in ("name", "namespace", "uid", "resourceVersion") if n in meta}
    return {
        "involvedObject": {"kind": obj["kind"], "apiVersion": obj["apiVersion"], **named},
        "reason": event.reason,
        "message": event.message[:LONGEST_MESSAGE],
        "source": {"component": event.component},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "type": event.type,
        "eventTime": None,
        "reportingComponent": event.component,
        "reportingInstance": "",
    }
