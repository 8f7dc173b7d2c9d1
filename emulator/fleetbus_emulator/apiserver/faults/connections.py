"""Faults of connections: before a request is handled, and while its answer is sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from aiohttp import ClientConnectionResetError, web

from fleetbus_emulator.apiserver.faults.actions import (
    Abort,
    CutAnswer,
    Delay,
    Drip,
    Garble,
    Hang,
)
from fleetbus_emulator.apiserver.faults.streams import Break

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from fleetbus_emulator.apiserver.faults.rules import Rule

GARBAGE_CHUNK = b"~\r\nno chunk begins like this\r\n"
GARBAGE_BODY = b"<html><body>502 Bad Gateway</body></html>\n"
Carry: TypeAlias = "Callable[[], Awaitable[None]]"
"""Returns when a part of an answer, or the end of a connection, gets through to the client."""

LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset


async def delay_or_abort(
    http: web.BaseRequest,
    rules: Sequence[Rule],
    *,
    after_commit: bool,
    unanswered: Callable[[], None],
    carry: Carry,
) -> None:
    """Delay, hang or abort, if rules say so at this point.

    Args:
        http: The request.
        rules: The rules that apply to it.
        after_commit: Whether it was handled, or is about to be.
        unanswered: Called before an end without an answer.
        carry: Lets the end of the connection through.
    """
    for rule in rules:
        action = rule.action
        if not isinstance(action, Delay | Hang | Abort) or action.after_commit != after_commit:
            continue
        if isinstance(action, Delay):
            await asyncio.sleep(action.duration.total_seconds())
            continue
        unanswered()
        if isinstance(action, Hang):
            await asyncio.Event().wait()  # until the client gives up or the server stops
        else:
            await carry()
            break_off(http, Break.RESET if action.reset else Break.END)


def break_off(http: web.BaseRequest, how: Break) -> NoReturn:
    """Break the connection; except for a reset, what was written before still goes out."""
    transport = http.transport
    if transport is not None:
        if how is Break.GARBAGE:
            transport.write(GARBAGE_CHUNK)
        if how is Break.RESET:
            tcp_socket: socket.socket = transport.get_extra_info("socket")
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            transport.abort()
        else:
            transport.close()
    raise ConnectionResetError


async def send_with_faults(
    http: web.BaseRequest, answer: web.Response, rules: Sequence[Rule], *, carry: Carry
) -> web.StreamResponse:
    """Send an answer, or what rules leave of it; without a body there is nothing to spoil."""
    if http.method == "HEAD" or not answer.body:
        return answer
    for rule in rules:
        action = rule.action
        if isinstance(action, CutAnswer):
            await _cut(http, answer, action)
        elif isinstance(action, Garble) and action.where == "chunk":
            await _opened(http, answer, chunked=True)
            break_off(http, Break.GARBAGE)
        elif isinstance(action, Garble):
            return web.Response(status=answer.status, body=GARBAGE_BODY, headers=_kept(answer))
        elif isinstance(action, Drip):
            return await _drip(http, answer, action, carry)
    return answer


async def _cut(http: web.BaseRequest, answer: web.Response, action: CutAnswer) -> NoReturn:
    stream = await _opened(http, answer)
    body = _body(answer)
    await stream.write(body[: int(len(body) * action.share)])
    if action.reset:
        await asyncio.sleep(0)  # a reset overtakes what is still in the buffer of the socket
    break_off(http, Break.RESET if action.reset else Break.END)


async def _drip(
    http: web.BaseRequest, answer: web.Response, action: Drip, carry: Carry
) -> web.StreamResponse:
    stream = await _opened(http, answer)
    with contextlib.suppress(ClientConnectionResetError):  # the client has lost patience
        async for piece in pieces(_body(answer), action, carry=carry):
            await stream.write(piece)
        await stream.write_eof()
    return stream


async def pieces(data: bytes, drip: Drip, *, carry: Carry) -> AsyncIterator[bytes]:
    """The pieces in which data is sent, each when it gets through, with pauses behind them."""
    for start in range(0, len(data), drip.size):
        await carry()
        yield data[start : start + drip.size]
        await asyncio.sleep(drip.pause.total_seconds())


async def _opened(
    http: web.BaseRequest, answer: web.Response, *, chunked: bool = False
) -> web.StreamResponse:
    """A response whose headers are sent."""
    stream = web.StreamResponse(status=answer.status, headers=_kept(answer))
    if chunked:
        stream.enable_chunked_encoding()
    else:
        stream.content_length = len(_body(answer))
    await stream.prepare(http)
    return stream


def _kept(answer: web.Response) -> dict[str, str]:
    skipped = ("Content-Length", "Transfer-Encoding")
    return {name: value for name, value in answer.headers.items() if name not in skipped}


def _body(answer: web.Response) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b""
