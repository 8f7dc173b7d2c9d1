"""All checks over the records of one phase of the distributors' campaign."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from faults.distributors.call_checks import check_calls
from faults.distributors.history import History, read_history
from faults.distributors.kill_points import POINTS, RARE
from faults.distributors.settings import DISTRIBUTORS, SETTLE_SECONDS
from faults.distributors.state_checks import check_state
from faults.distributors.write_checks import (
    check_deletions,
    check_excuses,
    check_marks,
    check_strangers,
    check_waves,
)
from faults.rig.records import Json, Violation, log_of, read_lines

_KILLED: Final = -signal.SIGKILL
_UNHANDLED: Final = -signal.SIGTERM
"""The status of a process that was about to start when it was asked to end."""


@dataclass(frozen=True)
class DistributorRecords:
    """The records of one phase; history, log and writes are those of the seed up to its end."""

    meta: Json
    final: Json
    history: History
    log: list[Json]
    sent: list[Json]
    plans: list[Json]
    swept: int
    """Number of orphans that the distributors have last reported."""


def read_distributor_records(folder: Path) -> DistributorRecords:
    """Read one phase."""
    seed = folder.parent
    plans = folder / "plans.json"
    meta: Json = orjson.loads((folder / "meta.json").read_bytes())
    end = meta["ended"]
    return DistributorRecords(
        meta=meta,
        final=orjson.loads((folder / "final.json").read_bytes()),
        history=read_history(seed / "history.jsonl", until=end),
        log=[line for line in read_lines(seed / "log.jsonl") if line["t"] <= end],
        sent=[line for line in read_lines(seed / "writes.jsonl") if line["t"] <= end],
        plans=orjson.loads(plans.read_bytes()) if plans.exists() else [],
        swept=max((_last_swept(seed / f"{name}.log") for name in DISTRIBUTORS), default=0),
    )


def _last_swept(path: Path) -> int:
    lines = [line for line in log_of(path) if line.get("event") == "orphans_found"]
    return int(lines[-1]["count"]) if lines else 0


def check_distributors(records: DistributorRecords) -> list[Violation]:
    """All violations."""
    return [*_violations(records)]


def _violations(records: DistributorRecords) -> Iterator[Violation]:
    yield from check_state(records.final)
    yield from check_excuses(records.history, records.final)
    yield from check_strangers(records.history)
    yield from check_marks(records.history)
    yield from check_deletions(records.history)
    yield from check_waves(records.history, records.log)
    yield from check_calls(records.sent)
    if records.meta["settled_seconds"] >= SETTLE_SECONDS:
        yield Violation("R10 idle", f"still writing after {SETTLE_SECONDS} s in which all was well")
    yield from _check_reported(records)
    yield from _check_ended(records)
    yield from _check_plans(records)
    yield from _check_points(records)
    for line in records.log:
        if line["kind"] == "violation" and line["t"] >= records.meta["began"]:
            yield Violation(line["rule"], line["text"])


def _check_reported(records: DistributorRecords) -> Iterator[Violation]:
    """D7: the distributors themselves have found the orphans."""
    if records.final["orphans"] and not records.swept:
        yield Violation("D7 unreported", f"nobody has reported {records.final['orphans']}")


def _check_ended(records: DistributorRecords) -> Iterator[Violation]:
    """No fault ends a process; an agent that gets SIGTERM ends in good order, once it serves."""
    for line in records.log:
        if line["kind"] == "ended" and line["status"] not in _statuses(line):
            yield Violation("ended", f"{line['process']} ended with status {line['status']}")


def _statuses(ended: Json) -> tuple[int, ...]:
    return (_KILLED, _UNHANDLED, 0) if ended["terminated"] else (_KILLED,)


def _check_plans(records: DistributorRecords) -> Iterator[Violation]:
    """D25: the writes are those that were planned."""
    for plan in records.plans:
        planned, done = ({" ".join(change) for change in plan[key]} for key in ("planned", "done"))
        if planned != done:
            text = f"planned and not done {sorted(planned - done)}, done and not planned"
            yield Violation("D25 plan", f"{text} {sorted(done - planned)}")


def _check_points(records: DistributorRecords) -> Iterator[Violation]:
    """Each point was died at, and the points are all that there are."""
    if records.meta["phase"] == "points" and records.meta["points"] is None:
        died = {
            f"{sending['side']} {sending['write']}" for sending in records.sent if sending["dies"]
        }
        for point in sorted({*POINTS} - died):
            yield Violation("points", f"nobody died {point}")
    points = RARE | {point.partition(" ")[2] for point in POINTS}
    for write in sorted({sending["write"] for sending in records.sent} - points):
        yield Violation("points", f"{write!r} is no point of the campaign")


def count_faults(records: DistributorRecords) -> dict[str, Any]:
    """Return how many faults of each kind there were in a phase."""
    since = records.meta["began"]
    return dict(
        Counter(
            line["fault"]
            for line in records.log
            if line["kind"] == "fault" and line["phase"] == "begin" and line["t"] >= since
        )
    )


def count_agent_kills(records: DistributorRecords) -> int:
    """Return how many agents ended by SIGKILL in a phase."""
    since = records.meta["began"]
    return sum(
        line["kind"] == "ended"
        and line["status"] == _KILLED
        and line["process"] not in DISTRIBUTORS
        and line["t"] >= since
        for line in records.log
    )
