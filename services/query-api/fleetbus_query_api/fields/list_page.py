"""Pages of objects, of the present or of the past, and who finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleetbus.kube.selectors import FieldSelector
from fleetbus.snapshot import ListQuery, Page
from fleetbus_query_api.fields.order import SortKey
from fleetbus_query_api.fields.undetermined import Undetermined


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page.

    Attributes:
        page: the objects.
        undecided: how many objects per cluster have no body to match.
        undetermined: objects of the past of which it is unknown what they were, and why.
    """

    page: Page
    undecided: Mapping[str, int]
    undetermined: Undetermined = field(default_factory=Undetermined)


class Pages(Protocol):
    """Finds pages."""

    async def page(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey] = ()
    ) -> ListPage:
        """Find a page of the objects that match."""
        ...

    async def members(self, query: ListQuery) -> dict[str, Any]:
        """More members of an answer with such pages."""
        ...
