"""The report of a watcher campaign on each phase."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from faults.rig.records import Violation
from faults.watchers.records import Records
from faults.watchers.request_checks import reasons_of


@dataclass(frozen=True)
class PhaseReport:
    """The figures of one phase."""

    seed: int
    phase: str
    mutation: str
    seconds: float
    writes: int
    rate: float
    messages: int
    settled_seconds: float
    kills: dict[str, int]
    faults: dict[str, int]
    lists: dict[str, int]
    watches: int
    memory_mb: dict[str, float]
    violations: list[str]

    @property
    def line(self) -> str:
        kills, faults = sum(self.kills.values()), sum(self.faults.values())
        return (
            f"  {self.phase:8} {self.seconds:5.0f} s  {self.rate:5.0f} writes/s  kills {kills:3}"
            f"  faults {faults:3}  lists {sum(self.lists.values()):3}  watches {self.watches:4}"
            f"  messages {self.messages:6}  settled {self.settled_seconds:4.1f} s"
            f"  watcher {self.memory_mb.get('watcher', 0):.0f} MB"
            f"  violations {len(self.violations)}"
        )


def report_of(records: Records, violations: Sequence[Violation]) -> PhaseReport:
    """The figures of what was recorded."""
    meta = records.meta
    log = records.log
    requests_sent = [
        request
        for requests in records.requests.values()
        for request in requests
        if request["t"] >= meta["began"] and request["agent"].startswith("fleetbus-watcher/")
    ]
    return PhaseReport(
        seed=meta["seed"],
        phase=meta["phase"],
        mutation=meta["mutation"],
        seconds=meta["seconds"],
        writes=meta["writes"],
        rate=meta["rate"],
        messages=meta["messages"],
        settled_seconds=meta["settled_seconds"],
        kills=dict(
            Counter(
                line["why"]
                for line in log
                if line["kind"] == "kill" and line["process"] != "projector"
            )
        ),
        faults=dict(
            Counter(
                line["fault"]
                for line in log
                if line["kind"] == "fault" and line["phase"] == "begin"
            )
        ),
        lists=dict(reasons_of(records)[0]),
        watches=sum(request["verb"] == "watch" for request in requests_sent),
        memory_mb=_largest(records),
        violations=[f"{violation.rule}: {violation.text}" for violation in violations],
    )


def _largest(records: Records) -> dict[str, float]:
    largest: dict[str, float] = defaultdict(float)
    for _, process, size in records.memory:
        kind = "projector" if process.startswith("projector") else "watcher"
        largest[kind] = max(largest[kind], size / 1024)
    return dict(largest)
