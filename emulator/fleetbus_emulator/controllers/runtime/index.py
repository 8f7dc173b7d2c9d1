"""Indexes: objects by a value that is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

JsonObject = dict[str, Any]


class Ref(NamedTuple):
    """Names an object. A name can be taken over by a successor with another uid."""

    group: str
    resource: str
    namespace: str
    name: str


class Index:
    """Refs by a string that is computed from each object."""

    def __init__(self, texts_of: Callable[[Ref, JsonObject], Collection[str]]) -> None:
        self._texts_of = texts_of
        # Dicts, not sets: their order does not depend on the hash seed of the process.
        self._refs: dict[str, dict[Ref, None]] = {}

    def move(self, ref: Ref, old: JsonObject | None, new: JsonObject | None) -> None:
        """Take an object in (no `old`), out (no `new`), or to where it belongs now."""
        before = () if old is None else self._texts_of(ref, old)
        after = () if new is None else self._texts_of(ref, new)
        for text in before:
            if text not in after:
                self._discard(text, ref)
        for text in after:
            self._refs.setdefault(text, {})[ref] = None

    def _discard(self, text: str, ref: Ref) -> None:
        refs = self._refs.get(text)
        if refs is not None:
            refs.pop(ref, None)
            if not refs:
                del self._refs[text]

    def get(self, text: str) -> list[Ref]:
        """The refs under a value, oldest first."""
        return list(self._refs.get(text, ()))

    def each(self, text: str) -> Iterator[Ref]:
        """The same, one by one, for a look at the first few; nothing may be written meanwhile."""
        return iter(self._refs.get(text, ()))

    def count(self, text: str) -> int:
        """The number of refs under a value."""
        return len(self._refs.get(text, ()))
