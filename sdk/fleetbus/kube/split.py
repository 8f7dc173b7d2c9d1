"""Cut a byte stream into JSON documents without parsing them."""

from __future__ import annotations

import re
from typing import Final

LINE_LIMIT: Final = 32 * 1024 * 1024
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+'
"""Up to its end; possessive, and tried once, or a hostile text would cost its length squared."""
_TOKEN: Final = re.compile(_STRING + rb'"|["{}\[\]]', re.DOTALL)
_CUT_TOKEN: Final = re.compile(_STRING + rb'(?:"|\\?\Z)|[{}\[\],:]', re.DOTALL)
_OPEN: Final = (b"{", b"[")
_CLOSE: Final = (b"}", b"]")
_ITEM_DEPTH: Final = 2  # inside the list object and its array of items


class LineSplitter:
    """Lines of a watch: give it chunks, it gives complete lines.

    The parts of an unfinished line are kept in a list: joining them each time is quadratic.
    A line over the limit is dropped and counted; memory stays bounded.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.too_long = 0
        """How many lines were dropped for their length."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their newline, empty ones left out."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes] = []
        for part in ended:
            line = self._end(part)
            if line:
                lines.append(line)
        if rest:
            self._keep(rest)
        return lines

    def _end(self, part: bytes) -> bytes:
        if not self._size and len(part) <= self._limit:
            return part
        self._keep(part)
        line = b"".join(self._parts)
        if self._size > self._limit:
            self.too_long += 1
            line = b""
        self._parts, self._size = [], 0
        return line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        else:
            self._parts.append(part)


class ItemSplitter:
    """Items of a Kubernetes list, while it is read: give it chunks, it gives complete items.

    What is inside an item does not matter, so one hostile item spoils only itself; what is between
    them does (W8).

    Attributes:
        head: what stands before the first item; built-in kinds have kind and metadata there.
        is_complete: whether the end of the list object was seen, and nothing but items between.
    """

    def __init__(self) -> None:
        self.head = b""
        self.is_complete = False
        self._buffer = b""
        self._scanned = 0
        self._item_at = -1
        self._tail_at = -1
        self._depth = 0
        self._in_items = False
        self._has_items = False
        self._is_sound = True
        self._last_string = b""

    @property
    def skeleton(self) -> bytes:
        """The list without its items, once it is complete; custom resources put all else last."""
        return self.head + b"]" + self._buffer[self._tail_at :] if self.head else self._buffer

    @property
    def pending(self) -> int:
        """How many bytes wait for more: of an unfinished item, above all."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The items that this chunk completes."""
        self._buffer += chunk
        items: list[bytes] = []
        for match in _TOKEN.finditer(self._buffer, self._scanned):
            token = match.group()
            if token == b'"':
                self._scanned = match.start()  # a string that the next chunk completes
                break
            if self._in_items and self._depth == _ITEM_DEPTH:
                self._check_gap(self._buffer[self._scanned : match.start()], token)
            self._scanned = match.end()
            if item := self._take(token, match.start()):
                items.append(item)
        self._forget()
        return items

    def _check_gap(self, gap: bytes, token: bytes) -> None:
        """Objects with one comma between them, or the list may lack some."""
        comma = b"," if self._has_items and token == b"{" else b""
        if gap.strip() != comma or token not in (b"{", b"]"):
            self._is_sound = False

    def _take(self, token: bytes, at: int) -> bytes:
        """Follow the depth; answers the item that this token ends, if it ends one."""
        if token.startswith(b'"'):
            if self._depth == 1:
                self._last_string = token
            return b""
        if token in _OPEN:
            self._open(token, at)
            return b""
        self._depth -= 1
        if self._in_items and self._depth == _ITEM_DEPTH:
            item = self._buffer[self._item_at : at + 1]
            self._item_at = -1
            self._has_items = True
            return item
        if self._in_items and self._depth == 1:
            self._in_items = False
            self._tail_at = at + 1
        self.is_complete = self._depth == 0 and self._is_sound
        return b""

    def _open(self, token: bytes, at: int) -> None:
        if self._depth == 1 and token == b"[" and self._last_string == b'"items"':
            self._is_sound = self._is_sound and not self.head  # two lists of items: which one?
            self._in_items = True
            self.head = self._buffer[: at + 1]
        if self._in_items and self._depth == _ITEM_DEPTH:
            self._item_at = at
        self._depth += 1

    def _forget(self) -> None:
        """Drop what was scanned and is no part of an unfinished item, of the head or the tail."""
        if not self.head or self._tail_at == 0:
            return
        keep = max(self._tail_at, self._item_at)
        keep = keep if keep >= 0 else self._scanned
        self._buffer = self._buffer[keep:]
        self._scanned -= keep
        self._item_at = 0 if self._item_at >= 0 else -1
        self._tail_at = 0 if self._tail_at >= 0 else -1


def cut_object(document: bytes) -> dict[str, bytes]:
    """The values of a JSON object by their keys, whatever they hold; plain keys only.

    For documents that a real decoder refuses. What is no object, or is not one whole object and
    nothing else, gives nothing: of two on one line the second must not be lost unseen.
    """
    found: dict[str, bytes] = {}
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
            found[key] = document[value_at : match.start()].strip()
            key, value_at = None, -1
        elif depth == 1 and token == b":" and value_at < 0:
            value_at = match.end()
        elif depth == 1 and token.startswith(b'"') and value_at < 0:
            key = token[1:-1].decode("utf-8", "replace")
        if depth == 0:
            is_whole = document.startswith(b"{") and not document[match.end() :].strip()
            return found if is_whole else {}
    return {}
