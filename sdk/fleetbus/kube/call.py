"""One request, before it is known where the server is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fleetbus.kube.responses import ANSWER_LIMIT, MIB

JSON: Final = "application/json"
_PAGE_LIMIT: Final = 64 * MIB
"""Of a page of a list that becomes trees; `list_pages` reads larger ones."""


class Call(NamedTuple):
    """One request, before it is known where the server is."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    alone: bool = False
    """Through a connection that is opened for this one."""

    @property
    def limit(self) -> int:
        """How many bytes the answer may have: a page of a list more than an object (S7)."""
        return _PAGE_LIMIT if "limit" in (self.query or {}) else ANSWER_LIMIT
