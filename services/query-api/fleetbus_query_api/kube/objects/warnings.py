"""Warnings that kubectl prints: which clusters an answer may be incomplete for (rule A4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleetbus.snapshot import Freshness
from fleetbus_query_api.objects.listing import NOT_WATCHED
from fleetbus_query_api.responses.incomplete import incomplete_header, quote

_MOST: Final = 10


def freshness_headers(freshness: Mapping[str, Freshness]) -> dict[str, str]:
    """The headers of an answer: for programs all incomplete clusters, for people a few.

    People are not warned of clusters that do not serve a type: those are never complete.
    """
    warnings = [
        f"cluster {name} may be incomplete or outdated: {state.reason[:200]}"
        for name, state in sorted(freshness.items())
        if not state.is_complete and state.reason != NOT_WATCHED
    ]
    more = len(warnings) - _MOST
    texts = warnings[:_MOST] + ([f"{more} more clusters likewise"] if more > 0 else [])
    warning = {"Warning": ", ".join(f"299 - {quote(text)}" for text in texts)} if texts else {}
    return {**incomplete_header(freshness), **warning}
