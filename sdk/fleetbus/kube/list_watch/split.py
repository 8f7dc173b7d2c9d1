"""Cuts a byte stream into JSON documents without parsing them."""

from __future__ import annotations

import re
from typing import Final

LINE_LIMIT: Final = 32 * 1024 * 1024
_BODY: Final = rb'[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|(\\?)\Z)'
"""A string from after its first quote to its last one, or to the end of the data.

Possessive, so that a hostile text does not take quadratic time.
"""
_REST: Final = re.compile(_BODY, re.DOTALL)
_TOKEN: Final = re.compile(rb'"' + _BODY + rb"|[{}\[\]]", re.DOTALL)
_CUT_TOKEN: Final = re.compile(rb'"' + _BODY + rb"|[{}\[\],:]", re.DOTALL)
_OPEN: Final = (b"{", b"[")
_CLOSE: Final = (b"}", b"]")
_ITEM_DEPTH: Final = 2  # inside the list object and its array of items
_ITEMS: Final = b'"items"'


class LineSplitter:
    """Splits the chunks of a watch into lines.

    The parts of an unfinished line are kept in a list: joining them each time would be quadratic.
    A line over the limit is dropped and counted, so memory stays bounded.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.too_long = 0
        """Number of lines that were dropped for their length."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their newline, empty ones left out."""
        *ended, remainder = chunk.split(b"\n")
        lines: list[bytes] = []
        for fragment in ended:
            line = self._end(fragment)
            if line:
                lines.append(line)
        if remainder:
            self._keep(remainder)
        return lines

    def _end(self, fragment: bytes) -> bytes:
        if not self._size and len(fragment) <= self._limit:
            return fragment
        self._keep(fragment)
        line = b"".join(self._parts)
        if self._size > self._limit:
            self.too_long += 1
            line = b""
        self._parts, self._size = [], 0
        return line

    def _keep(self, fragment: bytes) -> None:
        self._size += len(fragment)
        if self._size > self._limit:
            self._parts.clear()
        else:
            self._parts.append(fragment)


class ItemSplitter:
    """Splits the chunks of a Kubernetes list into items while it is received.

    The content of an item does not matter, so a malformed item affects only itself; what is between
    items does matter (rule W8). A byte is scanned once and copied a bounded number of times: a
    string that spans chunks is continued where the last chunk ended.

    Attributes:
        head: what precedes the first item; for built-in kinds that is kind and metadata.
        is_complete: whether the end of the list was seen, with only items in between.
    """

    def __init__(self) -> None:
        self.head = b""
        self.is_complete = False
        self._kept = bytearray()
        """The data of earlier chunks since the last cut; cuts are around items, head and tail."""
        self._cut_at = 0
        self._is_in_string = False
        self._is_escaped = False
        """Whether the last chunk ended after a backslash in a string."""
        self._last_string = b""
        self._depth = 0
        self._in_items = False
        self._has_items = False
        self._is_sound = True

    @property
    def skeleton(self) -> bytes:
        """The complete list without items; custom resources have all other fields at the end."""
        return (self.head + b"]" if self.head else b"") + self._kept

    @property
    def pending(self) -> int:
        """Number of bytes kept, mostly of an unfinished item."""
        return len(self._kept)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The items that this chunk completes."""
        if not chunk:
            return []
        self._cut_at = 0
        items: list[bytes] = []
        for match in _TOKEN.finditer(chunk, self._end_of_string(chunk)):
            at = match.start()
            token = chunk[at : at + 1]
            if self._in_items and self._depth == _ITEM_DEPTH:
                self._check_gap(self._cut(chunk, at), token)
            if token == b'"':
                self._last_string = b"" if self._depth == 1 else self._last_string
                self._follow_string(match)
            elif token in _OPEN:
                self._open(chunk, token, at + 1)
            elif item := self._close(chunk, at + 1):
                items.append(item)
        self._kept += chunk[self._cut_at :]
        return items

    def _end_of_string(self, chunk: bytes) -> int:
        """The end of the string that an earlier chunk began; 0 if there is none."""
        if self._is_in_string and (match := _REST.match(chunk, int(self._is_escaped))):
            self._follow_string(match)
            return match.end()
        return 0

    def _follow_string(self, match: re.Match[bytes]) -> None:
        quote, backslash = match.groups()
        self._is_in_string = quote is None
        self._is_escaped = bool(backslash)
        if self._depth == 1:
            longest = len(_ITEMS) + 1
            self._last_string = (self._last_string + match.group()[:longest])[:longest]

    def _cut(self, chunk: bytes, end: int) -> bytes:
        """Return everything from the last cut up to here."""
        fragment = chunk[self._cut_at : end]
        self._cut_at = end
        if self._kept:
            fragment = bytes(self._kept) + fragment
            self._kept.clear()
        return fragment

    def _check_gap(self, gap: bytes, token: bytes) -> None:
        """Check for objects with one comma in between; otherwise some may be missing."""
        comma = b"," if self._has_items and token == b"{" else b""
        if gap.strip() != comma or token not in (b"{", b"]"):
            self._is_sound = False

    def _open(self, chunk: bytes, token: bytes, end: int) -> None:
        if self._depth == 1 and token == b"[" and self._last_string == _ITEMS:
            self._is_sound = self._is_sound and not self.head  # two lists of items are ambiguous
            if not self.head:
                self._in_items = True
                self.head = self._cut(chunk, end)
        self.is_complete = False  # of two documents the second one has begun
        self._depth += 1

    def _close(self, chunk: bytes, end: int) -> bytes:
        """Return the item that ends here, if any."""
        self._depth -= 1
        if self._in_items and self._depth == _ITEM_DEPTH:
            self._has_items = True
            return self._cut(chunk, end)
        if self._in_items and self._depth == 1:
            self._in_items = False
            self._cut(chunk, end)
        self.is_complete = self._depth == 0 and self._is_sound
        return b""


def cut_object(document: bytes) -> dict[str, bytes]:
    """Cut a JSON object into its undecoded values by key; for plain keys only.

    For documents that a decoder refuses. The result is empty unless the document is exactly one
    complete object: of two on one line the second must not be lost silently.
    """
    values: dict[str, bytes] = {}
    key: str | None = None
    depth, value_at = 0, -1
    for match in _CUT_TOKEN.finditer(document):
        token = match.group()
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        ends = depth == 0 or (depth == 1 and token == b",")
        if ends and key is not None and value_at >= 0:
            values[key] = document[value_at : match.start()].strip()
            key, value_at = None, -1
        elif depth == 1 and token == b":" and value_at < 0:
            value_at = match.end()
        elif depth == 1 and token.startswith(b'"') and value_at < 0:
            key = token[1:-1].decode("utf-8", "replace")
        if depth == 0:
            is_whole = document.startswith(b"{") and not document[match.end() :].strip()
            return values if is_whole else {}
    return {}
