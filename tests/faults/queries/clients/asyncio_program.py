"""A program of kubernetes_asyncio that lists and watches ConfigMaps, and prints what it gets.

    python tests/run.py faults.queries.clients.asyncio_program SELECTOR URL...

Its lines are those of `clients.programs`. A process of its own, because others may have imported
the library without its typed models.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from importlib import import_module
from random import Random
from typing import Any, Final

import aiohttp
import orjson

_PAGE: Final = 100
_WATCH_SECONDS: Final = (10, 40)
_AGAIN_SECONDS: Final = (0.05, 0.5)
_BROKEN: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, AttributeError, KeyError)
"""Raised by the library when an answer breaks off."""


def library(name: str) -> Any:
    """A module of kubernetes_asyncio; most of what is in it has no types that hold."""
    return import_module(f"kubernetes_asyncio.{name}")


def say(kind: str, **more: Any) -> None:
    """Print a line."""
    sys.stdout.buffer.write(orjson.dumps({"kind": kind, **more}) + b"\n")
    sys.stdout.buffer.flush()


class Client:
    """Lists, then watches from the version of the list, or of the last event.

    Args:
        selector: of labels.
        urls: of the API servers.
    """

    def __init__(self, selector: str, urls: list[str]) -> None:
        self._selected: dict[str, Any] = {"label_selector": selector} if selector else {}
        self._urls = urls
        self._version = ""
        self._random = Random(f"{selector}{urls[0]}")
        self._cache: dict[tuple[str, str], dict[str, Any]] = {}
        self._errors = library("client").ApiException

    async def run(self) -> None:
        while True:
            client = library("client")
            async with client.ApiClient(client.Configuration(host=self._urls[0])) as api:
                try:
                    await self._turn(client.CoreV1Api(api))
                except self._errors as e:
                    self._fail(e.status)
                except _BROKEN as e:
                    say("end", why=str(e) or type(e).__name__)
            self._urls.append(self._urls.pop(0))
            await asyncio.sleep(self._random.uniform(*_AGAIN_SECONDS))

    async def answer(self) -> None:
        """Print the cache for each line of the input."""
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            say("cache", objects=[*self._cache.values()])

    async def _turn(self, core: Any) -> None:
        if not self._version:
            await self._list(core)
        await self._watch(core)

    async def _list(self, core: Any) -> None:
        trees: list[dict[str, Any]] = []
        token = None
        while True:
            page = await core.list_config_map_for_all_namespaces(
                limit=_PAGE, _continue=token, **self._selected
            )
            trees += core.api_client.sanitize_for_serialization(page)["items"]
            token = page.metadata._continue  # the name of the field
            if not token:
                break
        self._version = page.metadata.resource_version
        self._cache = {_key(tree): tree for tree in trees}
        say("list", version=self._version, objects=trees)

    async def _watch(self, core: Any) -> None:
        watch = library("watch").Watch()
        stream = watch.stream(
            core.list_config_map_for_all_namespaces,
            resource_version=self._version,
            allow_watch_bookmarks=True,
            timeout_seconds=self._random.randint(*_WATCH_SECONDS),
            **self._selected,
        )
        say("open", version=self._version)
        async with stream as events:
            async for event in events:
                self._take(event["type"], event["raw_object"])
                self._version = watch.resource_version
        say("end", why="closed")

    def _take(self, kind: str, tree: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            say("bookmark", version=tree["metadata"]["resourceVersion"])
            return
        if kind == "DELETED":
            self._cache.pop(_key(tree), None)
        else:
            self._cache[_key(tree)] = tree
        say("event", type=kind, object=tree)

    def _fail(self, status: int) -> None:
        if status == HTTPStatus.GONE:
            self._version = ""
            say("gone")
        else:
            say("refused", status=status)


def _key(tree: dict[str, Any]) -> tuple[str, str]:
    return tree["metadata"].get("namespace", ""), tree["metadata"]["name"]


async def main(selector: str, *urls: str) -> None:
    """Follow until killed, or until the input ends."""
    client = Client(selector, [*urls])
    following = asyncio.create_task(client.run(), name="run")
    await asyncio.wait(
        [following, asyncio.create_task(client.answer(), name="answer")],
        return_when=asyncio.FIRST_COMPLETED,
    )
    if following.done():
        following.result()
    following.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
