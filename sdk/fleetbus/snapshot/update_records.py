"""Updates the records of one cluster by compare-and-set (rules P13, P14, P17).

A record makes a claim about the store: that a resource was listed completely, that a cluster is a
member. Read, compute and write must see the same store and the same fleet: a claim that was
computed before the store was emptied and written afterwards would call an empty snapshot complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from fleetbus.snapshot.records import ClusterRecord, ResourceRecord
from fleetbus.snapshot.shards import check_generation

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript

    from fleetbus.snapshot.outcomes import CompletedEpoch
    from fleetbus_proto.keys import SnapshotKeys

_cluster_decoder: Final = msgspec.json.Decoder(ClusterRecord)
_resource_decoder: Final = msgspec.json.Decoder(ResourceRecord)
_WRITTEN, _CHANGED, _REFUSED = 1, 0, -1  # the answers of update_records.lua


class Records(NamedTuple):
    """The records of one cluster; resources by their key."""

    cluster: ClusterRecord
    resources: Mapping[str, ResourceRecord]
    removed: Collection[str] = ()
    """Keys of resources to remove; one that is only missing in `resources` stays unchanged."""


Change = Callable[[Records], Records]
"""A pure function; it is called again if another process wrote meanwhile."""


async def update_records(
    redis: Redis,
    keys: SnapshotKeys,
    script: AsyncScript,
    cluster: str,
    change: Change,
    *,
    completed: CompletedEpoch | None,
) -> bool:
    """See `SnapshotWriter.update_records`."""
    while True:
        written = await _update_once(redis, keys, script, cluster, change, completed)
        if written != _CHANGED:  # else another projector wrote, or the store was emptied
            return written == _WRITTEN


async def _update_once(
    redis: Redis,
    keys: SnapshotKeys,
    script: AsyncScript,
    cluster: str,
    change: Change,
    completed: CompletedEpoch | None,
) -> int:
    shard = keys.shard_of(cluster)
    async with redis.pipeline(transaction=False) as pipe:
        pipe.get(keys.generation(shard))
        pipe.hget(keys.clusters(shard), cluster)
        pipe.hgetall(keys.resources(cluster))
        generation, old, raw = cast(
            "tuple[bytes | None, bytes | None, dict[bytes, bytes]]", await pipe.execute()
        )
    check_generation(generation, keys)
    if old is None:
        return _REFUSED
    resources = {key.decode(): _resource_decoder.decode(value) for key, value in raw.items()}
    records = Records(_cluster_decoder.decode(old), resources)
    changed_records = change(records)
    new = (
        old
        if changed_records.cluster == records.cluster
        else msgspec.json.encode(changed_records.cluster)
    )
    changed = _changed_fields(raw, records, changed_records)
    if new == old and not changed:
        return _WRITTEN
    names = [keys.generation(shard), keys.clusters(shard), keys.resources(cluster)]
    rank = ""
    if completed is not None:
        names.append(keys.epochs(cluster, completed.resource_key, completed.scope))
        rank = f"{completed.rank.resource_version} {completed.rank.id}"
    return int(
        await script(
            keys=names, args=[cast("bytes", generation), cluster, old, new, rank, *changed]
        )
    )


def _changed_fields(
    raw: Mapping[bytes, bytes], records: Records, changed_records: Records
) -> list[str | bytes]:
    """Per changed resource: key, old value, new value; empty if none changed."""
    changed: list[str | bytes] = []
    for key, record in changed_records.resources.items():
        if record != records.resources.get(key):
            changed += (key, raw.get(key.encode(), b""), msgspec.json.encode(record))
    for key in changed_records.removed:
        if (value := raw.get(key.encode())) is not None:
            changed += (key, value, b"")
    return changed
