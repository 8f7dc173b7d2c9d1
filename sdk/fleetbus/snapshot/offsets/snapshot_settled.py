"""Whether the snapshot has all effects of the projector, as seen by a controller (rule P11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.snapshot.offsets.checkpoint_store import StoreState
    from fleetbus_proto.keys import SnapshotKeys


class SnapshotSettled:
    """Checks the shards of the snapshot for a controller, whose own checkpoint is beside its queue.

    Args:
        redis: the store.
        keys: the shards of the snapshot.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys) -> None:
        shards = range(keys.shards)
        beside = (Beside.shard_of_snapshot(keys, shard, PROJECTOR) for shard in shards)
        self._stores = [CheckpointStore(redis, keys, owner) for owner in beside]

    async def check(self, identity: str) -> bool:
        """Whether every shard is set up, and none has lost writes that are not repeated yet.

        A shard on the server of the queue counts: the controller's own replay repeats what it
        watches. A shard that is away is left out: its clusters fail by themselves, and it is
        checked once it answers.

        Args:
            identity: of the server of the queue.

        Raises:
            WrongShards: the snapshot was set up with another number of shards.
        """
        answers = await asyncio.gather(
            *(store.read(PROJECTOR) for store in self._stores), return_exceptions=True
        )
        return all(_is_settled(answer, identity) for answer in answers)


def _is_settled(answer: StoreState | BaseException, identity: str) -> bool:
    if isinstance(answer, BaseException):
        if isinstance(answer, (RedisError, OSError)):
            return True
        raise answer
    if answer.generation is None:
        return False
    return answer.identity == identity or answer.run in {"", answer.identity}
