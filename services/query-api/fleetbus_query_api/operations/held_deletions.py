"""Lists the deletions that wait for a person, as `fleetbus fuse` does, from the snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from fleetbus.deletions.budget import WINDOW, DeletionBudget, allowance, objects_on_record
from fleetbus.deletions.held import find_held, status_of
from fleetbus.snapshot import ListQuery, SnapshotReader
from fleetbus_query_api.access.authorise import Access, Right
from fleetbus_query_api.catalog.catalog import read_generation
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.operations.hub_rights import require_on_hub
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import body_of, render_freshness

MULTI_CLUSTER_RESOURCES: Final = Right("list", "fleetbus.dev", "multiclusterresources")
_KEY: Final = "fleetbus.dev/multiclusterresources"
_PAGE: Final = 500


class HeldDeletions:
    """Answers requests for held deletions, as JSON.

    Args:
        reader: the snapshot, with the objects of the hub.
        redis: holds the budget of the fleet.
        access: decides who may see them.
    """

    def __init__(self, *, reader: SnapshotReader, redis: Redis, access: Access) -> None:
        self._reader = reader
        self._redis = redis
        self._access = access

    async def list(self, user: User) -> bytes:
        """List what is held, and how much of the fleet's budget of deletions is used.

        Raises:
            ForbiddenProblem: the user may not list MultiClusterResources on the hub.
            NotFoundProblem: the hub is no cluster of the fleet.
            StoreEmpty: the fleet is unknown (rule P13).
            StoreError: the store does not answer.
            UnavailableProblem: the hub does not decide.
        """
        await require_on_hub(self._access, user, MULTI_CLUSTER_RESOURCES)
        await read_generation(self._reader)
        hubs = [record.name for record in await self._reader.clusters() if record.hub]
        if not hubs:
            raise NotFoundProblem(
                "no cluster of the fleet is the hub, so its MultiClusterResources are not in the"
                " snapshot; `fleetbus fuse` asks the hub itself"
            )
        # Freshness first: what is read after it is at least as fresh as it says (rule A4).
        freshness = await self._reader.freshness(hubs, _KEY)
        resources = await self._read(hubs)
        used = await DeletionBudget(self._redis).used()
        records = sum(objects_on_record(status_of(resource)) for resource in resources)
        return msgspec.json.encode(
            {
                "budget": {
                    "used": used,
                    "allowed": allowance(records),
                    "windowSeconds": int(WINDOW.total_seconds()),
                },
                "held": [deletion.describe() for deletion in find_held(resources)],
                **render_freshness(freshness),
            }
        )

    async def _read(self, hubs: Sequence[str]) -> list[dict[str, Any]]:
        query = ListQuery(clusters=hubs, resource=_KEY, limit=_PAGE, count=False)
        resources: list[dict[str, Any]] = []
        async for page in self._reader.pages(query):
            for body in map(body_of, page.entries):
                # Of what has no readable body nothing is known; `fleetbus fuse` asks the hub.
                with contextlib.suppress(UnreadableBody):
                    resources.append(decode(body))
        return resources
