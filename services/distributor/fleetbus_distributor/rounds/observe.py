"""Tells the rollout what a round found on the clusters (rule D17)."""

from __future__ import annotations

from collections.abc import Iterable

from fleetbus_distributor.health.fields import cut
from fleetbus_distributor.hub.rollout_state import AWAY
from fleetbus_distributor.render.draft import Draft
from fleetbus_distributor.rollout.rollouts import Observation, Progress
from fleetbus_distributor.targets.outcome import ClusterOutcome, State

_MAX_WHY = 160


def observe_outcomes(
    progress: Progress, draft: Draft, outcomes: Iterable[ClusterOutcome], *, is_whole: bool
) -> Progress:
    """Note which clusters are ready.

    Args:
        progress: the rollout at the beginning of the round.
        draft: what was to be there.
        outcomes: of the clusters that were worked on.
        is_whole: these are all clusters that the open wave waits for.
    """
    every = list(outcomes)
    found = {
        one.name: Observation(_why_not(one, draft.revisions[one.name]), bool(one.changes))
        for one in every
        if one.name in draft.revisions
    }
    found |= {name: Observation(cut(one.message, _MAX_WHY)) for name, one in draft.problems.items()}
    looked_at = {one.name for one in every}
    held = {name for name in progress.step.scene.held if name not in looked_at}
    held |= {one.name for one in every if one.state is State.HELD}
    return progress.observed(found, frozenset(held), is_whole=is_whole)


def _why_not(outcome: ClusterOutcome, revision: str) -> str:
    """Why a cluster is not ready; "" if everything is applied there, and healthy."""
    if outcome.state is State.UNREACHABLE:
        return cut(f"{AWAY}{outcome.message}", _MAX_WHY)
    if outcome.state not in (State.APPLIED, State.DRIFTED):
        return cut(f"{outcome.state}: {outcome.message}", _MAX_WHY)
    if outcome.revision != revision:
        return "not everything is applied"
    return cut(outcome.unhealthy, _MAX_WHY)
