"""How many objects are asked for per page, after lists that the server forgot half-way (W2)."""

from __future__ import annotations

from typing import Final

_LARGER: Final = 4


class PageSizes:
    """The page sizes of one resource: after a 410 larger pages, and then a single one.

    Args:
        first: objects per page while all is well.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._gone = 0

    @property
    def limit(self) -> int:
        """For the next list; 0 means unpaged."""
        return {0: self._first, 1: self._first * _LARGER}.get(self._gone, 0)

    def gone(self) -> None:
        """The server forgot a list half-way."""
        self._gone += 1

    def listed(self) -> None:
        """A list was read to its end."""
        self._gone = 0
