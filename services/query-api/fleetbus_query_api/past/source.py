"""Pages of a list as of a time, for lists and tables that otherwise show the present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleetbus.kube.selectors import FieldSelector
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot import ListQuery, Page
from fleetbus_query_api.fields.list_page import ListPage
from fleetbus_query_api.fields.order import SortKey
from fleetbus_query_api.past.pages import PastPages
from fleetbus_query_api.past.window import Asked, Windows
from fleetbus_query_api.responses.problem import BadRequestProblem


class PastSource:
    """Finds the pages of one list.

    Args:
        pages: reads them.
        windows: describe the window.
        past: the time.
    """

    def __init__(self, *, pages: PastPages, windows: Windows, past: Asked) -> None:
        self._pages = pages
        self._windows = windows
        self._asked = past

    async def page(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey] = ()
    ) -> ListPage:
        """Find a page; see `PastPages.find`.

        Raises:
            BadRequestProblem: it is to be sorted.
        """
        if sort:
            raise BadRequestProblem(
                "a list of the past comes by cluster, namespace and name: leave `sort` out"
            )
        past_page = await self._pages.find(query, fields, self._asked)
        self._asked = replace(self._asked, at=past_page.at)  # that of the continue token, if any
        page = Page(past_page.entries, past_page.continue_token, None, 0, "")
        return ListPage(page, past_page.undecided, past_page.undetermined)

    async def members(self, query: ListQuery) -> dict[str, Any]:
        """The time of the list, and the window of the events."""
        past = self._asked
        window = await self._windows.describe(past, query.clusters, query.resource)
        return {"asOf": rfc3339(past.at), "window": window}


class PastSources:
    """Makes sources of pages.

    Args:
        pages: read by them.
        windows: check times.
    """

    def __init__(self, *, pages: PastPages, windows: Windows) -> None:
        self._pages = pages
        self._windows = windows

    async def at(self, text: str) -> PastSource:
        """The source of a list as of a time; raises as `Windows.ask`."""
        past = await self._windows.ask(text)
        return PastSource(pages=self._pages, windows=self._windows, past=past)
