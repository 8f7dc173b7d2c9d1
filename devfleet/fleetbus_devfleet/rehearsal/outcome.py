"""The outcome of a rehearsal, and whether the rollout stopped where it should."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JsonObject = dict[str, Any]
_HELD: Final = "Held"
_APPLIED: Final = "Applied"
_HEALTHY: Final = ("Healthy", "")
_CONFLICT: Final = "Conflict"
_PASSED, _FAILED, _WAITING = "Passed", "Failed", "Waiting"
_REFUSED: Final = frozenset(
    {"InvalidSpec", "IntentUnusable", "RolloutUnusable", "ServiceAccountRequired"}
)
"""Reasons of the condition Ready if the distributor applies nothing of a spec."""


class Result(StrEnum):
    """The result of a rehearsal."""

    COMPLETED = "completed"
    """Every cluster has the new objects, and they are healthy."""
    CONTAINED = "contained"
    """Only clusters that a fault has broken do not, and no later wave was touched."""
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """It still waits: for a person, for a vote, or the time was over."""


@dataclass(slots=True)
class ClusterResult:
    """The result on one cluster.

    Attributes:
        name: the cluster.
        wave: its wave; empty without a rollout.
        state: as in the status; `NotReached` if its wave did not open.
        reason: as in the status.
        message: as in the status.
        health: of its objects; empty if it has none.
        created: objects, as `apps/deployments shop/web`.
        changed: likewise.
        deleted: likewise.
        left_alone: how many objects of the MultiClusterResource were not written.
    """

    name: str
    wave: str = ""
    state: str = "NotReached"
    reason: str = ""
    message: str = ""
    health: str = ""
    created: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    deleted: list[str] = field(default_factory=list[str])
    left_alone: int = 0

    @property
    def is_written(self) -> bool:
        """Whether anything was written there."""
        return bool(self.created or self.changed or self.deleted)

    @property
    def is_ready(self) -> bool:
        """Whether everything is applied and healthy."""
        return self.state == _APPLIED and self.health in _HEALTHY


@dataclass(slots=True)
class WaveResult:
    """One wave, with its times in seconds since the edit; None for what did not happen."""

    name: str
    clusters: list[str]
    phase: str = _WAITING
    message: str = ""
    opened: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Rehearsal:
    """The outcome.

    Attributes:
        result: the result.
        why: in one sentence.
        seconds: from the edit to the end.
        phase: of the rollout; empty without one.
        waves: in their order.
        clusters: of the placement, and every other one that was written.
        faults: that happened, with their times.
        missed: faults that did not, because their wave never opened.
        held: deletions that wait for a person, by cluster.
        notes: what is not as it would be in production.
    """

    result: Result
    why: str
    seconds: float
    phase: str
    waves: list[WaveResult]
    clusters: list[ClusterResult]
    faults: list[tuple[str, float]]
    missed: list[str]
    held: JsonObject
    notes: list[str]

    @property
    def is_good(self) -> bool:
        """Whether the exit status is 0."""
        return self.result in (Result.COMPLETED, Result.CONTAINED)

    @property
    def conflicts(self) -> list[str]:
        """The clusters with objects that others own."""
        return [cluster.name for cluster in self.clusters if cluster.state == _CONFLICT]

    def to_json(self) -> JsonObject:
        """The form of `-o json`."""
        tree = asdict(self)
        tree["clusters"] = [_camel(cluster) for cluster in tree["clusters"]]
        tree["faults"] = [{"fault": text, "at": at} for text, at in self.faults]
        return {**tree, "conflicts": self.conflicts}


def _camel(result: JsonObject) -> JsonObject:
    return {
        ("leftAlone" if name == "left_alone" else name): value for name, value in result.items()
    }


class Follower:
    """Follows the status of a MultiClusterResource, and notes when waves open and end."""

    def __init__(self) -> None:
        self.waves: dict[str, WaveResult] = {}
        self.phase = ""

    def see(self, status: Mapping[str, Any], at: float) -> list[str]:
        """Note the status; returns what is new, for people."""
        news: list[str] = []
        rollout = cast("JsonObject", status.get("rollout") or {})
        for entry in cast("list[JsonObject]", rollout.get("waves") or []):
            name, phase = str(entry["name"]), str(entry["phase"])
            wave = self.waves.setdefault(name, WaveResult(name, []))
            wave.clusters = list(entry.get("clusters") or [])
            wave.message = str(entry.get("message", ""))
            if phase == wave.phase:
                continue
            if wave.opened is None:
                wave.opened = at
                news.append(f"wave {name} opens: {', '.join(wave.clusters) or 'no cluster'}")
            if phase in (_PASSED, _FAILED):
                wave.ended = at
                more = f": {wave.message}" if wave.message else ""
                news.append(f"wave {name} has {phase.lower()}{more}")
            wave.phase = phase
        phase = str(rollout.get("phase", ""))
        if phase != self.phase:
            self.phase = phase
            more = f": {rollout['message']}" if rollout.get("message") else ""
            news += [f"the rollout is {phase.lower()}{more}"] if phase else []
        return news


def count_held(deletion: Mapping[str, Any]) -> str:
    """The number of objects whose deletion is held, for people."""
    count = deletion.get("objects")
    return f"{count} object{'' if count == 1 else 's'}"


def cluster_results(
    status: Mapping[str, Any], waves: Sequence[WaveResult]
) -> dict[str, ClusterResult]:
    """The results as the status has them, by cluster."""
    wave_of = {cluster: wave.name for wave in waves for cluster in wave.clusters}
    results = {name: ClusterResult(name, wave) for name, wave in wave_of.items()}
    for entry in cast("list[JsonObject]", status.get("clusters") or []):
        result = results.setdefault(str(entry["name"]), ClusterResult(str(entry["name"])))
        result.state = str(entry.get("state", ""))
        result.reason, result.message = str(entry.get("reason", "")), str(entry.get("message", ""))
        result.health = str(entry.get("health") or "")
    return results


def decide(
    status: Mapping[str, Any],
    waves: Sequence[WaveResult],
    clusters: Sequence[ClusterResult],
    broken: set[str],
    *,
    is_late: bool,
) -> tuple[Result, str]:
    """Decide what the result is, and say why in a sentence."""
    phase = str(cast("JsonObject", status.get("rollout") or {}).get("phase", "Complete"))
    reached = [cluster for cluster in clusters if not _is_waiting(cluster)]
    troubled = [cluster for cluster in reached if not cluster.is_ready]
    deletion = cast("JsonObject", status.get("held") or {})
    expected = {
        *broken,
        *(cluster.name for cluster in troubled if deletion and cluster.state == _HELD),
    }
    unexpected = [cluster for cluster in troubled if cluster.name not in expected]
    if failure := _failure(status, waves, clusters, unexpected):
        return Result.FAILED, failure
    if deletion:
        return (
            Result.UNFINISHED,
            f"the deletion of {count_held(deletion)} is held until you confirm it",
        )
    is_refused = _ready(status).get("status") == "False"  # suspended, say
    if not troubled and not is_refused and phase == "Complete" and len(reached) == len(clusters):
        return Result.COMPLETED, f"all {len(clusters)} clusters have it, and it is healthy"
    if not troubled or (is_late and phase == "Progressing"):
        late = "the time was over: " if is_late else ""
        return Result.UNFINISHED, f"{late}{_ready_message(status) or 'it still waits'}"
    return Result.CONTAINED, _containment(waves, [cluster.name for cluster in troubled])


def refusal(status: Mapping[str, Any]) -> str:
    """Say why the distributor refuses the spec, whatever is on the clusters; empty if it does not.

    The entries of clusters are then those of the spec before.
    """
    ready = _ready(status)
    if ready.get("status") != "False" or ready.get("reason") not in _REFUSED:
        return ""
    return f"the distributor refuses it: {ready['reason']}: {ready.get('message', '')}"


def _failure(
    status: Mapping[str, Any],
    waves: Sequence[WaveResult],
    clusters: Sequence[ClusterResult],
    unexpected: Sequence[ClusterResult],
) -> str:
    """Say what should not have happened; empty if nothing did."""
    if not clusters:
        return _ready_message(status) or "the placement names no cluster"
    if refused := refusal(status):
        return refused
    later = _later(waves)
    if spread := sorted(
        cluster.name for cluster in clusters if cluster.name in later and cluster.is_written
    ):
        return f"{', '.join(spread)} of a later wave were written all the same"
    if not unexpected:
        return ""
    first = unexpected[0]
    wave = next((wave for wave in waves if first.name in wave.clusters), None)
    gate = wave.message if wave and wave.phase == _FAILED else ""
    why = first.message or gate or first.health or first.reason
    return f"{first.name} is {first.state}{f': {why}' if why else ''}"


def _containment(waves: Sequence[WaveResult], names: Sequence[str]) -> str:
    listed = ", ".join(names)
    stopped = next((wave.name for wave in waves if wave.phase != _PASSED), "")
    if not stopped:
        verb = "does" if len(names) == 1 else "do"
        return f"only {listed}, broken on purpose, {verb} not have it"
    later = len(_later(waves))
    untouched = f"; {later} cluster(s) of later waves were not touched" if later else ""
    return f"it stopped in wave {stopped} for {listed}{untouched}"


def _later(waves: Sequence[WaveResult]) -> set[str]:
    """The clusters behind the first wave that has not passed."""
    first = next((number for number, wave in enumerate(waves) if wave.phase != _PASSED), len(waves))
    return {name for wave in waves[first + 1 :] for name in wave.clusters}


def _is_waiting(cluster: ClusterResult) -> bool:
    return cluster.state in ("NotReached", "Waiting")


def _ready(status: Mapping[str, Any]) -> JsonObject:
    conditions = cast("list[JsonObject]", status.get("conditions") or [])
    return next(
        (condition for condition in conditions if condition["type"] == "Ready"), JsonObject()
    )


def _ready_message(status: Mapping[str, Any]) -> str:
    return str(_ready(status).get("message", ""))
