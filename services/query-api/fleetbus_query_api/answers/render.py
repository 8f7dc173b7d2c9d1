"""Answers as bytes: stored JSON is joined, never decoded and written anew.

For 500 objects that takes 1.5 ms, through `json` it takes 7 and through models 15 or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetbus.snapshot import Entry, Freshness

FIXED_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
SLICE: Final = 512 * 1024
"""Bytes that are written before the reader has taken the ones before."""
_UNREADABLE = "unreadable"


class SlicedResponse(Response):
    """A response whose slices wait until there is room in the connection."""

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
    """An answer of JSON bytes; what it tells is of this moment, so nobody keeps it."""
    return SlicedResponse(content, status, {**FIXED_HEADERS, **(headers or {})}, media_type)


def body_of(entry: Entry) -> bytes:
    """The object's JSON; empty when there is none that can be served.

    What was marked unreadable may be no JSON at all, and would spoil the answer it is joined to.
    """
    return b"" if entry.degraded == _UNREADABLE else entry.body


def render_item(entry: Entry) -> bytes:
    """One object with its cluster; one without a body says what is known of it, and why."""
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
    """`{"items": […], …rest}`."""
    return b'{"items":[%b],%b' % (b",".join(items), msgspec.json.encode(rest)[1:])


def render_one(item: bytes, rest: Mapping[str, Any]) -> bytes:
    """An item with more members."""
    return b"%b,%b" % (item[:-1], msgspec.json.encode(rest)[1:])


def render_freshness(freshness: Mapping[str, Freshness]) -> dict[str, Any]:
    """How far each cluster can be relied on, and the names of those that cannot (rule A4)."""
    return {
        "freshness": {name: render_one_freshness(known) for name, known in freshness.items()},
        "incomplete": [name for name, known in freshness.items() if not known.is_complete],
    }


def render_one_freshness(known: Freshness) -> dict[str, Any]:
    """How far one answer of one cluster can be relied on."""
    return {
        "state": known.state,
        "complete": known.is_complete,
        "ageSeconds": None if known.age is None else round(known.age.total_seconds(), 1),
        "reason": known.reason,
    }
