"""The records of one seed of the campaign of the query API."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from faults.queries.objects import Objects, Seen
from faults.queries.settings import CLIENTS, STORE_WIPED, ClientPlan
from faults.rig.records import Json, read_lines


@dataclass(frozen=True, slots=True)
class Span:
    """A time from one moment to another, in seconds of the clock."""

    begin: float
    end: float


@dataclass
class QueryRecords:
    """The records of a seed.

    Attributes:
        meta: seed, how it ended, and when each client agreed.
        final: the objects of the API servers at the end.
        caches: what each client held then, as it says itself.
        clients: what each client got, in order.
        log: what was done, in order.
        commits: the times of the writes of each cluster, in order.
        memory: time, process, kilobytes.
    """

    meta: Json
    final: Objects
    caches: dict[str, Objects]
    clients: dict[str, list[Json]]
    log: list[Json]
    commits: dict[str, list[float]]
    memory: list[tuple[float, str, int]]

    @property
    def plans(self) -> list[ClientPlan]:
        """The clients that there were."""
        return [plan for plan in CLIENTS if plan.name in self.clients]

    @property
    def wipes(self) -> list[Span]:
        """When the store was wiped."""
        return [span for name, span in self._faults() if name == STORE_WIPED]

    @property
    def quiet(self) -> list[Span]:
        """The times under load in which nothing was broken, between faults."""
        spans: list[Span] = []
        at = self.meta["began"]
        for _, span in sorted(self._faults(), key=lambda fault: fault[1].begin):
            if span.begin > at:
                spans.append(Span(at, span.begin))
            at = max(at, span.end)
        return [*spans, Span(at, self.meta["stopped"])] if self.meta["stopped"] > at else spans

    def _faults(self) -> Iterator[tuple[str, Span]]:
        open_since: dict[tuple[str, str], float] = {}
        for line in self.log:
            if line["kind"] != "fault":
                continue
            key = (line["fault"], line.get("process", line.get("cluster", "")))
            if line["phase"] == "begin":
                open_since[key] = line["t"]
            else:
                yield line["fault"], Span(open_since.pop(key), line["t"])


def read_query_records(folder: Path) -> QueryRecords:
    """Read the records of a phase; those of clients and clusters are beside it."""
    seed = folder.parent
    meta: Json = orjson.loads((folder / "meta.json").read_bytes())
    caches = orjson.loads((folder / "caches.json").read_bytes())
    return QueryRecords(
        meta=meta,
        final=_objects(orjson.loads((folder / "final.json").read_bytes())),
        caches={name: _objects(cache) for name, cache in caches.items()},
        clients={
            path.stem: [line for line in read_lines(path) if line["t"] <= meta["ended"]]
            for path in sorted((seed / "clients").glob("*.jsonl"))
        },
        log=[line for line in read_lines(folder / "log.jsonl") if line["t"] >= meta["began"]],
        commits={
            path.stem: [
                datetime.fromisoformat(commit["time"]).timestamp() for commit in read_lines(path)
            ]
            for path in sorted((seed / "truth").glob("*.jsonl"))
        },
        memory=[tuple(line) for line in read_lines(seed / "memory.jsonl")],
    )


def _objects(document: dict[str, list[object]]) -> Objects:
    return {key: seen_from(value) for key, value in document.items()}


def seen_from(value: list[object]) -> Seen:
    """An object, as a line of a client has it."""
    return Seen(*value)  # pyright: ignore[reportArgumentType]  # as `Seen` was written
