"""Lists the types of resources of the fleet, like `kubectl api-resources`."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetbus_query_api.catalog.kinds import Kind
from fleetbus_query_api.catalog.served import FLEET, ServedKinds
from fleetbus_query_api.requests.user import User


class TypeListing:
    """Answers requests for the types that a user may know of.

    Args:
        served: finds them.
    """

    def __init__(self, *, served: ServedKinds) -> None:
        self._served = served

    async def list(self, user: User) -> bytes:
        """List the types, with their names.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        items: dict[str, dict[str, Any]] = {}
        for kind in await self._served.find(user, FLEET):
            key = f"{kind.group}/{kind.plural}"
            item = items.setdefault(key, _render(kind))
            if kind.version not in item["versions"]:
                item["versions"].append(kind.version)
        return msgspec.json.encode({"items": list(items.values())})


def _render(kind: Kind) -> dict[str, Any]:
    return {
        "group": kind.group,
        "plural": kind.plural,
        "kind": kind.kind,
        "namespaced": kind.namespaced,
        "versions": [],
        "singular": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
