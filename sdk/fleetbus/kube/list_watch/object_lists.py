"""Lists of parsed objects: read page by page, with bounds on the whole (rule S7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias

from fleetbus import errors
from fleetbus.kube.responses import (
    MIB,
    check_continuation,
    parse_list,
    too_large_error,
    unreachable_error,
)

FetchPage: TypeAlias = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""Requests one page of a list, given its query."""

_BYTES: Final = 128 * MIB
"""Size of all pages together; parsed they take several times as much memory."""
_OBJECTS: Final = 100_000
"""Number of objects on all pages together; larger lists are for the watcher, which streams them
(`list_pages`)."""
_PATIENCE: Final = timedelta(minutes=2)
"""For all pages together; after five minutes a real server has dropped the list's state."""


async def all_objects(fetch: FetchPage, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Read all objects of a list.

    Raises:
        ServerError: it is endless, too large, or inconsistent.
        Unreachable: it took too long.
        KubeError: as `fetch`.
    """
    async with _in_time(), aclosing(_pages(fetch, query)) as pages:
        return [item async for page in pages for item in page]


async def first_object(fetch: FetchPage, query: Mapping[str, str]) -> dict[str, Any] | None:
    """Read one object of a list; None if it is empty.

    Raises:
        KubeError: as `all_objects`.
    """
    async with _in_time(), aclosing(_pages(fetch, {**query, "limit": "1"})) as pages:
        async for page in pages:
            if page:
                return page[0]
    return None


async def _pages(
    fetch: FetchPage, query: Mapping[str, str]
) -> AsyncGenerator[list[dict[str, Any]]]:
    size = count = 0
    while True:
        answer = await fetch(query)
        size += len(answer)
        if size > _BYTES:
            raise too_large_error(_BYTES, "the list")
        page = parse_list(answer)
        items: list[dict[str, Any]] = page["items"]
        count += len(items)
        if count > _OBJECTS:
            raise errors.ServerError(200, "TooLarge", f"the list has more than {_OBJECTS} objects")
        token = str(page["metadata"].get("continue") or "")
        check_continuation(query, len(items), token)
        for item in items:
            item.setdefault("apiVersion", page["apiVersion"])
            item.setdefault("kind", str(page["kind"]).removesuffix("List"))
        yield items
        if not token:
            return
        query = {**query, "continue": token}


@asynccontextmanager
async def _in_time() -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_PATIENCE.total_seconds()):
            yield
    except TimeoutError as e:
        text = f"the list took longer than {_PATIENCE.total_seconds():g} s"
        raise unreachable_error(TimeoutError(text)) from e
