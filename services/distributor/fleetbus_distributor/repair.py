"""One cluster of a MultiClusterResource, after something happened there (rule D11).

It is compared and put right, and nothing is asked of any other cluster. Whatever concerns all of
them, an edit, a change of the fleet, a deletion, is left to the round for all, which these wake by
themselves.

The two may run at once, in different processes. So nothing is created, pruned or put on record
here: what exists is updated under its UID, which cannot bring back what the other has just deleted
(rule D2); what is missing wakes the round for all. What was changed is looked at once more, because
the spec may have been edited meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from fleetbus_distributor import intent, status
from fleetbus_distributor.draft import Draft
from fleetbus_distributor.hub import Document
from fleetbus_distributor.model import DriftPolicy, Spec
from fleetbus_distributor.notices import notices_of
from fleetbus_distributor.outcome import ClusterOutcome, State, earliest
from fleetbus_distributor.rounds import Round, Work
from fleetbus_distributor.target import SOON

_UNFINISHED = (State.HELD, State.DELETING)


async def repair(turn: Round, document: Document, spec: Spec, cluster: str) -> timedelta | None:
    """Bring one cluster in line.

    Args:
        turn: the round, with the intent as it is on record.
        document: the MultiClusterResource, read live.
        spec: its spec; the round for all has followed this generation.
        cluster: a member of the fleet.

    Returns:
        When something outside may have changed there, or None.

    Raises:
        KubeError: the hub refused a write.
    """
    members = [info for info in turn.fleet.clusters() if info.name == cluster]
    wish = await turn.drafts.draft(spec, members, turn.fleet.hub)
    if not _is_on_record(turn, wish, cluster):
        return None
    before = status.entry_of(document.status, cluster)
    revision = wish.revisions[cluster]
    is_same = before.revision == revision
    corrects = spec.policy.drift is DriftPolicy.CORRECT
    only_compare = is_same and not corrects
    work = Work(
        wish.objects[cluster], revision=revision, only_compare=only_compare, may_create=False
    )
    [outcome] = await turn.run({cluster: work}, _say_nothing)
    if outcome.lacks_objects:
        await turn.wake(turn.owner, "", timedelta())
        return None
    outcome = status.keep_revision(outcome, before.revision)
    if before.state in _UNFINISHED and len(outcome.inventory) > len(wish.wanted[cluster]):
        # What is left to be deleted there is not ours to judge.
        outcome.note(before.state, before.reason, before.message, None)
    old = document.status
    inventory = {**turn.inventory, cluster: outcome.inventory}
    await document.write_status(
        status.with_cluster(old, document.generation, outcome, inventory, intent.read_bases(old))
    )
    await document.tell(notices_of([outcome], old))
    return earliest(outcome.retry, SOON if outcome.changes else None)


def _is_on_record(turn: Round, wish: Draft, cluster: str) -> bool:
    recorded = turn.inventory.get(cluster, {})
    return cluster in wish.wanted and all(ref.key in recorded for ref in wish.wanted[cluster])


async def _say_nothing(_outcomes: Sequence[ClusterOutcome]) -> None:
    """A slow cluster is waited for: nobody else's status depends on it."""
