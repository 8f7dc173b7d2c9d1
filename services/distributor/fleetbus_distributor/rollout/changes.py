"""Lists what has changed between two states of a rollout, for those who announce it (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fleetbus_distributor.hub.rollout_state import Phase, RolloutState, WavePhase, WaveStatus
from fleetbus_proto.subjects import DistributionVerb

_OF_WAVES: Final = {
    WavePhase.OPEN: DistributionVerb.WAVE_OPEN,
    WavePhase.PASSED: DistributionVerb.WAVE_PASSED,
    WavePhase.FAILED: DistributionVerb.WAVE_FAILED,
}


@dataclass(frozen=True, slots=True)
class RolloutChange:
    """One thing that has happened in a rollout."""

    verb: DistributionVerb
    message: str = ""
    wave: str = ""


def changes_of(
    old: RolloutState | None, new: RolloutState, *, is_undo: bool = False
) -> list[RolloutChange]:
    """List the changes of a rollout, in the order in which they came.

    Args:
        old: as it was; None before the first rollout.
        new: as it is.
        is_undo: the newest revision has begun, and an earlier one had the same content.
    """
    began = old is None or old.revision != new.revision
    changes: list[RolloutChange] = []
    if began and is_undo:
        message = f"revision {new.revision.number} has the content of an earlier one"
        changes.append(RolloutChange(DistributionVerb.UNDONE, message))
    phase = old.phase if old else Phase.PROGRESSING
    if phase is Phase.PAUSED and new.phase is not Phase.PAUSED:
        changes.append(RolloutChange(DistributionVerb.RESUMED))
    # Other waves are not those of before, even if their names are.
    is_same = old is not None and not began and old.definition == new.definition
    old_waves = {wave.name: wave for wave in old.waves} if old and is_same else {}
    for wave in new.waves:
        changes += _of_wave(old_waves.get(wave.name, WaveStatus(wave.name)), wave)
    return [*changes, *_of_phase(phase, new, began=began)]


def _of_wave(old: WaveStatus, new: WaveStatus) -> Iterator[RolloutChange]:
    if new.phase is old.phase or new.opened_at is None:
        return  # one that never opened had nothing to do
    if old.opened_at is None and new.phase is not WavePhase.OPEN:
        yield _change(WavePhase.OPEN, new)
    if new.phase is not WavePhase.WAITING:
        yield _change(new.phase, new)


def _change(phase: WavePhase, wave: WaveStatus) -> RolloutChange:
    message = wave.message if phase is WavePhase.FAILED else ""
    return RolloutChange(_OF_WAVES[phase], message or f"wave {wave.name}", wave.name)


def _of_phase(old: Phase, new: RolloutState, *, began: bool) -> Iterator[RolloutChange]:
    if new.phase is Phase.COMPLETE and (began or old is not Phase.COMPLETE):
        if any(wave.opened_at for wave in new.waves):
            yield RolloutChange(DistributionVerb.COMPLETE, new.message)
    elif new.phase is Phase.PAUSED and old is not Phase.PAUSED:
        yield RolloutChange(DistributionVerb.PAUSED, new.message)
    elif new.phase is Phase.HELD and old is not Phase.HELD:
        yield RolloutChange(DistributionVerb.HELD, new.message)
