"""Which objects a command asks the query API for."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleetbus_cli.api_client import MAX_PAGE, ApiClient, Found, Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectQuery:
    """Selects objects; an empty field selects all.

    Attributes:
        sort: fields separated by commas, as of the query API.
        limit: the most objects; 0 for all.
        as_of: a point in time; empty for the present.
    """

    resource: str
    name: str = ""
    namespace: str = ""
    selector: str = ""
    field_selector: str = ""
    sort: str = ""
    clusters: Sequence[str] = ()
    limit: int = 0
    as_of: str = ""

    @property
    def path(self) -> str:
        """The path of the resource."""
        return f"/fleet/v1/resources/{urllib.parse.quote(self.resource)}"

    def parameters(self, *, is_paged: bool = False) -> dict[str, str | Sequence[str]]:
        """The query parameters; the limit is left out where pages have their own."""
        limit = "" if is_paged or not 0 < self.limit <= MAX_PAGE else str(self.limit)
        fields: dict[str, str | Sequence[str]] = {
            "name": self.name,
            "namespace": self.namespace,
            "labelSelector": self.selector,
            "fieldSelector": self.field_selector,
            "sort": self.sort,
            "cluster": self.clusters,
            "limit": limit,
            "asOf": self.as_of,
        }
        return {key: value for key, value in fields.items() if value}

    def run(self, api: ApiClient) -> Found:
        """List the objects.

        Raises:
            ApiFailed: no response, or no such resource.
            ApiRefused: the query is malformed.
        """
        return api.list(self.resource, self.parameters(is_paged=True), self.limit)

    def each(self, api: ApiClient, listing: Found) -> Iterator[Item]:
        """List the objects one by one, a page at a time.

        Args:
            api: the query API.
            listing: gets what the pages say beside the objects.

        Raises: as `run`.
        """
        return api.each(self.resource, self.parameters(is_paged=True), self.limit, listing)


def sort_field(text: str) -> str:
    """The `sort` of the query API for `--sort-by`: `{.metadata.name}` is `metadata.name`."""
    return text.strip().strip("{}").removeprefix(".")
