"""The record of one client: everything it got, line by line, and the cache that follows from it.

| kind | of |
|---|---|
| `list` | a complete list, which replaces what was known; without `objects`, that one begins: |
|  | its objects come as events, into an empty cache if it `replaces` what was known |
| `answered` | the answer of a list that an informer asked for |
| `open` | a watch that was answered; `version` it goes on from, 0 if it begins with the state |
| `event` | an event of an object, or that a handler was called |
| `bookmark` | a position |
| `gone` | 410: the client lists again |
| `refused` | another status than 200 or 410 |
| `end` | the end of a watch |
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import orjson

from faults.queries.objects import Objects, Tree, key_of, seen_of, version_of
from faults.queries.settings import FLEET, ClientPlan

_GOES_ON: Final = frozenset({"event", "bookmark", "list", "answered"})
"""After these a watch is still open; an informer may list beside one that ends."""


class ClientRecord:
    """Writes what a client gets, and keeps the cache that an informer would.

    Args:
        plan: of the client.
        folder: of the records.

    Attributes:
        cache: by `<cluster>/<namespace>/<name>`.
        is_watching: whether a watch is open.
    """

    def __init__(self, plan: ClientPlan, folder: Path) -> None:
        self.plan = plan
        self.cache: Objects = {}
        self.is_watching = False
        self._cluster = "" if plan.place == FLEET else plan.place
        self._file = (folder / f"{plan.name}.jsonl").open("wb")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def note(self, kind: str, **more: Any) -> None:
        """Append a line."""
        self.is_watching = kind == "open" or (self.is_watching and kind in _GOES_ON)
        line = {"t": time.time(), "kind": kind, **more}
        self._file.write(orjson.dumps(line, default=tuple) + b"\n")
        self._file.flush()

    def listed(self, trees: list[Tree], version: int) -> None:
        """Take a complete list."""
        self.cache = self.seen(trees)
        self.note("list", version=version, objects=self.cache)

    def begin(self) -> None:
        """Take that a list begins, whose objects come as events."""
        self.cache = {}
        self.note("list", replaces=True)

    def event(self, kind: str, tree: Tree, *, cluster: str = "", version: int = 0) -> None:
        """Take an event.

        Args:
            what: `ADDED`, `MODIFIED` or `DELETED`.
            tree: the object.
            cluster: whose it is, if neither the object nor the plan tells.
            version: of the snapshot, if the object does not have it.
        """
        key, state = key_of(tree, cluster or self._cluster), seen_of(tree)
        if kind == "DELETED":
            self.cache.pop(key, None)
        else:
            self.cache[key] = state
        self.note("event", type=kind, key=key, seen=state, version=version or version_of(tree))

    def seen(self, trees: list[Tree]) -> Objects:
        """Objects by their keys."""
        return {key_of(tree, self._cluster): seen_of(tree) for tree in trees}
