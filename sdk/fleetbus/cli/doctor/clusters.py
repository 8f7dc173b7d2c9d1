"""Checks of the clusters, by what the snapshot knows of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from fleetbus.cli.doctor.findings import Finding, error, ok, warning
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from fleetbus_proto.resources import Resource

_NAMED: Final = 3


Watched = dict[str, list[Resource]]
"""By cluster, the resources that its watchers report."""


async def watched_resources(reader: SnapshotReader) -> Watched:
    """Read what is watched in each cluster of the fleet.

    Raises:
        redis.exceptions.RedisError: no shard answers.
    """
    known = await reader.available_clusters()
    return {
        record.name: [
            Resource(one.group, one.version, one.plural)
            for one in await reader.resources(record.name)
        ]
        for record in known.records
    }


async def check_clusters(reader: SnapshotReader) -> AsyncIterator[Finding]:
    """Check every cluster of the fleet.

    Raises:
        redis.exceptions.RedisError: no shard answers.
    """
    known = await reader.available_clusters()
    if not known.records and not known.away:
        yield warning("clusters", "the fleet has no clusters", "add one with `fleetbus join`")
    for record in sorted(known.records, key=lambda record: record.name):
        for finding in _cluster(record, await reader.resources(record.name)):
            yield finding


def _cluster(record: ClusterRecord, resources: Sequence[ResourceRecord]) -> Iterator[Finding]:
    about = f"cluster {record.name}"
    for entry in record.invalid[:_NAMED]:
        yield warning(about, f"its watch spec has an invalid entry: {entry}", "correct the entry")
    if silent := record.why_silent(datetime.now(UTC)):
        advice = f"is a watcher of {record.name} running, and does its API server answer?"
        yield error(about, silent, advice)
        return
    bad = [one for one in resources if one.state is not ResourceState.SYNCED]
    for one in bad[:_NAMED]:
        advice = "look into the watcher's log; a missing right is in the message"
        yield warning(about, f"{one.key} is {one.state}: {one.reason or 'not listed yet'}", advice)
    if len(bad) > _NAMED:
        more = f"and {len(bad) - _NAMED} more resources are not synced"
        yield warning(about, more, f"see `fleetbus clusters` and `fleetbus describe {record.name}`")
    if not bad:
        yield ok(about, f"answers; {len(resources)} resources are synced")
