"""Renders answers as bytes: stored JSON is joined, never decoded and encoded again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetbus.snapshot import Entry, Freshness
from fleetbus_proto.events import UNREADABLE

FIXED_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
SLICE: Final = 512 * 1024
"""Bytes that are written at a time; the client must receive them before the next ones."""


class SlicedResponse(Response):
    """A response in slices, which waits while the connection is full."""

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        rest = memoryview(self.body)
        while True:
            now, rest = rest[:SLICE], rest[SLICE:]
            more = len(rest) > 0
            await send({"type": "http.response.body", "body": bytes(now), "more_body": more})
            if not more:
                return


def json_response(
    content: bytes,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """An answer of JSON bytes, which must not be cached."""
    return SlicedResponse(content, status, {**FIXED_HEADERS, **(headers or {})}, media_type)


def body_of(entry: Entry) -> bytes:
    """The JSON of an object; empty if there is none that can be served.

    What is marked as unreadable may be invalid JSON, and would break the answer it is part of.
    """
    return b"" if entry.degraded == UNREADABLE else entry.body


def render_item(entry: Entry) -> bytes:
    """Render one object with its cluster; without a body, what is known of it and the reason."""
    head = msgspec.json.encode({"cluster": entry.cluster})[:-1]
    if body := body_of(entry):
        mark = b',"degraded":' + msgspec.json.encode(entry.degraded) if entry.degraded else b""
        return b"%b,%b%b}" % (head, b'"object":' + body, mark)
    return msgspec.json.encode(
        {
            "cluster": entry.cluster,
            "object": None,
            "namespace": entry.namespace,
            "name": entry.name,
            "uid": entry.uid,
            "resourceVersion": entry.resource_version,
            "degraded": entry.degraded or "absent",
        }
    )


def render_list(items: Iterable[bytes], rest: Mapping[str, Any]) -> bytes:
    """Render `{"items": […], …rest}`."""
    return b'{"items":[%b],%b' % (b",".join(items), msgspec.json.encode(rest)[1:])


def render_one(item: bytes, rest: Mapping[str, Any]) -> bytes:
    """Render an item with more members."""
    return b"%b,%b" % (item[:-1], msgspec.json.encode(rest)[1:])


def render_freshness(freshness: Mapping[str, Freshness]) -> dict[str, Any]:
    """Render the freshness of each cluster, and the names of the incomplete ones (rule A4)."""
    return {
        "freshness": {name: render_one_freshness(known) for name, known in freshness.items()},
        "incomplete": [name for name, known in freshness.items() if not known.is_complete],
    }


def render_one_freshness(known: Freshness) -> dict[str, Any]:
    """Render the freshness of one cluster."""
    return {
        "state": known.state,
        "complete": known.is_complete,
        "ageSeconds": None if known.age is None else round(known.age.total_seconds(), 1),
        "reason": known.reason,
    }
