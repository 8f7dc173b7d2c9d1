"""Every list and every alarm of a watcher must have a reason (W5, W9, W12, W15, W20).

A list of objects is dear. A restarted watcher whose checkpoint is valid makes none; so each list
that API servers have seen is explained by what was recorded, or is a violation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from faults.rig.records import Json, Violation
from faults.rig.settings import WATCHERS
from faults.watchers.records import Records

_SLACK_SECONDS = 0.5
"""Between what a process did and when others received it."""
_HEARD_SECONDS = 7.0
"""Until a replica has received another number: a heartbeat, and a write that is not answered."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ListStart:
    """The first page of a list, as an API server saw it."""

    at: float
    replica: str
    cluster: str
    plural: str


def list_starts(records: Records) -> list[ListStart]:
    """All of the watchers, in order."""
    starts = [
        ListStart(r["t"], r["agent"].rpartition("/")[2], cluster, r["path"].rpartition("/")[2])
        for cluster, requests in records.requests.items()
        for r in requests
        if r["verb"] == "list"
        and r["agent"].startswith("fleetbus-watcher/")
        and r["query"].get("limit") != "1"
        and "continue" not in r["query"]
    ]
    plurals = {resource.rpartition("/")[2] for _, resource in records.final}
    return sorted((s for s in starts if s.plural in plurals), key=lambda start: start.at)


class _Evidence:
    """The records, indexed so that the state at any moment can be queried."""

    def __init__(self, records: Records) -> None:
        self._checkpoints: dict[tuple[str, str], list[tuple[float, int, int]]] = defaultdict(list)
        self._resyncs: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
        self._audits: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
        self._numbers: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self._losses: list[float] = []
        self._without_leader = list(_faults_of_servers(records.all_log))
        for write in records.bucket:
            self._take(write)
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._logged: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        for line in records.all_log:
            if line["kind"] == "start":
                self._starts[line["process"]].append(line["t"])
            if line["kind"] == "fault" and line["fault"] in _BUCKET_LOSSES:
                self._losses.append(line["t"])
        for replica, lines in records.logs.items():
            for line in lines:
                if plural := line.get("resource", "").rpartition("/")[2]:
                    text = f"{line['event']} {line.get('reason', '')}"
                    self._logged[replica, plural].append((_time(line), text))

    def _take(self, write: Json) -> None:
        cluster, kind, *tail = write["key"].removeprefix("_hub.").split(".")
        try:
            value: Any = orjson.loads(write["value"])
        except orjson.JSONDecodeError:
            return
        if kind == "incarnation":
            self._numbers[cluster].append((write["t"], value["number"]))
        elif kind == "checkpoint":
            number, epoch = value["incarnation"]["number"], value["rank"]["id"]
            # Sent is not stored: the bucket may have had no leader.
            if not any(begin <= write["t"] <= end for begin, end in self._without_leader):
                self._checkpoints[cluster, tail[1]].append((write["t"], number, epoch))
        elif kind == "audit":
            self._audits[cluster, tail[1]].append((write["t"], "complete" in value))
        elif kind == "resync":
            self._resyncs[cluster, tail[1]].append((write["t"], value["minEpoch"]))

    def reason(self, start: ListStart, before: float) -> str:
        """Why it listed; `before` is its previous list, of whatever life. Empty: for no reason."""
        return self._reason_in_bucket(start) or self._reason_in_log(start, before)

    def _reason_in_bucket(self, start: ListStart) -> str:
        place = (start.cluster, start.plural)
        now = start.at + _SLACK_SECONDS
        moved, number = max(
            ((t, n) for t, n in self._numbers[start.cluster] if t <= now), default=(0.0, 0)
        )
        lost = max((t for t in self._losses if t <= now), default=0.0)
        epochs = [
            epoch
            for t, n, epoch in self._checkpoints[place]
            if lost < t <= start.at - _SLACK_SECONDS and n == number
        ]
        if not epochs:
            return "no checkpoint"
        if start.at - moved < _HEARD_SECONDS:
            return "another number"
        if any(t <= now and least > max(epochs) for t, least in self._resyncs[place]):
            return "resync"
        # Its list looks like any other; one that was claimed and is not complete runs.
        audits = self._audits[place]
        before = [is_complete for t, is_complete in audits if t <= start.at]
        about = [not is_complete for t, is_complete in audits if abs(t - start.at) < _SLACK_SECONDS]
        return "audit" if (before and not before[-1]) or any(about) else ""

    def _reason_in_log(self, start: ListStart, before: float) -> str:
        life = self._life(start)
        since = max(life, before)
        lines = self._logged[start.replica, start.plural]
        logged = [text for t, text in lines if since <= t <= start.at]
        if any("Expired" in text for text in logged):
            return "too old"
        is_again = before >= life and not any(text.startswith("epoch_complete") for text in logged)
        return "again" if is_again else ""

    def _life(self, start: ListStart) -> float:
        """When the process that listed was started."""
        starts = self._starts[start.replica]
        at = bisect_left(starts, start.at)
        return starts[at - 1] if at else 0.0


_SERVER_FAULTS = ("kill-nats-server", "nats-disk-lost", "nats-quorum-lost", "sigstop-nats-server")
_ELECTED_SECONDS = 10.0
"""Until a NATS cluster has its leaders again."""


def _faults_of_servers(log: Iterable[Json]) -> Iterator[tuple[float, float]]:
    """When a server of a NATS cluster was away, with the elections that followed."""
    began = 0.0
    for line in log:
        if line["kind"] == "fault" and line["fault"] in _SERVER_FAULTS:
            if line["phase"] == "end":
                yield began, line["t"] + _ELECTED_SECONDS
            began = line["t"]


_BUCKET_LOSSES = ("nats-wiped", "nats-rolled-back", "bucket-lost")


def _time(line: Json) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def reasons_of(records: Records) -> tuple[Counter[str], list[ListStart]]:
    """Return how many lists of this phase had which reason, and those that had none."""
    evidence = _Evidence(records)
    counts: Counter[str] = Counter()
    idle: list[ListStart] = []
    before: dict[tuple[str, str], float] = {}
    for start in list_starts(records):
        reason = evidence.reason(start, before.get((start.replica, start.plural), -1.0))
        before[start.replica, start.plural] = start.at
        if start.at < records.meta["began"]:
            continue
        counts[reason or "none"] += 1
        if not reason:
            idle.append(start)
    return counts, idle


def check_lists(records: Records) -> Iterator[Violation]:
    """W5, W10: who has a valid checkpoint lists nothing."""
    _, idle = reasons_of(records)
    if idle:
        yield Violation("list-without-reason", f"{len(idle)} lists, like {idle[:_SHOWN]}")


def check_alarms(records: Records) -> Iterator[Violation]:
    """W9, W12, W23: a new incarnation number comes of a loss or a restore, and of nothing else."""
    if not records.is_stream_whole:
        return
    restores: Counter[str] = Counter()
    for line in records.all_log:
        if line["kind"] == "fault" and line["phase"] == "begin":
            if line["fault"] == "etcd-restored":
                restores[line["cluster"]] += 1
            elif line["fault"] == "bucket-lost":
                restores.update(set(WATCHERS.values()))
    numbers: dict[str, set[int]] = defaultdict(set)
    for message in records.stream:
        if message["type"] != "other":
            numbers[message["cluster"]].add(message["number"])
    for cluster, incarnations in numbers.items():
        if len(incarnations) > 1 + restores[cluster]:
            text = f"{cluster}: {len(incarnations)} incarnations, {restores[cluster]} restores"
            yield Violation("false-alarm", text)
