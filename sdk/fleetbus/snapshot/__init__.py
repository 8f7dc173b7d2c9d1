"""The snapshot: the latest known state of every watched object of the fleet, in Redis or Valkey.

Its one write path is a Lua script (`SnapshotWriter.apply`), idempotent and guarded by order, so
every consumer may apply every event. Readers get the bytes that the API server sent.

    redis = await connect("redis://127.0.0.1:6379/0")
    writer, reader = SnapshotWriter(redis, SnapshotKeys()), SnapshotReader(redis, SnapshotKeys())
    await writer.ensure_generation()                        # the projector, once at start
    await writer.put_cluster("eu1", ClusterRecord(name="eu1"))
    result = await writer.apply(events)
    page = await reader.list(ListQuery(clusters=["eu1"], resource="core/pods"))

A *resource key* is `<group>/<plural>`, like `core/pods` (`fleetbus_proto.resources.Resource.key`).
"""

from __future__ import annotations

from fleetbus.snapshot.outcomes import ApplyOutcome, ApplyResult, CompletedEpoch, EpochState
from fleetbus.snapshot.reads.entries import Entry, Page
from fleetbus.snapshot.reads.paging import ExpiredToken, InvalidToken
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import (
    ClusterRecord,
    Definition,
    Freshness,
    ResourceRecord,
    ResourceState,
    ResourceType,
)
from fleetbus.snapshot.sweep import SweepCandidate
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus.store.connection import StoreEmpty, connect

__all__ = [
    "ApplyOutcome",
    "ApplyResult",
    "ClusterRecord",
    "CompletedEpoch",
    "Definition",
    "Entry",
    "EpochState",
    "ExpiredToken",
    "Freshness",
    "InvalidToken",
    "ListQuery",
    "Page",
    "ResourceRecord",
    "ResourceState",
    "ResourceType",
    "SnapshotReader",
    "SnapshotWriter",
    "StoreEmpty",
    "SweepCandidate",
    "connect",
]
