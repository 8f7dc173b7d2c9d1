"""An informer's cache, written from the protocol and without any I/O of its own.

It returns the next request and takes the answers; after each it compares its cache with the truth
at the revision that it has reached. So it finds not only what is lost for good, but also what comes
late, twice, in the wrong order or in the wrong form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from emulator.support.api_truth import Key, Scope, key_of, rv_of, without_type

if TYPE_CHECKING:
    from random import Random

    from emulator.support.api_truth import Truth

JsonObject = dict[str, Any]
GONE = 410


class Way(Enum):
    """Way in which an informer gets the present state."""

    PAGES = "limit and continue"
    CACHE = "resourceVersion=0"
    STREAM = "sendInitialEvents"
    PAST = "none: it begins at a revision that it knows the state of"


@dataclass(frozen=True)
class Watched:
    """The next request.

    Attributes:
        path: The collection.
        api_version: What objects must call themselves.
        selectors: labelSelector and fieldSelector.
        scope: The same, for the truth.
    """

    path: str
    api_version: str
    kind: str
    selectors: dict[str, str]
    scope: Scope


class Reflector:
    """Lists, watches, reconnects, lists again.

    Args:
        watched: What to ask for.
        truth: What the cache is compared with.
        random: Chooses the way to list each time.
        bookmarks: Ask for bookmarks.
    """

    def __init__(
        self, watched: Watched, truth: Truth, random: Random, *, bookmarks: bool = False
    ) -> None:
        self.watched = watched
        self.cache: dict[Key, JsonObject] = {}
        self.relists = 0
        self.bookmarks = 0
        self._truth = truth
        self._random = random
        self._wants_bookmarks = bookmarks
        self._rv = 0
        self._continue = ""
        self._limit = 0
        self._begin(random.choice(list(Way)))

    def _begin(self, way: Way) -> None:
        self._way = way
        self.is_listing = way in (Way.PAGES, Way.CACHE)
        self._is_synced = way is not Way.STREAM
        self._pages: dict[Key, JsonObject] = {}
        self._continue, self._limit = "", self._random.choice((1, 2, 3))
        if way is Way.PAST:
            self._rv = self._random.choice([self._truth.beginning, *self._truth.changes])
            self.cache = self._truth.at(self.watched.scope, self._rv)

    def lose(self) -> None:
        """Forget everything and begin anew, as after a restart or a 410."""
        self.relists += 1
        self._begin(self._random.choice((Way.PAGES, Way.CACHE, Way.STREAM)))

    def query(self) -> dict[str, str]:
        """The parameters of the next request: a page, or a watch."""
        query = dict(self.watched.selectors)
        if self._way is Way.CACHE and self.is_listing:
            return {**query, "resourceVersion": "0"}
        if self.is_listing:
            more = {"continue": self._continue} if self._continue else {}
            return {**query, "limit": str(self._limit), **more}
        query["watch"] = "true"
        if self._wants_bookmarks or not self._is_synced:
            query["allowWatchBookmarks"] = "true"
        if not self._is_synced:
            self._pages.clear()
            initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            return {**query, **initial}
        return {**query, "resourceVersion": str(self._rv)}

    # lists --------------------------------------------------------------------------------------

    def take_page(self, status: int, document: JsonObject) -> None:
        """The answer to a list."""
        if status == GONE:
            self._check_fresh_token(document)
            self.lose()
            return
        assert status == 200, document
        meta, rv = document["metadata"], rv_of(document)
        if self._continue:
            assert rv == self._rv, "a later page is of another revision than the first"
        self._rv = rv
        listed = [self._typed(item, in_list=True) for item in document["items"]]
        keys = [key_of(item) for item in listed]
        assert [*self._pages, *keys] == sorted({*self._pages, *keys}), "not in key order"
        self._pages |= zip(keys, listed, strict=True)
        self._continue = meta.get("continue", "")
        self._check_rest(meta)
        if not self._continue:
            self.cache, self.is_listing = self._pages, False
            self._compare("list")

    def _check_fresh_token(self, document: JsonObject) -> None:
        assert self._continue, "only a later page can be too old"
        assert document["reason"] == "Expired"
        assert document["metadata"]["continue"] not in ("", self._continue)

    def _check_rest(self, meta: JsonObject) -> None:
        objects_then = self._truth.at(self.watched.scope, self._rv)
        if "remainingItemCount" in meta:
            assert meta["remainingItemCount"] == len(objects_then) - len(self._pages)
        if self._continue:
            assert self._pages == dict(sorted(objects_then.items())[: len(self._pages)])

    # events -------------------------------------------------------------------------------------

    def take_event(self, event: JsonObject) -> None:
        """A line of the watch."""
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            assert (obj["code"], obj["reason"]) == (GONE, "Expired"), obj
            self.lose()
        elif kind == "BOOKMARK":
            self._take_bookmark(obj)
        elif not self._is_synced:
            assert kind == "ADDED", "the present state comes as ADDED"
            self._pages[key_of(obj)] = self._typed(obj)
        else:
            self._take_change(kind, obj)

    def _take_bookmark(self, obj: JsonObject) -> None:
        meta = dict(obj["metadata"])
        self.bookmarks += 1
        assert (obj["kind"], obj["apiVersion"]) == (self.watched.kind, self.watched.api_version)
        ends = meta.pop("annotations", {}) == {"k8s.io/initial-events-end": "true"}
        assert list(meta) == ["resourceVersion"]
        assert ends is not self._is_synced, "the end of the present state is marked once"
        if ends:
            self.cache, self._is_synced = self._pages, True
        assert rv_of(obj) >= self._rv or ends
        self._rv = rv_of(obj)
        self._compare("bookmark")

    def _take_change(self, kind: str, obj: JsonObject) -> None:
        key, rv = key_of(obj), rv_of(obj)
        assert rv > self._rv, "events come in the order of their revisions, each once"
        is_cached = key in self.cache
        assert is_cached is (kind != "ADDED"), f"{kind} of {key}, which is known: {is_cached}"
        self._rv = rv
        body = self._typed(obj)
        if kind == "DELETED":
            del self.cache[key]
            self._check_last_state(body, rv)
        else:
            self.cache[key] = body
        self._compare(kind)

    def _check_last_state(self, body: JsonObject, rv: int) -> None:
        """The object as it was: when it was deleted, or while it still matched."""
        change = self._truth.changes[rv]
        last = change.new if change.type == "DELETED" else change.old
        assert last is not None
        last = without_type(last)
        assert body == {**last, "metadata": {**last["metadata"], "resourceVersion": str(rv)}}
        assert self.watched.scope.has(body)

    def _typed(self, obj: JsonObject, *, in_list: bool = False) -> JsonObject:
        if in_list and self.watched.api_version == "v1":
            assert "kind" not in obj
        else:
            named = obj["kind"], obj["apiVersion"]
            assert named == (self.watched.kind, self.watched.api_version)
        return without_type(obj)

    def _compare(self, after: str) -> None:
        expected = self._truth.at(self.watched.scope, self._rv)
        assert self.cache == expected, f"after {after} at {self._rv} of {self.watched.path}"
