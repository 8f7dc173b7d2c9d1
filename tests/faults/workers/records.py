"""The records of workers, indexed for queries: runs, and the times when a worker was impaired."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from faults.rig.records import Json, log_of, read_lines
from faults.workers.settings import SLOW_STORE, SOURCES, TARGET, WORKERS

SUCCESSES = frozenset({"ok", "again"})
FAILURES = frozenset({"failed", "conflict"})
_STORE_FAULTS = frozenset({"kill-valkey", "sigstop-valkey", "last-changes", SLOW_STORE})
_BUS_FAULTS = frozenset({"kill-nats", "sigstop-nats"})


@dataclass(slots=True)
class WorkerRun:
    """One run of the reconcile function, under one fence.

    Attributes:
        begin: when the function was called.
        acts: its side effects: what, when it asked whether the lease is its, when it was done.
        read: the version that it saw; empty for nothing, None if it did not get so far.
        read_at: when.
        sends: when it was about to write to the target.
        blocks: from when until when it blocked its event loop.
        end: when it was over; None for one that was killed.
        outcome: how.
    """

    key: str
    fence: str
    worker: str
    pid: int
    begin: float
    attempt: int
    acts: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    read: str | None = None
    read_at: float = 0.0
    sends: float | None = None
    blocks: tuple[float, float] | None = None
    end: float | None = None
    outcome: str = ""

    @property
    def taken(self) -> float:
        """When the store handed the key out."""
        return int(self.fence.partition(".")[0]) / 1e6

    @property
    def is_success(self) -> bool:
        return self.outcome in SUCCESSES

    @property
    def is_failure(self) -> bool:
        """Whether it raised something that counts as an attempt."""
        return self.outcome in FAILURES or ":" in self.outcome


def runs_of(lines: Iterable[Json]) -> list[WorkerRun]:
    """The runs, in the order of their beginnings."""
    runs: dict[tuple[str, str], WorkerRun] = {}
    for line in lines:
        if line["what"] == "starved":
            continue
        place = (line["key"], line["fence"])
        if line["what"] == "begin":
            runs[place] = WorkerRun(
                line["key"], line["fence"], line["worker"], line["pid"], line["t"], line["attempt"]
            )
            continue
        run = runs[place]
        if line["what"] == "end":
            run.end, run.outcome = line["t"], line["outcome"]
        elif line["what"] == "sends":
            run.sends = line["t"]
        elif line["what"] == "blocks":
            run.blocks = (line["t"], line["t"] + line["seconds"])
        else:
            run.acts.append((line["what"], line["asked"], line["t"]))
            if line["what"] == "read":
                run.read, run.read_at = line["rv"], line["t"]
    return sorted(runs.values(), key=lambda run: run.begin)


class Spans:
    """Times at which something was so."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin for begin, _ in self._spans]

    def meets(self, begin: float, end: float) -> bool:
        """Whether one of them has a moment in common with this span."""
        before = self._spans[: bisect_left(self._begins, end)]
        return any(until >= begin for _, until in before)

    def __len__(self) -> int:
        return len(self._spans)


@dataclass
class WorkerRecords:
    """The records of one phase and of those before it.

    Attributes:
        meta: seed, phase, when it began and ended.
        truth: the last commits of each object, by cluster and object key.
        commits: when config maps of the sources were written.
        runs: the runs of all workers.
        starved: when a worker was not given the processor: since when, until when.
        writes: the requests that the target was sent, in order.
        log: the actions of the campaign.
        logs: the log lines of each worker.
        memory: time, process, kilobytes.
        queue: the items left in it.
    """

    meta: Json
    truth: dict[str, Json]
    commits: list[float]
    runs: list[WorkerRun]
    starved: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )
    writes: list[Json] = field(default_factory=list[Json])
    log: list[Json] = field(default_factory=list[Json])
    logs: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    memory: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])
    queue: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.stops = {
            name: Spans([*self._spans({"sigstop"}, name), *self.starved.get(name, [])])
            for name in WORKERS
        }
        self.store_faults = Spans(self._spans(_STORE_FAULTS))
        self.outages = Spans(self._spans(_STORE_FAULTS | _BUS_FAULTS))
        self.blocks = {
            name: Spans(
                run.blocks for run in self.runs if run.worker == name and run.blocks is not None
            )
            for name in WORKERS
        }
        self.kills = {
            name: Spans(
                (line["t"], line["t"])
                for line in self.log
                if line["kind"] == "kill" and line["process"] == name
            )
            for name in WORKERS
        }

    def _spans(self, faults: Iterable[str], process: str = "") -> list[tuple[float, float]]:
        spans: list[tuple[float, float]] = []
        open_: dict[tuple[str, str], float] = {}
        for line in self.log:
            if line["kind"] != "fault" or line["fault"] not in faults:
                continue
            if process and line["process"] != process:
                continue
            place = (line["fault"], line.get("process", ""))
            if line["phase"] == "begin":
                open_[place] = line["t"]
            else:
                spans.append((open_.pop(place), line["t"]))
        return spans + [(begin, float("inf")) for begin in open_.values()]

    def by_key(self) -> dict[str, list[WorkerRun]]:
        """The runs of each key, in the order of their fences."""
        found: dict[str, list[WorkerRun]] = defaultdict(list)
        for run in self.runs:
            found[run.key].append(run)
        for runs in found.values():
            runs.sort(key=lambda run: run.taken)
        return found

    def lines(self, event: str) -> list[tuple[str, float, Json]]:
        """Return the log lines of an event: worker, time, line."""
        return [
            (name, time_of(line), line)
            for name, lines in self.logs.items()
            for line in lines
            if line.get("event") == event
        ]


def time_of(line: Json) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def read_worker_records(folder: Path) -> WorkerRecords:
    """Read one phase: its own files, and those that all phases of a seed share."""
    seed = folder.parent
    meta: Json = orjson.loads((folder / "meta.json").read_bytes())
    end = meta["ended"]
    truth: dict[str, Json] = {}
    commits: list[float] = []
    for cluster in SOURCES:
        for commit in read_lines(seed / "truth" / f"{cluster}.jsonl"):
            at = datetime.fromisoformat(commit["time"]).timestamp()
            if commit["resource"] == "configmaps" and at <= end:
                key = f"{cluster}/{commit['namespace']}/{commit['name']}"
                truth[key] = {"t": at, "type": commit["type"], "rv": str(commit["rv"])}
                commits.append(at)
    lines = [line for line in _whole_lines(seed / "effects.jsonl") if line["t"] <= end]
    starved: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line["what"] == "starved":
            starved[line["worker"]].append((line["since"], line["t"]))
    logs = {name: log_of(seed / f"{name}.log") for name in WORKERS}
    return WorkerRecords(
        meta=meta,
        truth=truth,
        commits=commits,
        runs=runs_of(lines),
        starved=starved,
        writes=[r for r in read_lines(seed / "requests" / f"{TARGET}.jsonl") if r["t"] <= end],
        log=sorted(
            (line for line in read_lines(seed / "log.jsonl") if line["t"] <= end),
            key=lambda line: line["t"],
        ),
        logs={name: [x for x in lines if time_of(x) <= end] for name, lines in logs.items()},
        memory=[tuple(line) for line in read_lines(seed / "memory.jsonl")],
        queue=orjson.loads((folder / "queue.json").read_bytes()),
    )


def _whole_lines(path: Path) -> Sequence[Any]:
    """A worker may be killed in the middle of a write."""
    lines: list[Any] = []
    for line in path.read_bytes().splitlines():
        try:
            lines.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
    return lines
