"""Reads the body of a request, within bounds of size and time."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request

from fleetbus_query_api.responses.problem import BadRequestProblem, TooLargeProblem

_WITHIN_SECONDS: Final = 5


async def read_body(request: Request, subject: str, most: int, *, frame: int = 0) -> bytes:
    """Read a body.

    Args:
        request: has it.
        subject: names it in errors: `the kubeconfig`.
        most: bytes that it may have, in whole KiB.
        frame: bytes that may come around it.

    Raises:
        BadRequestProblem: it does not arrive in time.
        TooLargeProblem: it has more bytes.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_WITHIN_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most + frame:
                    raise TooLargeProblem(f"{subject} has at most {most // 1024} KiB")
                chunks.append(chunk)
    except TimeoutError:
        raise BadRequestProblem(f"{subject} did not arrive within {_WITHIN_SECONDS} s") from None
    return b"".join(chunks)
