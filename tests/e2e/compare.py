"""Compares the objects of the API servers with the snapshot and with a plain subscriber."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from redis.asyncio import Redis

from e2e.subscriber import Found, Place, Subscriber
from fleetbus.snapshot.guard import read_guard
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.keys import SnapshotKeys
from support.api.conformance_client import Api
from support.api.served_types import list_metadata, types_with

_ALIVE = "L"
_SHOWN = 3
_PAUSE = 0.5

Truth = dict[Place, Found]


@dataclass(frozen=True)
class Settled:
    """Result of the comparison.

    Attributes:
        seconds: until everything agreed, or until patience was over.
        objects: how many the API servers hold.
        differences: what did not agree in the end.
        last: some of what did not agree when it was looked at before.
    """

    seconds: float
    objects: int
    differences: tuple[str, ...]
    last: tuple[str, ...]


def list_cluster(cluster: str, api: Api, denied: frozenset[str]) -> Truth:
    """Everything that a watcher of `*` watches, as the API server lists it now."""
    types = types_with(api, "list", "watch")
    return {
        (cluster, key): {
            f"{meta.get('namespace', '')}/{meta['name']}": (meta["uid"], meta["resourceVersion"])
            for meta in list_metadata(api, path)
        }
        for key, path in types.items()
        if key not in denied
    }


async def settle(
    apis: Mapping[str, Api],
    redis: Redis,
    subscriber: Subscriber,
    denied: frozenset[str],
    *,
    within: timedelta,
) -> Settled:
    """Compare until nothing differs."""
    began = time.monotonic()
    last: tuple[str, ...] = ()
    while True:
        truth: Truth = {}
        for cluster, api in apis.items():
            truth |= await asyncio.to_thread(list_cluster, cluster, api, denied)
        differences = [
            *stream_differences(truth, subscriber),
            *await _snapshot_differences(truth, redis, list(apis)),
        ]
        seconds = time.monotonic() - began
        if not differences or seconds > within.total_seconds():
            return Settled(seconds, sum(map(len, truth.values())), tuple(differences), last)
        last = tuple(differences[-_SHOWN:])
        await asyncio.sleep(_PAUSE)


def stream_differences(truth: Truth, subscriber: Subscriber) -> list[str]:
    """Describe the objects whose state at the subscriber differs from the API servers' lists."""
    differences: list[str] = []
    for place in sorted({*truth, *subscriber.places}):
        listed = truth.get(place, {})
        differences += _differences("stream", place, listed, subscriber.alive(place))
        uids = {uid for uid, _ in listed.values()}
        if wrong := subscriber.deleted[place] & uids:
            differences.append(
                f"stream {' '.join(place)}: `deleted` of {len(wrong)} that are there"
            )
    return differences


async def _snapshot_differences(truth: Truth, redis: Redis, clusters: list[str]) -> list[str]:
    reader = SnapshotReader(redis, SnapshotKeys())
    differences: list[str] = []
    for cluster in clusters:
        places = {(cluster, record.key) for record in await reader.resources(cluster)}
        for place in sorted(places | {place for place in truth if place[0] == cluster}):
            rows = await _rows(redis, place)
            differences += _differences("snapshot", place, truth.get(place, {}), rows)
            if place in truth:
                fresh = (await reader.freshness([cluster], place[1]))[cluster]
                if not fresh.is_complete:
                    differences.append(f"snapshot {' '.join(place)}: not complete: {fresh.reason}")
    return differences


async def _rows(redis: Redis, place: Place) -> Found:
    raw = await cast("Any", redis.hgetall(SnapshotKeys().guards(*place)))
    guards = {key.decode(): read_guard(value) for key, value in raw.items()}
    return {
        key: (guard.uid, guard.resource_version)
        for key, guard in guards.items()
        if guard.state == _ALIVE
    }


def _differences(subject: str, place: Place, listed: Found, reported: Found) -> list[str]:
    groups = {
        "lost": listed.keys() - reported.keys(),
        "not gone": reported.keys() - listed.keys(),
        "old": {key for key in listed.keys() & reported.keys() if listed[key] != reported[key]},
    }
    return [
        f"{subject} {' '.join(place)}: {len(names)} {kind}, "
        f"like {_shown(sorted(names), listed, reported)}"
        for kind, names in groups.items()
        if names
    ]


def _shown(names: list[str], listed: Found, reported: Found) -> str:
    examples = names[:_SHOWN]
    return "; ".join(
        f"{name}: {listed.get(name)} reported as {reported.get(name)}" for name in examples
    )
