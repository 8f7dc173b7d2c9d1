"""Reads the records of all resources of a fleet, or of each only what its objects are."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

import msgspec

from fleetbus.snapshot.records import ResourceRecord, ResourceType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from redis.asyncio import Redis

    from fleetbus_proto.keys import SnapshotKeys

_AT_ONCE: Final = 40
"""Clusters of a read: with thirty resources each, about 700 KB, and 2 ms to decode them."""

_type_decoder = msgspec.json.Decoder(ResourceType)
_record_decoder = msgspec.json.Decoder(ResourceRecord)


async def read_resource_types(
    redis: Redis, keys: SnapshotKeys, clusters: Sequence[str]
) -> AsyncIterator[tuple[str, Mapping[str, ResourceType]]]:
    """Yield the types of each cluster by resource key; some clusters are read at once.

    Clusters that serve the same share one object for each type.
    """
    shared: dict[tuple[str, str, str, str, bool], ResourceType] = {}
    async for name, values in _read_values(redis, keys, clusters):
        types = [_share(_type_decoder.decode(raw), shared) for raw in values]
        yield name, {resource_type.key: resource_type for resource_type in types}


async def read_resource_records(
    redis: Redis, keys: SnapshotKeys, clusters: Sequence[str]
) -> AsyncIterator[tuple[str, Sequence[ResourceRecord]]]:
    """Yield the records of each cluster, by key; some clusters are read at once."""
    async for name, values in _read_values(redis, keys, clusters):
        yield name, sorted(map(_record_decoder.decode, values), key=attrgetter("key"))


async def _read_values(
    redis: Redis, keys: SnapshotKeys, clusters: Sequence[str]
) -> AsyncIterator[tuple[str, Sequence[bytes]]]:
    shards: dict[int, list[str]] = {}
    for name in clusters:
        shards.setdefault(keys.shard_of(name), []).append(name)
    for names in shards.values():
        for at in range(0, len(names), _AT_ONCE):
            chunk = names[at : at + _AT_ONCE]
            async with redis.pipeline(transaction=False) as pipe:
                for name in chunk:
                    pipe.hvals(keys.resources(name))
                answers = cast("list[list[bytes]]", await pipe.execute())
            for pair in zip(chunk, answers, strict=True):
                yield pair


def _share(
    resource_type: ResourceType, shared: dict[tuple[str, str, str, str, bool], ResourceType]
) -> ResourceType:
    place = (
        resource_type.group,
        resource_type.version,
        resource_type.plural,
        resource_type.kind,
        resource_type.namespaced,
    )
    first = shared.setdefault(place, resource_type)
    return first if first.definition == resource_type.definition else resource_type
