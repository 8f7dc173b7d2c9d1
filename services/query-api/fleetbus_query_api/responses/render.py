"""Renders answers as bytes: stored JSON is joined, never decoded and encoded again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fleetbus.snapshot import Entry, Freshness
from fleetbus_proto.events import UNREADABLE

FIXED_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
SLICE: Final = 512 * 1024
"""Bytes that are written at a time; the client must receive them before the next ones."""
INCOMPLETE_HEADER: Final = "Fleetbus-Incomplete"
"""`"<cluster>";age=<seconds>;reason="<text>", …` (a structured field, RFC 9651); those for which
there is no room are counted in a last item, `"*";more=<count>`."""
_MAX_HEADER_BYTES: Final = 6000
"""Size of the header: clients refuse one of more than 8,190."""


class SlicedResponse(Response):
    """A response in slices, which waits while the connection is full.

    Args:
        parts: the body; what is in memory already is never copied as a whole.
        status: of the answer.
        headers: besides its length and type.
        media_type: of the body.
    """

    def __init__(
        self, parts: Sequence[bytes], status: int, headers: Mapping[str, str], media_type: str
    ) -> None:
        length = {"Content-Length": str(sum(map(len, parts)))}
        super().__init__(b"", status, {**headers, **length}, media_type)
        self._parts = parts

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        slices = join_slices(self._parts)
        body = next(slices, b"")
        for following in slices:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)  # let others run: a client that reads fast is never waited for
            body = following
        await send({"type": "http.response.body", "body": body, "more_body": False})


def join_slices(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join parts up to about `SLICE` bytes, and cut longer ones."""
    pending: list[bytes] = []
    size = 0
    for item in parts:
        view = memoryview(item)
        while size + len(view) > SLICE:
            now, view = view[: SLICE - size], view[SLICE - size :]
            yield b"".join((*pending, now))
            pending, size = [], 0
        pending.append(item if len(view) == len(item) else bytes(view))
        size += len(view)
    if size:
        yield b"".join(pending)


def json_response(
    content: bytes | Sequence[bytes],
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    """An answer of JSON bytes, or of parts of it, which must not be cached."""
    parts = [content] if isinstance(content, bytes) else content
    return SlicedResponse(parts, status, {**FIXED_HEADERS, **(headers or {})}, media_type)


def body_of(entry: Entry) -> bytes:
    """The JSON of an object; empty if there is none that can be served.

    What is marked as unreadable may be invalid JSON, and would break the answer it is part of.
    """
    return b"" if entry.degraded == UNREADABLE else entry.body


def render_item(entry: Entry) -> bytes:
    """Render one object with its cluster; without a body, what is known of it and the reason."""
    return b"".join(_render_parts(entry, _render_cluster(entry.cluster)))


def render_items(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Render objects with commas between them, in parts; bodies are not copied."""
    cluster, head, comma = None, b"", b""
    for entry in entries:
        if entry.cluster != cluster:
            cluster, head = entry.cluster, _render_cluster(entry.cluster)
        yield comma
        yield from _render_parts(entry, head)
        comma = b","


def _render_cluster(cluster: str) -> bytes:
    return msgspec.json.encode({"cluster": cluster})[:-1]


def _render_parts(entry: Entry, head: bytes) -> tuple[bytes, ...]:
    if body := body_of(entry):
        mark = b',"degraded":' + msgspec.json.encode(entry.degraded) if entry.degraded else b""
        return (head, b',"object":', body, mark, b"}")
    fields = {
        "object": None,
        "namespace": entry.namespace,
        "name": entry.name,
        "uid": entry.uid,
        "resourceVersion": entry.resource_version,
        "degraded": entry.degraded or "absent",
    }
    return (head, b",", msgspec.json.encode(fields)[1:])


def render_list(items: Iterable[bytes], members: Mapping[str, Any]) -> list[bytes]:
    """Render `{"items": […], …rest}` in parts; the items have their commas."""
    return [b'{"items":[', *items, b"],", msgspec.json.encode(members)[1:]]


def render_one(item: bytes, members: Mapping[str, Any]) -> bytes:
    """Render an item with more members."""
    return b"%b,%b" % (item[:-1], msgspec.json.encode(members)[1:])


def render_freshness(freshness: Mapping[str, Freshness]) -> dict[str, Any]:
    """Render the freshness of each cluster, and the names of the incomplete ones (rule A4)."""
    return {
        "freshness": {name: render_one_freshness(state) for name, state in freshness.items()},
        "incomplete": [name for name, state in freshness.items() if not state.is_complete],
    }


def render_one_freshness(freshness: Freshness) -> dict[str, Any]:
    """Render the freshness of one cluster."""
    return {
        "state": freshness.state,
        "complete": freshness.is_complete,
        "ageSeconds": None if freshness.age is None else round(freshness.age.total_seconds(), 1),
        "reason": freshness.reason,
    }


def incomplete_header(freshness: Mapping[str, Freshness]) -> dict[str, str]:
    """The header that names incomplete clusters; empty if there are none.

    It stands where the body has no place for them (rule A4).
    """
    marks = [
        _incomplete_item(name, state)
        for name, state in sorted(freshness.items())
        if not state.is_complete
    ]
    return {INCOMPLETE_HEADER: _join(marks)} if marks else {}


def _join(marks: list[str]) -> str:
    size = 0
    for at, mark in enumerate(marks):
        size += len(mark) + 2
        if size > _MAX_HEADER_BYTES:
            return ", ".join([*marks[:at], f'"*";more={len(marks) - at}'])
    return ", ".join(marks)


def _incomplete_item(name: str, freshness: Freshness) -> str:
    age = "" if freshness.age is None else f";age={freshness.age.total_seconds():.0f}"
    return f"{quote(name)}{age};reason={quote(freshness.reason[:200])}"


def quote(text: str) -> str:
    """Quote as a string of RFC 9651, printable ASCII; a reason may quote any server."""
    plain = re.sub(r"[^ -~]", "?", text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
