"""`status.rollout`: where a rollout is, as it is stored.

A cluster has the newest revision unless `behind` names it: then it keeps the revision that is named
there, or, without one, what is on record. A wave that opens takes its clusters out of `behind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, cast

from fleetbus_distributor.errors import RolloutError

AWAY: Final = "Unreachable: "
"""The beginning of why a cluster is not ready that does not answer."""
OUTAGE: Final = "outage"
"""Why a wave has failed on a cluster that did not answer."""


class Phase(StrEnum):
    """The phase of a rollout."""

    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HELD = "Held"
    """A person has to decide: about held deletions, or a wave that chooses no cluster."""
    FAILED = "Failed"
    COMPLETE = "Complete"


class WavePhase(StrEnum):
    """The phase of a wave."""

    WAITING = "Waiting"
    OPEN = "Open"
    PASSED = "Passed"
    FAILED = "Failed"


class GateState(StrEnum):
    """The state of a gate."""

    PENDING = "Pending"
    PASSED = "Passed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class GateStatus:
    """One gate of a wave."""

    name: str
    state: GateState = GateState.PENDING
    message: str = ""
    since: datetime | None = None
    """For `quiet`: the time since which nothing has gone wrong."""
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """For `quiet`: cluster → digest of the known trouble. For `health` that has failed: the
    clusters on which it has → OUTAGE, or "" if they answered."""


@dataclass(frozen=True, slots=True)
class WaveStatus:
    """One wave, with the clusters that it had when the rollout began."""

    name: str
    clusters: tuple[str, ...] = ()
    phase: WavePhase = WavePhase.WAITING
    message: str = ""
    opened_at: datetime | None = None
    progressed_at: datetime | None = None
    """When it was opened or resumed, or when a cluster was given the revision or became ready."""
    ready: int = 0
    """The most clusters that were ready at a time."""
    gates: tuple[GateStatus, ...] = ()

    def gate(self, name: str) -> GateStatus:
        """The gate of this name; a new one if it has none."""
        return next((gate for gate in self.gates if gate.name == name), GateStatus(name))


@dataclass(frozen=True, slots=True, order=True)
class RevisionRef:
    """A revision: its number, and the name of its ControllerRevision."""

    number: int
    name: str


NO_REVISION: Final = RevisionRef(0, "")
"""The revision of a cluster before its first revision, or if that was never recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """The rollout of the newest revision."""

    revision: RevisionRef
    previous: int = 0
    definition: str = ""
    """Digest of the definition of the waves."""
    phase: Phase = Phase.PROGRESSING
    message: str = ""
    votes: str = ""
    """Subject prefix of the votes on its gates."""
    waves: tuple[WaveStatus, ...] = ()
    behind: Mapping[str, RevisionRef] = field(default_factory=dict[str, RevisionRef])
    updating: Mapping[str, str] = field(default_factory=dict[str, str])
    """Clusters of the open wave that have the newest revision and are not ready → why."""

    @property
    def current(self) -> WaveStatus | None:
        """The first wave that has not passed."""
        return next((wave for wave in self.waves if wave.phase is not WavePhase.PASSED), None)

    def wave_of(self, cluster: str) -> WaveStatus | None:
        """The wave of a cluster."""
        return next((wave for wave in self.waves if cluster in wave.clusters), None)

    def wave_named(self, name: str) -> WaveStatus:
        """The wave of this name."""
        return next(wave for wave in self.waves if wave.name == name)

    def with_wave(self, wave: WaveStatus) -> RolloutState:
        """Replace the wave of the same name."""
        waves = tuple(wave if other.name == wave.name else other for other in self.waves)
        return replace(self, waves=waves)


def read_state(status: Mapping[str, Any]) -> RolloutState | None:
    """Read `status.rollout`; None if there is none.

    Raises:
        RolloutError: `write_state` did not write it, so nobody knows what each cluster has.
    """
    raw: Any = status.get("rollout")
    if raw is None:
        return None
    try:
        return _read(cast("dict[str, Any]", raw))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            "status.rollout is malformed; nothing is applied or pruned until it is restored, or "
            "removed with spec.rollout"
        ) from error


def _read(raw: dict[str, Any]) -> RolloutState:
    behind = {
        str(name): RevisionRef(int(group["revision"]), str(group.get("name", "")))
        for group in cast("list[dict[str, Any]]", raw.get("behind") or [])
        for name in cast("list[str]", group["clusters"])
    }
    return RolloutState(
        revision=RevisionRef(int(raw["revision"]), str(raw["name"])),
        previous=int(raw.get("previous", 0)),
        definition=str(raw.get("definition", "")),
        phase=Phase(raw["phase"]),
        message=str(raw.get("message", "")),
        votes=str(raw.get("votes", "")),
        waves=tuple(map(_read_wave, cast("list[dict[str, Any]]", raw["waves"]))),
        behind=behind,
        updating={
            str(entry["cluster"]): str(entry.get("message", ""))
            for entry in cast("list[dict[str, Any]]", raw.get("updating") or [])
        },
    )


def _read_wave(raw: dict[str, Any]) -> WaveStatus:
    return WaveStatus(
        name=str(raw["name"]),
        clusters=tuple(map(str, cast("list[str]", raw.get("clusters") or []))),
        phase=WavePhase(raw["phase"]),
        message=str(raw.get("message", "")),
        opened_at=_read_time(raw.get("openedAt")),
        progressed_at=_read_time(raw.get("progressedAt")),
        ready=int(raw.get("ready", 0)),
        gates=tuple(map(_read_gate, cast("list[dict[str, Any]]", raw.get("gates") or []))),
    )


def _read_gate(raw: dict[str, Any]) -> GateStatus:
    return GateStatus(
        name=str(raw["name"]),
        state=GateState(raw["state"]),
        message=str(raw.get("message", "")),
        since=_read_time(raw.get("since")),
        seen={
            str(entry["cluster"]): str(entry["digest"])
            for entry in cast("list[dict[str, Any]]", raw.get("seen") or [])
        },
    )


def write_state(state: RolloutState) -> dict[str, Any]:
    """Build the stored form; equal states give equal trees."""
    raw: dict[str, Any] = {
        "revision": state.revision.number,
        "name": state.revision.name,
        "previous": state.previous,
        "definition": state.definition,
        "phase": state.phase.value,
        "message": state.message,
        "votes": state.votes,
        "waves": [_write_wave(wave) for wave in state.waves],
    }
    if state.behind:
        raw["behind"] = _write_behind(state.behind)
    if state.updating:
        raw["updating"] = [
            {"cluster": name, "message": why} for name, why in sorted(state.updating.items())
        ]
    return raw


def _write_behind(behind: Mapping[str, RevisionRef]) -> list[dict[str, Any]]:
    groups: dict[RevisionRef, list[str]] = {}
    for name, revision in sorted(behind.items()):
        groups.setdefault(revision, []).append(name)
    return [
        {"revision": revision.number, "name": revision.name, "clusters": names}
        for revision, names in sorted(groups.items())
    ]


def _write_wave(wave: WaveStatus) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": wave.name,
        "phase": wave.phase.value,
        "clusters": list(wave.clusters),
        "ready": wave.ready,
    }
    optional = {
        "message": wave.message,
        "openedAt": _write_time(wave.opened_at),
        "progressedAt": _write_time(wave.progressed_at),
        "gates": [_write_gate(gate) for gate in wave.gates],
    }
    return raw | {key: value for key, value in optional.items() if value}


def _write_gate(gate: GateStatus) -> dict[str, Any]:
    raw: dict[str, Any] = {"name": gate.name, "state": gate.state.value}
    digests = [{"cluster": name, "digest": digest} for name, digest in sorted(gate.seen.items())]
    optional = {"message": gate.message, "since": _write_time(gate.since), "seen": digests}
    return raw | {key: value for key, value in optional.items() if value}


def _read_time(text: Any) -> datetime | None:
    return datetime.fromisoformat(str(text)) if text else None


def _write_time(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else ""


def named(names: Iterable[str], limit: int = 5) -> str:
    """Join names for a message; of many only the first."""
    every = sorted(names)
    first: Sequence[str] = every[:limit]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(first) + more
