"""The records of one phase of the watchers' campaign."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from faults.rig.records import Json, log_of, read_lines
from faults.rig.settings import WATCHERS

Live = dict[str, tuple[str, str]]
"""Object key → (uid, resourceVersion)."""
Place = tuple[str, str]
"""Cluster and resource key."""


@dataclass
class Records:
    """The records of one phase.

    Attributes:
        meta: seed, phase, how it ended.
        final: the objects of the clusters at the end.
        snapshot: the objects of the snapshot at the end.
        stream: the messages, in order.
        truth: every committed write of the clusters, in order.
        rows: each state of a row that was seen in the snapshot, in order, with its time.
        memory: time, process, kilobytes.
        requests: the requests of the watchers, by cluster.
        log: the actions of this phase, in order.
        all_log: the same of this phase and those before it.
        logs: the log lines of each watcher.
        bucket: the writes of the bucket, in order.
    """

    meta: Json
    final: dict[Place, Live]
    snapshot: dict[Place, Live]
    stream: list[Json]
    truth: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    rows: list[list[Any]] = field(default_factory=list[list[Any]])
    memory: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])
    requests: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    log: list[Json] = field(default_factory=list[Json])
    all_log: list[Json] = field(default_factory=list[Json])
    logs: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    bucket: list[Json] = field(default_factory=list[Json])

    @property
    def is_stream_whole(self) -> bool:
        return not self.meta.get("stream_lost", False)


def read_records(folder: Path) -> Records:
    """Read one phase: its own files, and those that all phases of a seed share."""
    seed = folder.parent
    meta: Json = orjson.loads((folder / "meta.json").read_bytes())
    requests = {
        path.stem: [r for r in read_lines(path) if r["t"] <= meta["ended"]]
        for path in sorted((seed / "requests").glob("*.jsonl"))
    }
    return Records(
        meta=meta,
        final=places_of(orjson.loads((folder / "final.json").read_bytes())),
        snapshot=places_of(orjson.loads((folder / "snapshot.json").read_bytes())),
        stream=list(read_lines(folder / "stream.jsonl")),
        truth={path.stem: list(read_lines(path)) for path in (seed / "truth").glob("*.jsonl")},
        rows=[row for row in read_lines(seed / "rows.jsonl") if row[0] <= meta["ended"]],
        memory=[tuple(line) for line in read_lines(seed / "memory.jsonl")],
        requests=requests,
        log=list(read_lines(folder / "log.jsonl")),
        all_log=_logs_until(seed, meta["ended"]),
        logs={name: log_of(seed / f"{name}.log") for name in WATCHERS},
        bucket=[w for w in read_lines(seed / "kv.jsonl") if w["t"] <= meta["ended"]],
    )


def _logs_until(seed: Path, end: float) -> list[Json]:
    """Return the log lines of all phases up to a time, in order."""
    lines = [line for path in seed.glob("*/log.jsonl") for line in read_lines(path)]
    return sorted((line for line in lines if line["t"] <= end), key=lambda line: line["t"])


def places_of(document: dict[str, dict[str, dict[str, list[str]]]]) -> dict[Place, Live]:
    """The records of the clusters, or of the snapshot, by place."""
    return {
        (cluster, resource): {key: (uid, rv) for key, (uid, rv) in objects.items()}
        for cluster, resources in document.items()
        for resource, objects in resources.items()
    }
