"""Freezes which clusters are in which wave, and follows the placement afterwards (rule D17)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleetbus_distributor.hub.rollout_state import (
    NO_REVISION,
    RevisionRef,
    RolloutState,
    WavePhase,
    WaveStatus,
)
from fleetbus_distributor.render.place import Member, matches
from fleetbus_distributor.render.rollout_spec import ALL, REMAINING, Rollout, Wave


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The clusters, as a round finds them."""

    members: Sequence[Member]
    """Placed clusters of the fleet, in the order of their names."""
    suspended: frozenset[str] = frozenset()
    """Nothing can be written there, so no wave waits for them."""
    kept: frozenset[str] = frozenset()
    """Clusters that are absent, but on record or named by the placement: they keep their place."""
    held: frozenset[str] = frozenset()
    """Clusters with held deletions."""
    matching: frozenset[str] = frozenset()
    """Clusters whose objects are those of the newest revision, before the first rollout."""
    names: frozenset[str] = field(init=False)
    """Names of the members."""

    def __post_init__(self) -> None:
        """Collect the names once."""
        object.__setattr__(self, "names", frozenset(member.name for member in self.members))


def definition_of(rollout: Rollout) -> str:
    """Hash what decides which clusters are in which wave; limits and gates apply at once."""
    parts = [
        wave.model_dump_json(include={"name", "clusters", "cluster_selector", "percent"})
        for wave in rollout.waves
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def start(
    old: RolloutState | None, rollout: Rollout, newest: RevisionRef, scene: Scene
) -> RolloutState:
    """Begin a rollout: the waves are frozen, and every cluster keeps what it has.

    Args:
        old: the rollout before it, which it supersedes; or that of the same revision, whose waves
            were defined anew: what was opened stays, and every wave has to pass its gates again.
        rollout: of the spec.
        newest: the newest revision.
        scene: the clusters.
    """
    has = {name: _revision_of(name, old, newest, scene) for name in scene.names | scene.kept}
    state = RolloutState(
        revision=newest,
        previous=_previous(old, newest),
        definition=definition_of(rollout),
        waves=_freeze(rollout, scene.members),
        behind={name: revision for name, revision in has.items() if revision.name != newest.name},
    )
    if old is None and not state.behind:
        # The spec gets a rollout while everything is applied: there is nothing to roll out.
        passed = [replace(wave, phase=WavePhase.PASSED) for wave in state.waves]
        return replace(state, waves=tuple(passed))
    return state


def _previous(old: RolloutState | None, newest: RevisionRef) -> int:
    if old is None:
        return 0
    return old.previous if old.revision == newest else old.revision.number


def _revision_of(
    name: str, old: RolloutState | None, newest: RevisionRef, scene: Scene
) -> RevisionRef:
    """The revision that a cluster has now."""
    if old is None:
        return newest if name in scene.matching else NO_REVISION
    if name in old.behind:
        return old.behind[name]
    return old.revision if old.wave_of(name) else NO_REVISION


def _freeze(rollout: Rollout, members: Sequence[Member]) -> tuple[WaveStatus, ...]:
    left = list(members)
    waves: list[WaveStatus] = []
    for wave in rollout.waves:
        chosen = _choose(wave, left, len(members))
        left = [member for member in left if member not in chosen]
        waves.append(WaveStatus(wave.name, tuple(member.name for member in chosen)))
    if left or not waves:
        name = REMAINING if waves else ALL
        waves.append(WaveStatus(name, tuple(member.name for member in left)))
    return tuple(waves)


def _choose(wave: Wave, left: Sequence[Member], count: int) -> list[Member]:
    if wave.percent is not None:
        return list(left[: -(-count * wave.percent // 100)])
    return [member for member in left if chooses(wave, member)]


def chooses(wave: Wave, member: Member) -> bool:
    """Whether a wave names a cluster, or selects it by its labels."""
    if wave.clusters is not None:
        return any(cluster.name == member.name for cluster in wave.clusters)
    return wave.cluster_selector is not None and matches(wave.cluster_selector, member.labels)


def follow_placement(state: RolloutState, scene: Scene) -> RolloutState:
    """Take clusters out that left, and add those that joined to the last wave."""
    in_waves = {name for wave in state.waves for name in wave.clusters}
    stays = scene.names | scene.kept
    joined = sorted(scene.names - in_waves)
    waves = [replace(w, clusters=tuple(n for n in w.clusters if n in stays)) for w in state.waves]
    waves[-1] = replace(waves[-1], clusters=(*waves[-1].clusters, *joined))
    behind = {name: revision for name, revision in state.behind.items() if name in stays}
    behind |= dict.fromkeys(joined, NO_REVISION)
    for wave in waves:
        if wave.phase is WavePhase.PASSED:
            # Also of a cluster that was absent while its wave was open, and is back.
            behind = {
                n: revision
                for n, revision in behind.items()
                if n not in scene.names & {*wave.clusters}
            }
    updating = {name: why for name, why in state.updating.items() if name in scene.names}
    return replace(state, waves=tuple(waves), behind=behind, updating=updating)


def refill(state: RolloutState, wave: WaveStatus, defined: Wave, scene: Scene) -> RolloutState:
    """Fill a wave that chose nothing with clusters that it chooses now, from waves after it."""
    waiting = {
        name
        for other in state.waves
        if other.phase is WavePhase.WAITING and other.name != wave.name
        for name in other.clusters
    }
    chosen = [m.name for m in scene.members if m.name in waiting and chooses(defined, m)]
    waves = [
        replace(other, clusters=tuple(name for name in other.clusters if name not in chosen))
        for other in state.waves
    ]
    filled = replace(wave, clusters=(*wave.clusters, *chosen))
    return replace(state, waves=tuple(waves)).with_wave(filled)


def moved(before: RolloutState | None, after: RolloutState) -> frozenset[str]:
    """The clusters that have another revision now, or that have to be looked at."""
    if before is None:
        return frozenset(name for wave in after.waves for name in wave.clusters)
    left = before.behind.keys() - after.behind.keys()
    begun = after.updating.keys() - before.updating.keys()
    return frozenset({*left, *begun, *_changed(before.behind, after.behind)})


def _changed(before: Mapping[str, RevisionRef], after: Mapping[str, RevisionRef]) -> frozenset[str]:
    return frozenset(name for name, revision in after.items() if before.get(name) != revision)
