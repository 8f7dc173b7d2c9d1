"""Notes of clusters where something is missing, for the round that makes up for it (rule D11).

Only the round for all clusters creates (rule D2). It need not compare all of them for that: each
repair that finds something missing leaves the name of its cluster here, then triggers the round. A
note stays until a round that has read it is finished, so a round that dies leaves it to the next
one; notes that are lost with the store are replaced by the resync.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from fleetbus.store.connection import store_errors
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

_FAILURE: Final = "notes of missing objects cannot be read or written"
_KEPT: Final = timedelta(days=1)
"""After that its MultiClusterResource is gone, and nobody reads them."""


class MissingObjects:
    """The notes in the store, shared by all processes.

    Args:
        redis: the store.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def note(self, owner: str, cluster: str) -> None:
        """Note that objects of an owner are missing on a cluster.

        Raises:
            StoreError: the store did not answer.
        """
        key = keys.missing_objects(owner)
        with store_errors(_FAILURE):
            async with self._redis.pipeline(transaction=True) as pipe:
                # With a token: a note that is repeated during a round is still there after it.
                pipe.sadd(key, f"{cluster} {uuid.uuid4().hex}")
                pipe.expire(key, _KEPT)
                await pipe.execute()

    async def read(self, owner: str) -> frozenset[str]:
        """The notes about an owner, for `clusters_of` and `forget`.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            members = await cast("Any", self._redis.smembers(keys.missing_objects(owner)))
        return frozenset(
            member.decode() if isinstance(member, bytes) else str(member) for member in members
        )

    async def forget(self, owner: str, notes: Iterable[str]) -> None:
        """Remove notes that a round has handled.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            await cast("Any", self._redis.srem(keys.missing_objects(owner), *notes))


def clusters_of(notes: Iterable[str]) -> frozenset[str]:
    """The clusters that notes name."""
    return frozenset(note.partition(" ")[0] for note in notes)
