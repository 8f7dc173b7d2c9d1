"""Checks of the clusters, by what the snapshot knows of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from fleetbus.process.findings import Finding, error, ok, warning
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import (
    ANSWERED_WITHIN,
    ClusterRecord,
    ResourceRecord,
    ResourceState,
)
from fleetbus_proto.resources import Resource

_NAMED: Final = 3
_FORGOTTEN: Final = timedelta(minutes=5)
"""The projector waits 90 s before it forgets what no watcher reports any more (rule P6)."""

Watched = dict[str, list[Resource]]
"""By cluster, the resources that its watchers report."""


async def watched_resources(reader: SnapshotReader) -> Watched:
    """Read what is watched in each cluster of the fleet.

    Raises:
        redis.exceptions.RedisError: no shard answers.
    """
    clusters = await reader.available_clusters()
    return {
        record.name: [
            Resource(resource.group, resource.version, resource.plural)
            for resource in await reader.resources(record.name)
        ]
        for record in clusters.records
    }


async def check_clusters(reader: SnapshotReader) -> AsyncIterator[Finding]:
    """Check every cluster of the fleet.

    Raises:
        redis.exceptions.RedisError: no shard answers.
    """
    clusters = await reader.available_clusters()
    if not clusters.records and not clusters.away:
        yield warning("clusters", "the fleet has no clusters", "add one with `fleetbus join`")
    for record in sorted(clusters.records, key=lambda record: record.name):
        for finding in _cluster(record, await reader.resources(record.name)):
            yield finding


def _cluster(record: ClusterRecord, resources: Sequence[ResourceRecord]) -> Iterator[Finding]:
    about = f"cluster {record.name}"
    for entry in record.invalid[:_NAMED]:
        yield warning(about, f"its watch spec has an invalid entry: {entry}", "correct the entry")
    for setting in record.overridden[:_NAMED]:
        advice = "remove one of the two, or make them equal"
        yield warning(
            about, f"its watch spec overrides a setting of its watcher: {setting}", advice
        )
    if silent := record.why_silent(datetime.now(UTC)):
        advice = f"is a watcher of {record.name} running, and does its API server answer?"
        if record.agent is not None and not record.agent.connected:
            advice = f"run `fleetbus-agent doctor` in {record.name}: it says what is wrong there"
        yield error(about, silent, advice)
        return
    unsynced = [resource for resource in resources if resource.state is not ResourceState.SYNCED]
    dropped = [resource for resource in unsynced if _is_dropped(resource, datetime.now(UTC))]
    for resource in dropped:
        yield ok(about, f"{resource.key} is no longer watched, and will be forgotten soon")
    bad = [resource for resource in unsynced if resource not in dropped]
    for resource in bad[:_NAMED]:
        advice = "check the watcher's log; the message names a missing right"
        yield warning(
            about,
            f"{resource.key} is {resource.state}: {resource.reason or 'not listed yet'}",
            advice,
        )
    if len(bad) > _NAMED:
        more = f"and {len(bad) - _NAMED} more resources are not synced"
        yield warning(about, more, f"see `fleetbus clusters` and `fleetbus describe {record.name}`")
    if not bad:
        yield ok(about, f"answers; {len(resources) - len(dropped)} resources are synced")


def _is_dropped(resource: ResourceRecord, now: datetime) -> bool:
    """Whether watchers stopped reporting it a while ago; their reports name all that they watch.

    The last report may be of a watcher that had lost its right before it was replaced.
    """
    reported = [scope.reported_at for scope in resource.scopes.values()]
    if not all(reported):
        return False
    last = max((datetime.fromisoformat(at) for at in reported), default=now)
    return ANSWERED_WITHIN < now - last < _FORGOTTEN
